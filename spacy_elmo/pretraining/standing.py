"""Where a run stands: at its beginning, or as a checkpoint has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..bilm.model import BiLMState
from .checkpoint import Checkpoint, restore
from .config import TrainingSettings
from .earlier import Earlier
from .initialize import InitialWeights
from .output import LOSSES
from .perplexity import Evaluation
from .start import Parts


@dataclass(kw_only=True)
class Standing:
    """What a run has come to, beside the numbers that it trains.

    step (int): updates done. seconds (float): spent on them.
    best (dict): "score" and "step" of the best evaluation (step: None before one), "stale": how many came after it.
    info (dict | None): the last evaluation, as loggers get it.
    evaluations (list): the figures of all of them.
    initial (dict | None): the weights that the run went on from, and their scores.
    """

    step: int = 0
    seconds: float = 0.0
    best: dict[str, Any] = field(default_factory=lambda: {"score": -1e9, "step": None})
    info: dict[str, Any] | None = None
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    initial: dict[str, Any] | None = None

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Standing:
        """Where the run stood when the checkpoint was written."""
        record = checkpoint.record
        return cls(
            step=checkpoint.step,
            seconds=record["seconds"],
            best=record["best"],
            info=record["info"],
            evaluations=record.get("evaluations", []),
            initial=record.get("initial"),
        )

    @property
    def dev(self) -> Evaluation | None:
        """The last evaluation."""
        return None if self.info is None else Evaluation.from_scores(self.info["other_scores"])

    def is_over(self, training: TrainingSettings) -> bool:
        """Whether all steps are done, or it has ceased to get better."""
        return self.step >= training.max_steps or 0 < training.patience <= self.best.get("stale", 0)

    def evaluation_is_due(self, training: TrainingSettings) -> bool:
        """Whether to evaluate now: at the start, every so often, and at the end."""
        due = self.step % training.eval_frequency == 0 or self.step == training.max_steps
        return self.info is None or (due and self.info["step"] < self.step)

    def evaluated(self, score: float, scores: Mapping[str, Any]) -> None:
        """Keep the figures of an evaluation. score: of which more is better."""
        # The untrained model is measured, but is never the best one.
        if self.step > 0 and score > self.best["score"]:
            self.best = {"score": score, "step": self.step, "stale": 0}
        elif self.step > 0:
            self.best = {**self.best, "stale": self.best.get("stale", 0) + 1}
        if self.initial is not None and self.step == 0:
            self.initial = {**self.initial, "step_0": scores}
        self.evaluations.append({"step": self.step, "score": score, **scores})


def begin(
    parts: Parts, earlier: Earlier, weights: InitialWeights | None, *, resume: bool
) -> tuple[Standing, BiLMState]:
    """Put the parts where the earlier run stood, or measure what the run begins with.

    weights: those that it goes on from. resume: whether the user expects an earlier run.
    RETURNS: where the run stands, and the LSTMs' states of this rank's rows.
    Raises PretrainingError for a checkpoint that does not fit the parts, or is of other weights.
    """
    task, checkpoint = parts.task, earlier.checkpoint
    ranks = task.ranks
    # Dropout; all else has generators of its own.
    torch.manual_seed(ranks.seed(task.settings.system.seed, checkpoint.step if checkpoint is not None else 0))
    if checkpoint is None:
        if resume:
            task.say(f"No checkpoint in {task.output}: starting at the beginning")
        standing = Standing()
        if weights is not None:
            own = ranks.agreed(weights.own_perplexity(parts.sentences, task.device) if ranks.first else None)
            standing.initial = {"weights": weights.source, "own": None if own is None else own.scores()}
        return standing, parts.bilm.zero_state(task.training.step_rows).rows(task.own_rows)
    state = restore(checkpoint, bilm=parts.bilm, softmax=parts.softmax, optimizer=parts.optimizer, ranks=ranks)
    standing = Standing.of(checkpoint)
    if weights is not None:
        weights.check(standing.initial)
    task.say(f"Resuming at step {standing.step}")
    now, before = task.training.precision, checkpoint.record.get("precision")
    if before not in (None, now):  # nothing of the versions that did not store it
        task.say(
            f"The steps before were made in {before}, those from here on are made in {now} (training.precision): "
            f"--training.precision {before} goes on as it was"
        )
    if standing.step and not earlier.losses:
        task.say(f"There is no {LOSSES} of the steps before: it begins here")
    return standing, state.rows(task.own_rows)
