"""Loggers of pretraining, in the form of spaCy's training loggers: table and progress bar, files, several at once."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import IO, Any

from spacy import Language

from ..errors import PretrainingError, WeightsError
from ..weights.files import replacing

LogStep = Callable[[dict[str, Any] | None], None]
SetupLogger = Callable[[Language, IO[str], IO[str]], tuple[LogStep, Callable[[], None]]]

# "PPL" is written "LOSS" for an objective that has no perplexity.
_BITS = "BITS/CHAR"
_COLUMNS = (
    ("E", 6),
    ("#", 8),
    ("LOSS", 8),
    ("DEV FWD PPL", 12),
    ("DEV BWD PPL", 12),
    ("DEV PPL", 12),
    (_BITS, 9),
    ("TOKENS/S", 9),
    ("ETA", 9),
)


def console_logger(progress_bar: bool = True) -> SetupLogger:
    """``spacy-elmo.console_logger.v1``: a row an evaluation, and a bar with tokens/s and the time left.

    LOSS is the mean training loss since the last row, in nats a word: of the *sampled* softmax where the objective is
    one, so that it must not be compared with the dev perplexities, which are the full softmax's. Continuous outputs
    have no perplexities: dev's columns are losses then, of the same kind.

    progress_bar (bool): show the bar (on a terminal only).
    """

    def setup_logger(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        from tqdm import tqdm

        training = nlp.config["training"]
        tokens_per_step = training["rows"] * training.get("accumulate", 1) * training["unroll_steps"]
        total = training["max_steps"] * tokens_per_step
        bar: tqdm | None = None
        measure = ""  # "perplexity" or "loss"

        def close_bar() -> None:
            nonlocal bar
            if bar is not None:
                bar.close()
                bar = None

        def write(cells: list[str]) -> None:
            row = "  ".join(cell.rjust(width) for cell, (_, width) in zip(cells, columns(), strict=True))
            print(row, file=stdout, flush=True)

        def columns() -> list[tuple[str, int]]:
            if measure == "perplexity":
                return [*_COLUMNS]
            return [(name.replace("PPL", "LOSS"), width) for name, width in _COLUMNS if name != _BITS]

        def log_step(info: dict[str, Any] | None) -> None:
            nonlocal bar, measure
            if info is None:
                if bar is not None:
                    bar.update(tokens_per_step)
                return
            close_bar()
            scores = info["other_scores"]
            if not measure:  # what there is to show is known from the first scores on
                measure = "perplexity" if "joint_perplexity" in scores else "loss"
                write([name for name, _ in columns()])
                write(["-" * width for _, width in columns()])
            digits = 2 if measure == "perplexity" else 4
            bits = scores.get("bits_per_character")
            write(
                [
                    f"{info['epoch']:.2f}" if isinstance(info["epoch"], float) else str(info["epoch"]),
                    str(info["step"]),
                    f"{info['losses']['bilm']:.3f}" if info["losses"] else "",
                    *(f"{scores[f'{name}_{measure}']:.{digits}f}" for name in ("forward", "backward", "joint")),
                    *([f"{bits:.4f}" if bits is not None else ""] if measure == "perplexity" else []),
                    f"{scores['tokens_per_second']:.0f}" if scores.get("tokens_per_second") else "",
                    clock(info["seconds_left"]) if info.get("seconds_left") is not None else "",
                ]
            )
            if progress_bar and info["step"] < training["max_steps"]:
                # disable=None: nothing where stderr is no terminal.
                bar = tqdm(
                    total=total,
                    initial=info.get("resumed_at", info["step"]) * tokens_per_step,
                    disable=None,
                    leave=False,
                    file=stderr,
                    unit="tok",
                    unit_scale=True,
                )

        return log_step, close_bar

    return setup_logger


def jsonl_logger(path: str) -> SetupLogger:
    """``spacy-elmo.jsonl_logger.v1``: a line of JSON an evaluation, with all its figures by flat names.

    A resumed run goes on in the file, where its checkpoint stood. A new one begins it: an earlier run's is moved to
    ``path`` + ``.1``, ``.2``, ... What is not finite is null.

    path (str): the file; its folder is made. Raises PretrainingError if it holds anything else, or cannot be written.
    """

    def setup_logger(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        file, first = Path(path), True

        def log_step(info: dict[str, Any] | None) -> None:
            nonlocal first
            if info is None:
                return
            entry = {name: value if math.isfinite(value) else None for name, value in _figures(info)}
            try:
                if first:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    before = _lines_before(file, info["step"])
                    if "resumed_at" in info:
                        with replacing(file.resolve()) as new:
                            new.write_bytes(before)
                    elif file.exists():
                        aside = _moved_aside(file.resolve())
                        print(f"{file} is of an earlier run: moved to {aside}", file=stdout, flush=True)
                    first = False
                with file.open("a", encoding="utf8", newline="\n") as lines:
                    lines.write(json.dumps(entry) + "\n")
            except (OSError, WeightsError) as error:
                raise PretrainingError(f"logger.path: cannot write {file}: {error}") from error

        return log_step, lambda: None

    return setup_logger


def _lines_before(file: Path, step: int) -> bytes:
    """The lines of a log of ours for evaluations before a step. Raises PretrainingError for another file."""
    kept = []
    for line in file.read_bytes().splitlines(keepends=True) if file.exists() else []:
        try:
            found = json.loads(line)["step"]
            if found < step:
                kept.append(line)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            if not line.endswith(b"\n"):  # what a killed run was writing
                continue
            raise PretrainingError(f"logger.path: {file} is no log of evaluations: give another path") from error
    return b"".join(kept)


def _moved_aside(file: Path) -> Path:
    """Give a file a name with a number behind it that is free."""
    aside = next(path for n in count(1) if not (path := file.with_name(f"{file.name}.{n}")).exists())
    return file.rename(aside)


def tensorboard_logger(folder: str) -> SetupLogger:
    """``spacy-elmo.tensorboard_logger.v1``: the figures of each evaluation as TensorBoard's scalars, by step.

    A resumed run goes on in the folder; what came after its checkpoint is hidden, and so is what a run before a new one
    wrote there: give each run a folder of its own.

    folder (str): where ``tensorboard --logdir`` looks. Raises PretrainingError where tensorboard is missing.
    """

    def setup_logger(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise PretrainingError(
                'spacy-elmo.tensorboard_logger.v1 needs tensorboard: pip install "spacy-elmo[tensorboard]"'
            ) from error
        writer: SummaryWriter | None = None

        def log_step(info: dict[str, Any] | None) -> None:
            nonlocal writer
            if info is None:
                return
            if writer is None:
                try:
                    writer = SummaryWriter(folder, purge_step=info["step"])
                except OSError as error:
                    raise PretrainingError(f"logger.folder: cannot write to {folder}: {error}") from error
            for name, value in _figures(info):
                if name != "step":
                    writer.add_scalar(name, value, info["step"])
            writer.flush()

        def finish() -> None:
            if writer is not None:
                writer.close()

        return log_step, finish

    return setup_logger


def chain_logger(*loggers: SetupLogger) -> SetupLogger:
    """``spacy-elmo.chain_logger.v1``: several loggers, each as ``[logger.*.name]``, called in this order.

    Raises PretrainingError if there are none.
    """
    if not loggers:
        raise PretrainingError("spacy-elmo.chain_logger.v1: give it loggers, each as a block [logger.*.name]")

    def setup_logger(
        nlp: Language, stdout: IO[str] = sys.stdout, stderr: IO[str] = sys.stderr
    ) -> tuple[LogStep, Callable[[], None]]:
        chained = [setup(nlp, stdout, stderr) for setup in loggers]

        def log_step(info: dict[str, Any] | None) -> None:
            for log, _ in chained:
                log(info)

        def finish() -> None:
            for _, end in chained:
                end()

        return log_step, finish

    return setup_logger


def _figures(info: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of an evaluation by flat names: step, epoch, score, loss_bilm, joint_perplexity, ..."""
    for name, value in info.items():
        if name in ("losses", "other_scores"):
            prefix = "loss_" if name == "losses" else ""
            yield from _figures({f"{prefix}{key}": part for key, part in value.items()})
        elif isinstance(value, (int, float)) and name != "resumed_at":
            yield name, value


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
