"""The table and progress bar of pretraining, in the form of spaCy's training loggers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import IO, Any

from spacy import Language

LogStep = Callable[[dict[str, Any] | None], None]
SetupLogger = Callable[[Language, IO[str], IO[str]], tuple[LogStep, Callable[[], None]]]

# "PPL" is written "LOSS" for an objective that has no perplexity.
_COLUMNS = (
    ("E", 6),
    ("#", 8),
    ("LOSS", 8),
    ("DEV FWD PPL", 12),
    ("DEV BWD PPL", 12),
    ("DEV PPL", 12),
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
            row = "  ".join(cell.rjust(width) for cell, (_, width) in zip(cells, _COLUMNS, strict=True))
            print(row, file=stdout, flush=True)

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
                write([name.replace("PPL", "PPL" if measure == "perplexity" else "LOSS") for name, _ in _COLUMNS])
                write(["-" * width for _, width in _COLUMNS])
            digits = 2 if measure == "perplexity" else 4
            write(
                [
                    f"{info['epoch']:.2f}" if isinstance(info["epoch"], float) else str(info["epoch"]),
                    str(info["step"]),
                    f"{info['losses']['bilm']:.3f}" if info["losses"] else "",
                    *(f"{scores[f'{name}_{measure}']:.{digits}f}" for name in ("forward", "backward", "joint")),
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


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
