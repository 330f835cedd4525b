"""What becomes of a run when a loss or a gradient is not finite: ``training.non_finite``."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.checkpoint import load_checkpoint, restore, save_checkpoint
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.optimizers import adagrad, adamw
from spacy_elmo.pretraining.step import StepResult

from .breaking import Breaking, same_weights
from .conftest import MakeConfig
from .test_checkpoint import RECORD
from .test_step import ROWS, WORDS, parts, training_step, window


def steps(
    numbers: list[int], times: dict[int, int] | None = None, what: str = "loss", optimizer: Any = None, **settings: Any
) -> tuple[Any, list[StepResult]]:
    """Steps of these numbers, one after the other."""
    bilm, _ = parts()
    softmax = Breaking(WORDS, 4, times or {}, what)
    softmax.initialize(1)
    step, _ = training_step(bilm, softmax, optimizer or adagrad(0.2), **settings)
    state, results = bilm.zero_state(ROWS), []
    for number in numbers:
        results.append(step(window(number), state, number))
        state = results[-1].state
    return step, results


@pytest.mark.parametrize("optimizer", [adagrad(), adamw()], ids=["adagrad", "adamw"])
@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_skipped_window_is_as_if_it_had_not_been_there(what: str, optimizer: Any) -> None:
    options = {"reset": None, "ema": 0.5, "optimizer": optimizer}
    step, results = steps([0, 1, 2], {1: 1}, what, non_finite="skip", **options)
    reference, expected = steps([0, 2], **options)
    assert same_weights(step.bilm, reference.bilm)
    assert same_weights(step.softmax, reference.softmax)
    assert [result.skipped for result in results] == [None, what, None]
    assert results[2].forward == expected[1].forward  # the LSTMs too stood where they had stood
    assert (step.progress.skipped, step.progress.in_row) == (1, 0)
    entry = results[1].entry()
    assert entry["skipped"] == what
    assert (entry["forward"] is None) == (what == "loss")
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry


@pytest.mark.parametrize("make", [adagrad, adamw])
@pytest.mark.parametrize("times", [1, 3])
def test_halving_goes_back_an_update_and_reads_the_window_again(make: Any, times: int) -> None:
    step, results = steps([0, 1, 2, 3], {2: times}, optimizer=make(0.2), non_finite="halve", reset=None, ema=0.5)
    # By hand: the update of step 1 is left out, but the LSTMs have read its window; then the rate is lower.
    bilm, _ = parts()
    softmax = Breaking(WORDS, 4, {})
    softmax.initialize(1)
    reference, optimizer = training_step(bilm, softmax, make(0.2), reset=None, ema=0.5)
    state = reference(window(0), bilm.zero_state(ROWS), 0).state
    state = reference._losses(window(1), state, 1)[2]
    reference._peaks = [peak * 0.5**times for peak in reference._peaks]
    for number in (2, 3):
        state = reference(window(number), state, number).state
    assert same_weights(step.bilm, bilm)
    assert same_weights(step.softmax, softmax)
    assert all(same_weights(one, other) for one, other in zip(step.shown, reference.shown, strict=True))
    assert [group["lr"] for group in step.optimizer.param_groups] == [group["lr"] for group in optimizer.param_groups]
    assert [result.halved for result in results] == [0, 0, times, 0]
    assert step.progress.halved == times
    assert results[2].entry()["halved"] == times
    assert "halved" not in results[3].entry()


def test_the_first_step_can_be_tried_again_though_there_is_nothing_to_go_back_to() -> None:
    step, results = steps([0], {0: 2}, optimizer=adamw(0.4), non_finite="halve")
    reference, _ = steps([0], optimizer=adamw(0.1))
    assert same_weights(step.bilm, reference.bilm)
    assert results[0].halved == 2


@pytest.mark.parametrize("how", ["skip", "halve"])
def test_after_so_many_in_a_row_it_is_an_error(how: str) -> None:
    in_row = {1: 4} if how == "halve" else dict.fromkeys((1, 2, 3, 4), 1)
    with pytest.raises(
        PretrainingError, match=r"the loss at step \d is nan, after 3 attempts in a row .*non_finite_limit"
    ):
        steps([0, 1, 2, 3, 4], in_row, non_finite=how, non_finite_limit=3)
    # With a good one between them there is no end to it.
    in_row = {number: 3 for number in (1, 3)} if how == "halve" else dict.fromkeys((0, 1, 2, 4, 5, 6), 1)
    step, _ = steps(list(range(8)), in_row, non_finite=how, non_finite_limit=3)
    assert step.progress.halved + step.progress.skipped == 6


@pytest.mark.parametrize("make", [adagrad, adamw])
def test_what_it_goes_back_to_is_in_the_checkpoint(make: Any, tmp_path: Path) -> None:
    options = {"optimizer": make(0.2), "non_finite": "halve", "ema": 0.5}
    whole, _ = steps([0, 1, 2, 3], {2: 1}, **options)
    step, results = steps([0, 1], {2: 1}, **options)
    save_checkpoint(
        tmp_path / "c",
        step=2,
        bilm=step.bilm,
        softmax=step.softmax,
        optimizer=step.optimizer,
        state=results[-1].state,
        record={**RECORD, "progress": step.record()},
        more=step.tensors(),
    )
    checkpoint = load_checkpoint(tmp_path / "c")
    assert checkpoint is not None
    other, _ = steps([], {2: 1}, **options)
    state = restore(checkpoint, bilm=other.bilm, softmax=other.softmax, optimizer=other.optimizer)
    other.restore(checkpoint)
    for number in (2, 3):
        state = other(window(number), state, number).state
    assert same_weights(other.bilm, whole.bilm)
    assert same_weights(other.softmax, whole.softmax)
    assert all(same_weights(one, two) for one, two in zip(other.shown, whole.shown, strict=True))
    assert other.record() == whole.record()
    del checkpoint.tensors["undo_weights/3"]
    with pytest.raises(PretrainingError, match="does not fit the config, or is damaged"):
        other.restore(checkpoint)


def run(config: Any, output: Path, **kwargs: Any) -> tuple[list[dict[str, Any]], str]:
    stdout = io.StringIO()
    pretrain(config, output, stdout=stdout, stderr=io.StringIO(), **kwargs)
    lines = (output / "losses.jsonl").read_text(encoding="utf8").splitlines()
    return [json.loads(line) for line in lines], stdout.getvalue()


@pytest.mark.parametrize("how", ["skip", "halve"])
def test_a_run_records_it_and_ends_well(toy_config: MakeConfig, tmp_path: Path, how: str) -> None:
    objective = {"@misc": "test.breaking_at.v1", "steps": [3, 5, 5] if how == "halve" else [3, 5]}
    losses, text = run(
        toy_config(objective=objective, training__max_steps=8, training__non_finite=how), tmp_path / "out"
    )
    assert [entry["step"] for entry in losses] == list(range(1, 9))
    if how == "skip":
        assert [entry["step"] for entry in losses if "skipped" in entry] == [4, 6]
        assert losses[3]["loss"] is None
        assert "Step 4: the loss was not finite: no update" in text
    else:
        assert {entry["step"]: entry["halved"] for entry in losses if "halved" in entry} == {4: 1, 6: 2}
        assert all(math.isfinite(entry["loss"]) for entry in losses)
        assert "Step 6: not finite: the update before was taken back, the learning rate halved 2 times" in text
