"""What becomes of a run whose evaluation is broken off: by a signal, a kill, an error, or its own figures."""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
from torch import Tensor

from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.checkpoint import load_checkpoint
from spacy_elmo.pretraining.loop import PretrainingResult, pretrain

from .conftest import MakeConfig
from .processes import on_ranks

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="no fork, no SIGKILL")

EVERY, STEPS = 4, 12


class Watched(FullSoftmax):
    """A softmax to which something happens in the first half of an evaluation."""

    def __init__(self, n_words: int, width: int, how: str, evaluation: int) -> None:
        super().__init__(n_words, width)
        self.how, self.evaluation = how, evaluation
        self.calls = 0

    def target_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        losses = super().target_losses(hidden, targets)
        # Two calls an evaluation, one a direction: the dev text is one batch.
        number, self.calls = self.calls, self.calls + 1
        if number != 2 * self.evaluation:
            return losses
        if self.how == "signal":
            signal.raise_signal(signal.SIGTERM)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "memory":
            raise MemoryError
        return losses * math.nan if self.how == "nan" else losses


@spacy.registry.misc("test.watched_softmax.v1")
def watched_softmax(how: str, evaluation: int) -> Callable[[int, int], FullSoftmax]:
    return lambda n_words, width: Watched(n_words, width, how, evaluation)


@pytest.fixture
def evaluating(toy_config: MakeConfig) -> MakeConfig:
    """A run with evaluations at steps 0, 4, 8 and 12, where checkpoints are due too."""

    def make(how: str = "", evaluation: int = 0, **overrides: Any) -> Any:
        options = {
            "objective": {"@misc": "test.watched_softmax.v1", "how": how, "evaluation": evaluation},
            "training__max_steps": STEPS,
            "training__eval_frequency": EVERY,
            "training__checkpoint_frequency": EVERY,
            "training__eval_tokens": 200,
        }
        return toy_config(**{**options, **overrides})

    return make


def train(config: Any, output: Path, resume: bool = False) -> tuple[PretrainingResult, str]:
    stdout = io.StringIO()
    result = pretrain(config, output, resume=resume, stdout=stdout, stderr=io.StringIO())
    return result, stdout.getvalue()


def checkpoints(output: Path) -> list[str]:
    return sorted(path.name for path in (output / "checkpoints").iterdir())


def check_same(one: Path, other: Path) -> None:
    """All that a run leaves is the same to the byte."""
    last = f"checkpoints/step-{STEPS:06d}"
    files = ["losses.jsonl", "evaluations.jsonl", f"{last}/tensors.safetensors"]
    for folder in ("model-best", "model-last"):
        files += [f"{folder}/model.safetensors", f"{folder}/softmax.safetensors"]
    for name in files:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    records = [load_checkpoint(output / last).record for output in (one, other)]
    for key in ("best", "evaluations", "progress", "learn_rate"):
        assert records[0][key] == records[1][key]


def steps_evaluated(output: Path) -> list[int]:
    file = output / "evaluations.jsonl"
    lines = file.read_text(encoding="utf8").splitlines() if file.exists() else []
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.parametrize("evaluation", [0, 1, 3])
def test_a_signal_breaks_it_off_and_the_resumed_run_is_as_if_there_had_been_none(
    evaluating: MakeConfig, tmp_path: Path, evaluation: int
) -> None:
    whole, _ = train(evaluating(), tmp_path / "whole")
    output, at = tmp_path / "out", EVERY * evaluation
    stopped, text = train(evaluating(how="signal", evaluation=evaluation), output)
    assert (stopped.step, stopped.stopped_by) == (at, signal.SIGTERM)
    assert f"Stopped by signal 15 at step {at}: go on with --resume" in text
    assert steps_evaluated(output) == list(range(0, at, EVERY))
    assert load_checkpoint(output / "checkpoints" / f"step-{at:06d}").step == at
    resumed, text = train(evaluating(), output, resume=True)
    assert f"Resuming at step {at}" in text
    assert "Nothing to do" not in text  # though all steps may be done
    assert resumed == whole
    check_same(output, tmp_path / "whole")


@pytest.mark.slow
@needs_fork
def test_two_processes_stop_too(evaluating: MakeConfig, tmp_path: Path) -> None:
    results = on_ranks(2, train, evaluating(how="signal", evaluation=1), tmp_path / "out")
    assert [(result.step, result.stopped_by) for result, _ in results] == [(EVERY, signal.SIGTERM)] * 2
    assert steps_evaluated(tmp_path / "out") == [0]
    for result, _ in on_ranks(2, train, evaluating(), tmp_path / "out", True):
        assert result.step == STEPS
    on_ranks(2, train, evaluating(), tmp_path / "whole")
    check_same(tmp_path / "out", tmp_path / "whole")


@needs_fork
@pytest.mark.parametrize("evaluation", [1, 2, 3])
def test_a_kill_loses_no_step(evaluating: MakeConfig, tmp_path: Path, evaluation: int) -> None:
    whole, _ = train(evaluating(), tmp_path / "whole")
    output, at = tmp_path / "out", EVERY * evaluation
    config = evaluating(how="kill", evaluation=evaluation)
    process = multiprocessing.get_context("fork").Process(target=train, args=(config, output))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    resumed, text = train(evaluating(), output, resume=True)
    assert f"Resuming at step {at}" in text
    assert resumed == whole
    check_same(output, tmp_path / "whole")


def test_an_error_loses_no_step_and_the_checkpoint_before_waits(evaluating: MakeConfig, tmp_path: Path) -> None:
    train(evaluating(training__keep=1), tmp_path / "whole")
    output = tmp_path / "out"
    with pytest.raises(PretrainingError, match=r"out of memory.*The last good state is kept in .*step-000008$"):
        train(evaluating(how="memory", evaluation=2, training__keep=1), output)
    assert checkpoints(output) == ["step-000004", "step-000008"]
    train(evaluating(training__keep=1), output, resume=True)
    assert checkpoints(output) == ["step-000012"]
    check_same(output, tmp_path / "whole")


def test_figures_that_are_not_finite_name_the_last_good_checkpoint_and_the_bad_one(
    evaluating: MakeConfig, tmp_path: Path
) -> None:
    train(evaluating(), tmp_path / "whole")
    output = tmp_path / "out"
    with pytest.raises(
        PretrainingError,
        match=r"the dev perplexity at step 8 is not finite\. The last good state is kept in .*step-000004\. "
        r"Move .*step-000008, which is not good, away before you resume",
    ):
        train(evaluating(how="nan", evaluation=2, training__keep=1), output)
    (output / "checkpoints" / "step-000008").rename(tmp_path / "away")
    _, text = train(evaluating(), output, resume=True)
    assert "Resuming at step 4" in text
    check_same(output, tmp_path / "whole")


def test_there_may_be_no_good_one(evaluating: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(PretrainingError, match=r"There was no checkpoint yet\. Move .*step-000004"):
        train(evaluating(how="nan", evaluation=1), tmp_path)


def test_an_evaluation_is_not_done_twice(evaluating: MakeConfig, tmp_path: Path) -> None:
    train(evaluating(training__max_steps=8), tmp_path)
    assert steps_evaluated(tmp_path) == [0, 4, 8]
    _, text = train(evaluating(training__max_steps=8), tmp_path, resume=True)
    assert "Nothing to do: 8 of 8 steps are done" in text
