"""What a run writes: checkpoints to go on from, and folders of models to use. Each is whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .. import __version__
from ..bilm.model import BiLM, BiLMState
from ..bilm.output_layer import OutputLayer
from ..errors import PretrainingError, WeightsError
from .distributed import ALONE, Ranks
from .memory import is_out_of_memory
from .perplexity import Evaluation
from .schedules import Progress

TENSORS_FILE = "tensors.safetensors"
STATE_FILE = "state.json"
SUMS_FILE = "SHA256SUMS"
FORMAT = 2
_STEP = re.compile(r"step-(\d+)")
_ANEW = "move the checkpoint away to go on from the one before, or to start anew"
# What a file or folder of this name is not: all else that can go wrong with reading says nothing of what is there.
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class DamagedError(PretrainingError):
    """A checkpoint whose files are not as they were written."""


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Write a folder anew: what the block writes into the given path takes the place of ``folder`` once it is whole.

    The previous folder stays until then; if the process dies between the two renames, it is ``folder`` + ``.old``
    (see ``existing_folder`` and ``restore_folder``). A link stays: what it leads to is replaced.
    Raises PretrainingError if something cannot be written.
    """
    folder = folder.resolve()
    new, old = _beside(folder, ".new"), _beside(folder, ".old")
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        yield new
        for file in new.rglob("*"):
            if file.is_file():
                _flush_to_disk(file)
        _flush_names(new)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(folder, old)
        os.replace(new, folder)
        _flush_names(folder.parent)
    except BaseException as error:
        shutil.rmtree(new, ignore_errors=True)
        if isinstance(error, (OSError, SafetensorError, WeightsError)):
            raise PretrainingError(f"cannot write {folder}: {error}. What was there before is kept") from error
        raise
    shutil.rmtree(old, ignore_errors=True)


def existing_folder(folder: Path) -> Path | None:
    """The newest whole version of a folder that ``replaced_folder`` writes; None if there is none."""
    for candidate in (folder, _beside(folder.resolve(), ".old")):
        if candidate.is_dir():
            return candidate
    return None


def restore_folder(folder: Path) -> None:
    """Put back the previous version of a folder if the process died between the renames of ``replaced_folder``."""
    found = existing_folder(folder)
    if found is not None and found != folder and not folder.exists():
        os.replace(found, folder.resolve())


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Scores(_Part):
    n_targets: int
    tokens_per_second: float

    @model_validator(mode="after")
    def _check_figures(self) -> _Scores:
        Evaluation.from_scores({"n_targets": self.n_targets, **(self.model_extra or {})})
        return self


class _Info(_Part):
    epoch: int
    step: int
    score: float
    losses: dict[str, float]
    other_scores: _Scores
    seconds_left: float | None
    words: int


class _Best(_Part):
    score: float
    step: int | None


class _State(_Part):
    """What ``state.json`` must hold."""

    format: Literal[2]
    spacy_elmo: str
    step: int = Field(ge=0)
    seconds: float
    best: _Best
    info: _Info | None
    corpora: dict[str, str]
    config: dict[str, dict[str, Any]]
    progress: Progress = Progress()
    # Shapes of all that is stored beside.
    tensors: dict[str, list[int]]


@dataclass(kw_only=True)
class Checkpoint:
    """All that a run needs to go on as if it had never stopped.

    folder (Path): where it was read.
    step (int): updates done.
    tensors (dict): weights, softmax, optimizer, LSTM states and random states, under ``group/name``.
    record (dict): the JSON part: the resolved config, the corpora's hashes, the best score, the last evaluation, the
        version of this package that wrote it.
    """

    folder: Path
    step: int
    tensors: dict[str, Tensor]
    record: dict[str, Any]

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors of one group, their prefix removed."""
        return {
            key.removeprefix(f"{name}/"): value for key, value in self.tensors.items() if key.startswith(f"{name}/")
        }

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """What the block takes from the checkpoint must fit. Raises PretrainingError if it does not."""
        try:
            yield
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            if is_out_of_memory(error):
                raise
            file = self.folder / TENSORS_FILE
            raise PretrainingError(f"{file} does not fit the config, or is damaged: {error}") from error


def save_checkpoint(
    folder: Path,
    *,
    step: int,
    bilm: BiLM,
    softmax: OutputLayer,
    optimizer: torch.optim.Optimizer,
    state: BiLMState,
    record: Mapping[str, Any],
    more: Mapping[str, Mapping[str, Tensor]] | None = None,
    ranks: Ranks = ALONE,
) -> None:
    """Write a checkpoint: tensors as safetensors, the rest as JSON, and the checksums of both.

    more: further groups of tensors.
    ranks: all call it, each with the states of its own rows; the first one writes.

    The random states of dropout are stored with the rest, so that the next step draws what it would have drawn.
    """
    states = {name: torch.cat(ranks.each(tensor.cpu()), dim=1) for name, tensor in state.tensors().items()}
    random = {
        _of_rank(name, rank): tensor
        for name, mine in _random_states(next(bilm.parameters()).device).items()
        for rank, tensor in enumerate(ranks.each(mine))
    }
    if not ranks.first:
        return
    groups = {
        "bilm": bilm.state_dict(),
        "softmax": softmax.state_dict(),
        "optimizer": optimizer_tensors(optimizer.state_dict()["state"], optimizer),
        "state": states,
        "random": random,
        **(more or {}),
    }
    tensors = {
        f"{group}/{name}": tensor.detach().cpu().contiguous()
        for group, values in groups.items()
        for name, tensor in values.items()
    }
    with replaced_folder(folder) as new:
        save_file(tensors, new / TENSORS_FILE)
        shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
        state_json = {"format": FORMAT, "spacy_elmo": __version__, "step": step, **record, "tensors": shapes}
        text = json.dumps(state_json, indent=1, ensure_ascii=False)
        (new / STATE_FILE).write_text(text, encoding="utf8")
        write_sums(new)


def write_sums(folder: Path) -> None:
    """Write the file of checksums, as ``sha256sum`` does."""
    lines = [f"{_sha256(folder / name)}  {name}\n" for name in (STATE_FILE, TENSORS_FILE)]
    (folder / SUMS_FILE).write_bytes("".join(lines).encode("ascii"))


def load_checkpoint(folder: Path) -> Checkpoint:
    """Read the checkpoint in a folder.

    Raises DamagedError if it is not what was written; PretrainingError if it is another version's, or cannot be read
    now: it may be whole all the same.
    """
    _check_sums(folder)
    record = _read_state(folder / STATE_FILE)
    shapes = record.pop("tensors")
    file = folder / TENSORS_FILE
    try:
        # load_file maps the file; copies let it be removed (Windows locks mapped files).
        tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    except (SafetensorError, ValueError, LookupError, TypeError) as error:
        raise DamagedError(f"{file} is damaged ({error}); {_ANEW}") from error
    except (OSError, RuntimeError, MemoryError) as error:
        raise _unreadable(file, error) from error
    wrong = [name for name, shape in shapes.items() if name not in tensors or list(tensors[name].shape) != shape]
    if wrong:
        raise DamagedError(f"{file} is damaged ({', '.join(wrong)} missing or of another shape); {_ANEW}")
    return Checkpoint(folder=folder, step=record.pop("step"), tensors=tensors, record=record)


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step lies in the folder of all of them."""
    return folder / f"step-{step:06d}"


def step_folders(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest first."""
    return [path for _, path in sorted(_numbered(folder), reverse=True)]


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    try:
        paths = list(folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise PretrainingError(f"{folder} cannot be looked at: {error.strerror}") from error
    return [(int(found[1]), path) for path in paths if (found := _STEP.fullmatch(path.name)) and path.is_dir()]


def newest_checkpoint(folder: Path, say: Callable[[str], object]) -> Checkpoint | None:
    """Read the newest checkpoint in a folder that is not damaged.

    say: is told of each damaged one that was passed over.
    RETURNS: None if there is none at all. Raises DamagedError if all are damaged, PretrainingError if the newest that
    is not cannot be read.
    """
    damaged: list[DamagedError] = []
    for path in step_folders(folder):
        try:
            checkpoint = load_checkpoint(path)
        except DamagedError as error:
            damaged.append(error)
            continue
        for passed in damaged:
            say(f"{str(passed).removesuffix(f'; {_ANEW}')}: going back to the checkpoint before")
        return checkpoint
    if damaged:
        more = f" (and {len(damaged) - 1} older ones are damaged too)" if len(damaged) > 1 else ""
        raise DamagedError(f"{damaged[0]}{more}")
    return None


def keep_newest(folder: Path, step: int, n: int) -> None:
    """Remove all checkpoints but the newest ``n`` up to the one of ``step``, and what killed processes left unfinished.

    Those of later steps go too: they are damaged, and the run went back from them.
    """
    earlier = [path for number, path in sorted(_numbered(folder), reverse=True) if number <= step]
    for path in folder.iterdir():
        name = path.name.removesuffix(".new").removesuffix(".old")
        if path in earlier[:n] or not _STEP.fullmatch(name):
            continue
        if path.name == name:
            # Out of sight first: what is half removed must not look like a damaged one.
            path = path.replace(_beside(path, ".new"))
        shutil.rmtree(path, ignore_errors=True)


def copied_to_all(checkpoint: Checkpoint | None, ranks: Ranks) -> Checkpoint | None:
    """The first rank's checkpoint, on every rank: the others need not see its disk."""
    if ranks.size == 1:
        return checkpoint
    parts = (checkpoint.folder, checkpoint.step, checkpoint.record) if checkpoint is not None else None
    parts = ranks.agreed(parts)
    if parts is None:
        return None
    tensors = ranks.copied(checkpoint.tensors if checkpoint is not None else {})
    return Checkpoint(folder=parts[0], step=parts[1], tensors=tensors, record=parts[2])


def _check_sums(folder: Path) -> None:
    file = folder / SUMS_FILE
    try:
        lines = file.read_bytes().decode("ascii").split("\n")[:-1]
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        wanted = {name: sums[name] for name in (STATE_FILE, TENSORS_FILE)}
    except (*_MISSING, ValueError, KeyError) as error:
        raise DamagedError(f"{file} is missing or damaged ({error}); {_ANEW}") from error
    except OSError as error:
        raise _unreadable(file, error) from error
    for name, digest in wanted.items():
        try:
            found = _sha256(folder / name)
        except _MISSING as error:
            raise DamagedError(f"{folder / name} is missing ({error.strerror}); {_ANEW}") from error
        except OSError as error:
            raise _unreadable(folder / name, error) from error
        if found != digest:
            raise DamagedError(f"{folder / name} is damaged (another checksum than in {SUMS_FILE}); {_ANEW}")


def _unreadable(file: Path, error: Exception) -> PretrainingError:
    # Nothing is wrong with the checkpoint as far as this tells, so none before it may take its place.
    if is_out_of_memory(error):
        return PretrainingError(f"not enough memory to read {file} ({error}): free some, then try again")
    return PretrainingError(f"{file} cannot be read ({error}): try again; if it never can be, {_ANEW}")


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _read_state(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf8"))
    except OSError as error:
        raise _unreadable(file, error) from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{file} is damaged ({error}); {_ANEW}") from error
    if isinstance(record, dict) and record.get("format", FORMAT) != FORMAT:
        raise PretrainingError(f"{file} was written by another version; {_ANEW}")
    try:
        _State.model_validate(record)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
        raise DamagedError(f"{file} is damaged ({wrong}); {_ANEW}") from error
    del record["format"]
    return record


def restore(
    checkpoint: Checkpoint,
    *,
    bilm: BiLM,
    softmax: OutputLayer,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks = ALONE,
) -> BiLMState:
    """Put weights, optimizer and random states back.

    The optimizer's options (learning rate, decay) stay those of ``optimizer``: the new config's. The random state of a
    rank that the checkpoint has none of stays too.

    RETURNS: the LSTM states of all rows, on the model's device.
    """
    device = next(bilm.parameters()).device
    with checkpoint.fitting():
        bilm.load_state_dict(checkpoint.group("bilm"))
        softmax.load_state_dict(checkpoint.group("softmax"))
        state = optimizer_state(checkpoint.group("optimizer"))
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        random = checkpoint.group("random")
        cpu, cuda = (_of_rank(name, ranks.rank) for name in ("cpu", "cuda"))
        if ranks.first or cpu in random:
            torch.set_rng_state(random[cpu])
        if device.type == "cuda" and cuda in random:
            torch.cuda.set_rng_state(random[cuda], device)
        return BiLMState.from_tensors({name: tensor.to(device) for name, tensor in checkpoint.group("state").items()})


def optimizer_tensors(state: Mapping[int, Mapping[str, Any]], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimizer's state (of its ``state_dict``) as flat names and tensors. Raises PretrainingError for anything else
    in it.
    """
    tensors = {}
    for index, values in state.items():
        for name, value in values.items():
            if not isinstance(value, Tensor):
                raise PretrainingError(
                    f"{type(optimizer).__name__} keeps '{name}' as {type(value).__name__}; "
                    "a checkpoint holds tensors only: keep it as a tensor"
                )
            tensors[f"{index}.{name}"] = value
    return tensors


def optimizer_state(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """The inverse of ``optimizer_tensors``."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    return state


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _of_rank(name: str, rank: int) -> str:
    return f"{name}.{rank}" if rank else name


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(folder.name + suffix)


def _flush_to_disk(file: Path) -> None:
    # Opened for writing: Windows flushes no handle opened for reading only.
    with file.open("r+b") as handle:
        os.fsync(handle.fileno())


def _flush_names(folder: Path) -> None:
    # What was renamed must outlive a power cut before anything older is removed. Windows opens no folders.
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
