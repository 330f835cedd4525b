"""The course of a run as a picture: loss, dev perplexity, learning rate."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ElmoError, PretrainingError, WeightsError
from ..figures import new_figure, picture
from ..weights.files import replacing
from .output import EVALUATIONS, LOSSES

CURVES = ("training_curve.svg", "training_curve.png")
# Points that are drawn of a line: as many as a picture can show.
POINTS = 1000


def draw_curve(output: Path | str) -> list[Path]:
    """Draw ``training_curve.svg`` and ``.png`` into the output folder of a run, from what it has written so far.

    The loss is the training's, of each step or, of long runs, means of so many steps; a step whose loss was not finite
    leaves a gap. RETURNS: the files.
    Raises PretrainingError where matplotlib is missing, there is nothing to draw, or a file cannot be read or written.
    """
    try:
        figure = new_figure(8, 9, what="the training curve")
    except ElmoError as error:
        raise PretrainingError(str(error)) from error
    output = Path(output)
    columns = ((entry["step"], _number(entry.get("loss")), _number(entry.get("learn_rate"))) for entry in _read(output))
    steps = np.fromiter(columns, dtype=np.dtype((float, 3)))  # numbers alone: there may be millions of steps
    if not len(steps):
        raise PretrainingError(f"{output / LOSSES}: there are no steps to draw")
    evaluations = list(_read(output, EVALUATIONS)) if (output / EVALUATIONS).exists() else []

    above, middle, below = figure.subplots(3, sharex=True)
    above.plot(*_means(steps[:, [0, 1]]).T, linewidth=1)
    above.set_ylabel("training loss (nats a word)")
    shown = "perplexity" if any("joint_perplexity" in entry for entry in evaluations) else "loss"
    for which in ("forward", "backward", "joint"):
        points = [(entry["step"], _number(entry.get(f"{which}_{shown}"))) for entry in evaluations]
        if points:
            middle.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1, label=which)
    middle.set_ylabel(f"dev {shown}")
    if evaluations:
        middle.legend()
        if shown == "perplexity":
            middle.set_yscale("log")
    below.plot(*_means(steps[:, [0, 2]]).T, linewidth=1)
    below.set_ylabel("learning rate")
    below.set_xlabel("steps")
    for axes in (above, middle, below):
        axes.grid(alpha=0.3)

    paths = [output / name for name in CURVES]
    try:
        for path in paths:
            with replacing(path.resolve()) as new:  # a link stays
                new.write_bytes(picture(figure, path.suffix[1:]))
    except (OSError, WeightsError) as error:
        raise PretrainingError(f"cannot write {path}: {error}") from error
    return paths


def _read(output: Path, name: str = LOSSES) -> Iterator[dict[str, Any]]:
    """The lines of a run's file of losses or evaluations. A last line without an end is being written."""
    path = output / name
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    entry = json.loads(line)
                    if not isinstance(entry, dict) or not isinstance(entry.get("step"), int):
                        raise ValueError(f"not a line of a run: {line[:60]!r}")
                    yield entry
    except FileNotFoundError:
        raise PretrainingError(f"{output}: holds no run of `elmo pretrain`: it has no {name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PretrainingError(f"{path}: cannot be read: {error}") from error


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan


def _means(points: np.ndarray) -> np.ndarray:
    """(n, 2) of at most `POINTS`: means of neighbours; what is not finite does not count, and alone leaves a gap."""

    def means() -> Iterator[tuple[float, float]]:
        for part in np.array_split(points, min(len(points), POINTS)):
            values = part[np.isfinite(part[:, 1]), 1]
            yield part[:, 0].mean(), values.mean() if len(values) else math.nan

    return np.array(list(means()))
