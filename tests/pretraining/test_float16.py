"""``training.precision = "float16"``: on a GPU in use, on the CPU to be tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.checkpoint import Checkpoint
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.optimizers import adagrad, adamw

from .breaking import Breaking
from .conftest import MakeConfig
from .test_step import ROWS, parts, training_step, window


def losses(precision: str, device: str = "cpu", objective: str = "sampled", **options: Any) -> list[float]:
    bilm, softmax = parts(objective)
    bilm.to(device)
    softmax.to(device)
    step, _ = training_step(bilm, softmax, precision=precision, **options)
    state, found = bilm.zero_state(ROWS), []
    for number in range(4):
        result = step(window(number), state, number)
        state = result.state
        found += [result.forward, result.backward]
    assert {parameter.dtype for parameter in (*bilm.parameters(), *softmax.parameters())} == {torch.float32}
    return found


@pytest.mark.parametrize("objective", ["full", "sampled"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_it_is_near_float32(device: str, objective: str) -> None:
    wide = losses("float32", device, objective)
    narrow = losses("float16", device, objective)
    assert narrow != wide
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=3e-3)


def test_the_loss_scale_does_not_show_in_the_update() -> None:
    moved = []
    for scale in (1.0, 2.0**14):
        bilm, softmax = parts()
        step, _ = training_step(bilm, softmax, precision="float16", clip_norm=0.3)
        step._scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        assert step(window(), bilm.zero_state(ROWS), 0).skipped is None
        moved.append([parameter.detach().numpy() for parameter in (*bilm.parameters(), *softmax.parameters())])
    for one, other in zip(*moved, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-4)


@pytest.mark.parametrize("make", [adagrad, adamw])
def test_too_large_a_scale_is_lowered_step_by_step_without_an_update(make: Any) -> None:
    bilm, softmax = parts()
    step, optimizer = training_step(bilm, softmax, make(0.1), precision="float16", non_finite="stop")
    step._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    before = [parameter.detach().clone() for parameter in bilm.parameters()]
    state = bilm.zero_state(ROWS)
    result = step(window(), state, 0)
    assert result.skipped == "scale"
    assert result.entry()["skipped"] == "scale"
    assert result.note is not None
    assert "float16" in result.note
    assert all(torch.equal(p, old) for p, old in zip(bilm.parameters(), before, strict=True))
    assert all(float(values["step"]) == 0 for values in optimizer.state_dict()["state"].values())
    assert step._scaler.get_scale() == 2.0**119
    assert (step.progress.in_row, step.progress.skipped) == (0, 0)
    skipped = 1
    while result.skipped:
        result = step(window(), state, skipped)
        skipped += 1
    assert 20 < skipped < 120


def test_a_scale_of_1_has_no_part_in_it() -> None:
    bilm, _ = parts()
    softmax = Breaking(40, 4, {0: 1}, "gradient")
    step, _ = training_step(bilm, softmax, precision="float16")
    step._scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    with pytest.raises(PretrainingError, match="the gradient at step 1 is not finite"):
        step(window(), bilm.zero_state(ROWS), 0)


def test_the_scaler_goes_into_the_checkpoint() -> None:
    bilm, softmax = parts()
    step, _ = training_step(bilm, softmax, precision="float16")
    step._scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    state = bilm.zero_state(ROWS)
    for number in range(2):
        state = step(window(number), state, number).state
    record = json.loads(json.dumps({"progress": step.record()}))
    other, _ = training_step(*parts(), precision="float16")
    other.restore(Checkpoint(folder=Path(), step=2, tensors={}, record=record))
    assert other.record() == step.record()
    other(window(2), state, 2)
    assert other._scaler is not None
    assert other._scaler.get_scale() == 16.0  # the third good step in a row


def test_a_cpu_is_told_what_to_take(toy_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(PretrainingError, match="float16 is for GPUs: on the CPU take bfloat16"):
        pretrain(toy_config(training__precision="float16"), tmp_path / "out")
