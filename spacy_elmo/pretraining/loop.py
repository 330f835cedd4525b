"""The pretraining loop, from config to model folders. It reads top to bottom; its parts lie in the files beside."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from thinc.api import Config

from ..errors import PretrainingError
from .curve import draw_curve
from .devices import torch_state
from .distributed import joined_ranks
from .earlier import Earlier, earlier_run
from .initialize import comparison
from .memory import out_of_memory_explained
from .output import BEST, LAST, check_output, last_good_state, own_output
from .perplexity import Evaluation
from .precision import onednn_products
from .run import Run
from .signals import stop_signals
from .standing import Standing, begin
from .start import Parts, Task, make_parts, make_task, read_corpora
from .warm import check_warm, store_start_states


@dataclass(frozen=True, kw_only=True)
class PretrainingResult:
    """How a run ended.

    step (int): updates done, those before a resume included.
    dev (Evaluation | None): perplexity or loss of the last evaluation; None if there was none (dry run).
    best_step (int | None): the step of the model in ``model-best``.
    stopped_by (int | None): the signal that stopped the run early.
    stopped_early (bool): whether it ended before ``max_steps`` because it had ceased to get better.
    """

    step: int
    dev: Evaluation | None = None
    best_step: int | None = None
    stopped_by: int | None = None
    stopped_early: bool = False


def pretrain(
    config: Config,
    output: Path | str,
    *,
    resume: bool = False,
    dry_run: bool = False,
    command: str | None = None,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
) -> PretrainingResult:
    """Pretrain a biLM as a config says.

    Writes ``model-best``, ``model-last``, ``checkpoints``, ``losses.jsonl`` (one line a step), ``evaluations.jsonl``
    and, where matplotlib is installed, ``training_curve.svg`` and ``.png`` into ``output``. Where ``torchrun`` started
    several processes each calls it, and trains on rows of its own; the first writes and prints.

    config: see ``load_config``.
    resume (bool): go on from the checkpoint in ``output``; without one, start at the beginning.
    dry_run (bool): encode the corpora, print the plan, and stop.
    command (str | None): the command line, for the model's card.
    Raises PretrainingError (wrong config; ``output`` in use, not to be written or with files of others; a resume that
    would not continue the run; a loss that is not finite; out of memory or disk), CorpusError for text that cannot be
    read. SIGINT and SIGTERM save a checkpoint and end the run without an error, also in the midst of an evaluation.
    """
    stdout, stderr = stdout or sys.stdout, stderr or sys.stderr
    output = Path(output)
    with ExitStack() as stack:
        ranks = stack.enter_context(joined_ranks())
        if not ranks.first:
            stdout = stderr = stack.enter_context(open(os.devnull, "w"))
        # Refuse what cannot work before the text is read.
        task, weights = make_task(config, ranks=ranks, output=output, command=command, stdout=stdout, stderr=stderr)
        earlier = Earlier()
        if not dry_run:
            if ranks.first:
                stack.enter_context(own_output(output))
                check_output(output, resume=resume)
            earlier = earlier_run(task)

        stack.enter_context(torch_state(task.training.threads, task.device))
        corpora = read_corpora(task)
        earlier.check_text(task, corpora)
        if task.training.start_state == "warm":
            check_warm(corpora.train)

        stack.enter_context(out_of_memory_explained(task.config, partial(last_good_state, output)))
        parts = make_parts(task, corpora, weights)
        products = stack.enter_context(onednn_products(task.training.onednn and task.device.type == "cpu"))
        task.say(parts.plan(products))
        if dry_run:
            return PretrainingResult(step=0)

        standing, state = begin(parts, earlier, weights, resume=resume)
        del weights  # their memory
        if standing.is_over(task.training) and not standing.evaluation_is_due(task.training):
            task.say(f"Nothing to do: {standing.step} of {task.training.max_steps} steps are done")
            return _finished(parts, standing)
        run = Run(parts, standing, state, earlier.checkpoint)
        stack.enter_context(run.writing(earlier.losses))
        signals = stack.enter_context(stop_signals(ranks))
        del earlier, state
        stopped_by = _train(run, signals)
        return _stopped(task, standing, stopped_by) if stopped_by else _finished(parts, standing)


def _train(run: Run, signals: Sequence[int]) -> int:
    """Do steps until the run is over. signals: those received so far. RETURNS: the one that stopped it, 0 if none."""
    standing, task = run.standing, run.parts.task
    run.log_resumed()
    while True:
        stopped_by = task.ranks.largest(signals[:1] or [0])[0]
        if stopped_by:
            run.save_checkpoint()
            task.say(f"Stopped by signal {stopped_by} at step {standing.step}: go on with --resume")
            return stopped_by
        # Before an evaluation, which takes long and can fail. Whoever resumes from here evaluates first.
        if run.checkpoint_is_due:
            run.save_checkpoint()
        if standing.evaluation_is_due(task.training) and not run.evaluate(signals):
            continue  # a signal broke it off
        if standing.is_over(task.training):
            run.save_checkpoint()
            if standing.step < task.training.max_steps:
                best = standing.best
                task.say(
                    f"Stopped early at step {standing.step}: {best['stale']} evaluations without a better one than "
                    f"step {best['step']}'s"
                )
            return 0
        run.take_step()


def _stopped(task: Task, standing: Standing, stopped_by: int) -> PretrainingResult:
    """The result of a run that will go on another time."""
    _draw(task)
    return PretrainingResult(
        step=standing.step, dev=standing.dev, best_step=standing.best["step"], stopped_by=stopped_by
    )


def _finished(parts: Parts, standing: Standing) -> PretrainingResult:
    """Give the models their start states, say what was gained, draw the curve: all that comes after the last step."""
    task, best_step = parts.task, standing.best["step"]
    if task.ranks.first and task.training.start_state == "warm":
        store_start_states(
            [task.output / name for name in (LAST, BEST)],
            parts.whole_stream(),
            parts.corpora.train.types,
            parts.sentences,
            settings=task.settings,
            device=task.device,
            stdout=task.stdout,
        )
    if standing.initial is not None and standing.info is not None:
        scores = {entry["step"]: entry for entry in standing.evaluations}
        task.say(comparison(standing.initial, scores[standing.info["step"]], scores.get(best_step)))
    _draw(task)
    return PretrainingResult(
        step=standing.step,
        dev=standing.dev,
        best_step=best_step,
        stopped_early=standing.step < task.training.max_steps,
    )


def _draw(task: Task) -> None:
    """Draw the training curve; where that cannot be done a line says why, and that is all."""
    if not task.ranks.first:
        return
    try:
        draw_curve(task.output)
    except PretrainingError as error:
        print(f"No picture of the training curve: {error}", file=task.stderr, flush=True)
