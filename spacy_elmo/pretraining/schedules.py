"""The course of the learning rate, as a share of the optimizer's own, and what of it a checkpoint has to keep."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from ..errors import PretrainingError

if TYPE_CHECKING:
    from .config import TrainingSettings

SCHEDULES = ("cosine", "linear", "inverse_sqrt", "constant", "plateau")


def learn_rate_factor(step: int, *, max_steps: int, warmup_steps: int, schedule: str, end: float = 0.1) -> float:
    """The share of the peak learning rate at a step (from 0).

    A linear rise over ``warmup_steps`` to 1, then by ``schedule``; p is the share of the steps after it that are done:

        cosine        end + (1 - end) (1 + cos πp) / 2
        linear        1 - (1 - end) p
        inverse_sqrt  √(max(1, warmup_steps) / (step + 1)) (Vaswani et al., 2017)
        constant      1; plateau too, which is lowered by evaluations and not by steps
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "inverse_sqrt":
        return math.sqrt(max(1, warmup_steps) / (step + 1))
    if schedule in ("constant", "plateau"):
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
    left = 1.0 - progress if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return end + (1.0 - end) * left


class Progress(BaseModel):
    """What a run has gone through that decides how it goes on. It lies in the checkpoint.

    plateau (float): the share of the rate that the evaluations have left.
    best_score (float | None), stale (int): the best one so far, and evaluations since then without a better one.
    halved (int): times that the rate was halved because something was not finite.
    skipped (int): windows passed over because of that.
    in_row (int): attempts in a row, up to now, that came to nothing because of that.
    scaler (dict | None): the state of torch's GradScaler.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    plateau: float = Field(1.0, ge=0.0, allow_inf_nan=False)
    best_score: float | None = None
    stale: int = Field(0, ge=0)
    halved: int = Field(0, ge=0)
    skipped: int = Field(0, ge=0)
    in_row: int = Field(0, ge=0)
    scaler: dict[str, int | float] | None = None

    def evaluated(self, score: float, *, factor: float, patience: int) -> None:
        """The plateau schedule: after ``patience`` evaluations in a row, none of them better than the best one before,
        the rate is multiplied by ``factor``, and they are counted anew.
        """
        if self.best_score is None or score > self.best_score:
            self.best_score, self.stale = score, 0
            return
        self.stale += 1
        if self.stale >= patience:
            self.plateau, self.stale = self.plateau * factor, 0


class LearnRate:
    """The share of the optimizer's learning rate at each step of a run.

    settings: [training] of the config. A registered schedule, a generator, is asked for a value at each step.
    """

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._values: Iterator[float] | None = None if isinstance(settings.schedule, str) else settings.schedule
        self._value, self._next = 0.0, 0

    def __call__(self, step: int, progress: Progress) -> float:
        """The share at a step, counted from 0. Steps are asked for in rising order; one may be asked for again.

        Raises PretrainingError where a registered schedule has ended, or gives no rate.
        """
        settings = self._settings
        if self._values is None:
            factor = learn_rate_factor(
                step,
                max_steps=settings.max_steps,
                warmup_steps=settings.warmup_steps,
                schedule=settings.schedule,
                end=settings.learn_rate_end,
            )
        else:
            factor = self._generated(step)
        return factor * progress.plateau * 0.5**progress.halved

    def _generated(self, step: int) -> float:
        assert self._values is not None
        while self._next <= step:  # a resumed run passes over what it has had
            try:
                self._value = float(next(self._values))
            except StopIteration:
                raise PretrainingError(
                    f"training.schedule ended after {self._next} steps, before step {step + 1}"
                ) from None
            self._next += 1
        if not (self._value >= 0.0 and math.isfinite(self._value)):
            raise PretrainingError(f"training.schedule gives {self._value} at step {step + 1}: it must be 0 or more")
        return self._value
