"""The folder that a run writes: taken by one process at a time, and nothing of others in it is replaced."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..errors import PretrainingError, WeightsError
from ..weights.files import replacing
from .checkpoint import restore_folder, step_folder, step_folders
from .locks import locked

CHECKPOINTS = "checkpoints"
BEST, LAST = "model-best", "model-last"
LOSSES = "losses.jsonl"
EVALUATIONS = "evaluations.jsonl"
LOCK = ".lock"
_ELSEWHERE = "choose another output folder, or move it away"


@contextmanager
def own_output(output: Path) -> Iterator[None]:
    """Make the folder, and keep other runs out of it while the block lasts.

    Raises PretrainingError if another process has it, or nothing can be written there.
    """
    with ExitStack() as stack:
        try:
            output.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(output / LOCK))
        except BlockingIOError as error:
            raise PretrainingError(
                f"{output} is in use by another process: wait for its end, or choose another folder"
            ) from error
        except OSError as error:
            raise PretrainingError(f"cannot write to the folder {output}: {error.strerror}") from error
        yield


def check_output(output: Path, *, resume: bool) -> None:
    """Refuse a folder in which a run would replace what is not its own.

    A folder whose replacement was interrupted is put back first.

    resume: whether what an earlier run left may be there.
    Raises PretrainingError.
    """
    folders = [output / name for name in (CHECKPOINTS, BEST, LAST)]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise PretrainingError(
            f"{CHECKPOINTS}, {BEST} and {LAST} in {output} are links to one folder: give each its own"
        )
    for folder in folders:
        restore_folder(folder)
        if folder.exists() and not folder.is_dir():
            raise PretrainingError(f"{folder} is a file, not a folder of `elmo pretrain`: {_ELSEWHERE}")
    for old in sorted((output / CHECKPOINTS).glob("step-*.old")):
        restore_folder(old.with_suffix(""))
    # A checkpoint is checked by the one who reads it.
    for folder in folders[1:]:
        if folder.exists() and not _is_pretrained(folder):
            raise PretrainingError(f"{folder} is not a model that `elmo pretrain` wrote: {_ELSEWHERE}")
    files = [output / name for name in (LOSSES, EVALUATIONS)]
    for file in files:
        if file.exists() and not file.is_file():
            raise PretrainingError(f"{file} is not a file: {_ELSEWHERE}")
    present = [path.name for path in (*folders[1:], *files) if path.exists()]
    if step_folders(folders[0]):
        present.insert(0, CHECKPOINTS)
    if present and not resume:
        raise PretrainingError(
            f"{output} holds a run already ({', '.join(present)}): continue it with --resume, or choose another folder"
        )


def _is_pretrained(folder: Path) -> bool:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(meta, dict) and "spacy_elmo" in meta


def losses_until(path: Path, step: int) -> bytes:
    """The lines of the first ``step`` steps in a file of losses; nothing if there is no file.

    Later ones are of steps after the checkpoint, which will be done again; a last line without an end is what a killed
    process was writing. Raises PretrainingError for anything else that is not the losses of one run, step by step.
    """
    if not path.exists():
        return b""
    mend = "restore the file, or move it away to go on without it"
    kept = []
    previous: int | None = None
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            found = json.loads(line)["step"]
        except (ValueError, TypeError, KeyError, RecursionError):
            found = None
        # The file of a run whose earlier losses were moved away begins later.
        follows = isinstance(found, int) and (found <= step + 1 if previous is None else found == previous + 1)
        if not follows:
            wanted = "a step" if previous is None else f"step {previous + 1}"
            raise PretrainingError(f"{path}, line {number}: not the losses of {wanted}: {mend}")
        previous = found
        if found <= step:
            kept.append(line + b"\n")
    if step and (previous or 0) < step:
        raise PretrainingError(f"{path} ends with step {previous or 0}, but the checkpoint is at step {step}: {mend}")
    return b"".join(kept)


class LossesFile:
    """The losses of a run, a line of JSON a step. Each line is written at once, so that a killed run leaves them all.

    path: the file. before: its lines so far, see `losses_until`.
    """

    def __init__(self, path: Path, before: bytes) -> None:
        self.path = path.resolve()  # a link stays
        with _writing(self.path):
            with replacing(self.path) as new:
                new.write_bytes(before)
            self._file = self.path.open("ab", buffering=0)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Add a line. Raises PretrainingError if it cannot be written."""
        line = json.dumps(entry).encode("ascii") + b"\n"
        with _writing(self.path):
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Make the lines survive a power cut, as the checkpoint that counts on them does."""
        with _writing(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def last_good_state(output: Path, before: int | None = None) -> str:
    """What of a run is safe when it breaks, in words. before: the step that is bad, whose checkpoint there may be."""
    found = step_folders(output / CHECKPOINTS)
    bad = [] if before is None else [folder for folder in found if folder == step_folder(folder.parent, before)]
    good = [folder for folder in found if folder not in bad]
    kept = f"The last good state is kept in {good[0]}" if good else "There was no checkpoint yet"
    return f"{kept}. Move {bad[0]}, which is not good, away before you resume" if bad else kept


def write_evaluations(path: Path, evaluations: Sequence[Mapping[str, Any]]) -> None:
    """Write the figures of a run's evaluations, a line of JSON each. Raises PretrainingError if that cannot be done."""
    path = path.resolve()  # a link stays
    with _writing(path), replacing(path) as new:
        new.write_text("".join(json.dumps(entry) + "\n" for entry in evaluations), encoding="ascii")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, WeightsError) as error:
        raise PretrainingError(f"cannot write {path}: {error}") from error
