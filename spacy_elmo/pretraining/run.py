"""A run under way: its steps, and all that it measures, writes and saves between them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from spacy import Language
from thinc.api import Config

from ..bilm.model import BiLMState
from ..errors import ElmoError, PretrainingError
from ..weights.native import save_native, save_softmax
from ..weights.vocabulary import save_vocabulary
from .card import model_meta, save_card
from .checkpoint import Checkpoint, keep_newest, replaced_folder, save_checkpoint, step_folder
from .config import nlp_settings
from .loggers import LogStep
from .output import BEST, CHECKPOINTS, EVALUATIONS, LAST, LOSSES, LossesFile, last_good_state, write_evaluations
from .perplexity import Evaluation, evaluate
from .standing import Standing
from .start import Parts
from .step import TrainingStep
from .texts import pipeline


class Run:
    """A run of which steps are to be done: its parts, where it stands, and what it says of itself.

    On all ranks the same is called in the same order; the first one measures, writes and logs.

    parts: as `begin` left them. standing: is kept up to date. state: the LSTMs', of this rank's rows.
    checkpoint: the one that the run goes on from.
    Raises PretrainingError if it does not fit.
    """

    def __init__(self, parts: Parts, standing: Standing, state: BiLMState, checkpoint: Checkpoint | None) -> None:
        self.parts = parts
        self.standing = standing
        self._task = parts.task
        self._state = state
        self._step = TrainingStep(
            bilm=parts.bilm,
            softmax=parts.softmax,
            optimizer=parts.optimizer,
            types=parts.corpora.train.types,
            settings=parts.task.training,
            ranks=parts.task.ranks,
        )
        if checkpoint is not None:
            self._step.restore(checkpoint)
        # What the newest checkpoint holds: steps and evaluations.
        self._saved = self._done if checkpoint is not None else (0, -1)
        self._log: LogStep = _no_log
        self._losses: LossesFile | None = None
        # Since the last evaluation.
        self._recent: list[float] = []
        self._recent_seconds = 0.0
        # Of the last update: an evaluation may come before the next one.
        self._learn_rate: float | None = checkpoint.record.get("learn_rate") if checkpoint is not None else None

    @contextmanager
    def writing(self, losses: bytes) -> Iterator[None]:
        """Have the file of losses and the logger open while the block lasts. losses: the file's lines so far."""
        task = self._task
        if not task.ranks.first:
            yield
            return
        with closing(LossesFile(task.output / LOSSES, losses)) as self._losses:
            with self._logger_may_fail():
                self._log, finish_log = task.settings.logger(_nlp_of(task.config), task.stdout, task.stderr)
            try:
                yield
            except BaseException:
                with suppress(Exception):  # says nothing as important
                    finish_log()
                raise
            with self._logger_may_fail():
                finish_log()

    def log_resumed(self) -> None:
        """Tell the logger of the evaluation before, if the run goes on after one."""
        if self.standing.info is not None:
            self._tell_logger({**self.standing.info, "resumed_at": self.standing.step})

    def _tell_logger(self, info: dict[str, Any] | None) -> None:
        with self._logger_may_fail():
            self._log(info)

    @contextmanager
    def _logger_may_fail(self) -> Iterator[None]:
        """Loggers may be anybody's. Raises PretrainingError for whatever they raise."""
        try:
            yield
        except ElmoError:
            raise
        except Exception as error:
            raise PretrainingError(
                f"the logger failed: {type(error).__name__}: {error}. {last_good_state(self._task.output)}"
            ) from error

    def evaluate(self, signals: Sequence[int]) -> bool:
        """Measure the dev text; keep, write and log the figures; save the model that has them, once it has learnt.

        signals: those received so far. One to the first rank breaks it off, and nothing is changed.
        RETURNS: whether it was done. Raises PretrainingError for figures that are not finite.
        """
        parts, at, ranks = self.parts, self.standing, self._task.ranks
        sentences = parts.sentences

        def go_on() -> None:
            if signals:
                raise _SignalReceived

        started = time.perf_counter()
        dev: Evaluation | None = None
        if ranks.first:
            with suppress(_SignalReceived):
                dev = evaluate(*self._step.shown, parts.targets, sentences, between=go_on)
        # The first rank measures, and from its figures all decide alike.
        dev = ranks.agreed(dev)
        if dev is None:
            return False
        evaluating = time.perf_counter() - started
        if not math.isfinite(dev.joint):
            kept = last_good_state(self._task.output, before=at.step)
            raise PretrainingError(f"the dev {dev.name} at step {at.step} is not finite. {kept}")
        self._remove_old_checkpoints()
        self._step.evaluated(dev.score)
        scores = dev.scores()
        if self._learn_rate is not None:
            scores["learn_rate"] = self._learn_rate
        at.evaluated(dev.score, scores)
        if ranks.first:
            write_evaluations(self._task.output / EVALUATIONS, at.evaluations)
        at.info = self._info(dev.score, scores, evaluating)
        self._tell_logger(at.info)
        self._recent, self._recent_seconds = [], 0.0
        if at.step > 0:
            self._save_model(LAST)
            if at.best["step"] == at.step:
                self._save_model(BEST)
        return True

    def _info(self, score: float, scores: Mapping[str, Any], evaluating: float) -> dict[str, Any]:
        """What a logger hears of an evaluation. evaluating: the seconds that it took."""
        at, training, recent = self.standing, self._task.training, self._recent
        tokens_per_step = training.step_rows * training.unroll_steps
        speed, seconds_left = 0.0, None
        if recent:
            speed = len(recent) * tokens_per_step / self._recent_seconds
            # What is left: steps, and the evaluations between them.
            steps = training.max_steps - at.step
            evaluations = math.ceil(steps / training.eval_frequency)
            seconds_left = steps * self._recent_seconds / len(recent) + evaluations * evaluating
        return {
            "epoch": at.step // self.parts.stream.steps_per_epoch,
            "step": at.step,
            "score": score,
            "losses": {"bilm": math.fsum(recent) / len(recent)} if recent else {},
            "other_scores": {**scores, "tokens_per_second": speed},
            "checkpoints": [(at.best["score"], at.best["step"])],
            "seconds": int(at.seconds),
            "seconds_left": seconds_left,
            "words": at.step * tokens_per_step,
            # Loggers of MLflow load what they find there as a pipeline of spaCy, which these models are not.
            "output_path": None,
        }

    def take_step(self) -> None:
        """Do the next step, write its loss, and say what was odd about it.

        Raises PretrainingError for a loss that is not finite, if that is to end the run.
        """
        at, task = self.standing, self._task
        started = time.perf_counter()
        try:
            result = self._step(self.parts.stream.window(at.step), self._state, at.step)
        except PretrainingError as error:
            raise PretrainingError(f"{error}. {last_good_state(task.output)}") from error
        self._state = result.state
        at.step += 1
        spent = time.perf_counter() - started
        at.seconds += spent
        self._recent_seconds += spent
        if result.learn_rate is not None:
            self._learn_rate = result.learn_rate
        if result.skipped is None:
            self._recent.append(result.loss)
        if self._losses is not None:
            self._losses.write({"step": at.step, **result.entry()})
        if result.note:
            task.say(f"Step {at.step}: {result.note}")
        self._tell_logger(None)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether the time has come to save all."""
        step = self.standing.step
        return step % self._task.training.checkpoint_frequency == 0 and step > self._saved[0]

    @property
    def _done(self) -> tuple[int, int]:
        return self.standing.step, len(self.standing.evaluations)

    def save_checkpoint(self) -> None:
        """Save all that the run needs to go on from here, and remove what is too old.

        Where an evaluation is to come nothing is removed yet: figures that are not finite say that this one is bad.
        """
        parts, at, task = self.parts, self.standing, self._task
        if self._saved == self._done:
            return  # before an evaluation that a signal broke off
        if self._losses is not None:
            self._losses.sync()
        save_checkpoint(
            step_folder(task.output / CHECKPOINTS, at.step),
            step=at.step,
            bilm=parts.bilm,
            softmax=parts.softmax,
            optimizer=parts.optimizer,
            state=self._state,
            record={
                "best": at.best,
                "info": at.info,
                "seconds": at.seconds,
                "corpora": parts.corpora.hashes,
                "config": task.config,
                "progress": self._step.record(),
                "precision": task.training.precision,
                "learn_rate": self._learn_rate,
                "evaluations": at.evaluations,
                "initial": at.initial,
            },
            more=self._step.tensors(),
            ranks=task.ranks,
        )
        self._saved = self._done
        if not at.evaluation_is_due(task.training):
            self._remove_old_checkpoints()

    def _remove_old_checkpoints(self) -> None:
        task = self._task
        folder = task.output / CHECKPOINTS
        if task.ranks.first and folder.is_dir():
            keep_newest(folder, self.standing.step, task.training.keep)

    def _save_model(self, name: str) -> None:
        """Save the model to a folder in the output folder."""
        parts, at, task = self.parts, self.standing, self._task
        if not task.ranks.first:
            return
        meta = model_meta(
            task.settings,
            task.config,
            parts.corpora,
            parts.bilm,
            info=at.info,
            seconds=at.seconds,
            initial=at.initial,
            command=task.command,
            processes=task.ranks.size,
        )
        bilm, softmax = self._step.shown
        with replaced_folder(task.output / name) as new:
            save_native(bilm, new)
            save_softmax(softmax, new)
            save_vocabulary(parts.corpora.vocabulary.words, new / "vocabulary.txt")
            task.config.to_disk(new / "pretrain.cfg")
            save_card(new, meta, task.config)


def _nlp_of(config: Config) -> Language:
    """A blank pipeline whose config holds the run's, where loggers look for it.

    spaCy's and spacy-loggers' ones read max_steps, eval_frequency and score_weights (columns that spaCy multiplies
    by 100: none of ours).
    """
    nlp = pipeline(nlp_settings(config["nlp"]))
    merged = nlp.config
    for name, section in config.items():
        if name == "nlp":
            continue  # spaCy's own section has more in it, and other things by the same names
        merged[name] = {**merged.get(name, {}), **section}
    merged["training"]["score_weights"] = {}
    nlp.config = merged
    return nlp


class _SignalReceived(Exception):
    """Breaks off an evaluation."""


def _no_log(info: dict[str, Any] | None) -> None:
    """The logger of all ranks but the first."""
