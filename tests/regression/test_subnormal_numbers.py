"""A forget gate that is shut (a row that starts afresh) was 1.6e-38, not 0. Times that, cells and gradients were
subnormal, which Intel's processors multiply several times as slowly: training in float32 took half as long again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from spacy_elmo.bilm import BiLMConfig, cell
from spacy_elmo.bilm.lstm import LSTMLayer


def n_subnormal(numbers: Tensor) -> int:
    least = torch.finfo(numbers.dtype).tiny
    return int(((numbers != 0.0) & (numbers.abs() < least)).sum())


@pytest.mark.parametrize("compiled", [True, False])
def test_rows_that_start_afresh_leave_no_subnormal_number(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(cell, "_extension", lambda: None)
    elif not cell.compiled():
        pytest.skip("spacy_elmo.bilm._cell was not built, or SPACY_ELMO_COMPILED=0")
    seen: list[Tensor] = []

    def looked_at(name: str) -> None:
        step = getattr(cell, name)

        def run(*tensors: Any) -> None:
            step(*tensors)
            seen.extend(tensor.clone() for tensor in tensors if isinstance(tensor, Tensor))

        monkeypatch.setattr(cell, name, run)

    looked_at("forward")
    looked_at("backward")
    generator = torch.Generator().manual_seed(0)
    layer = LSTMLayer(BiLMConfig(lstm_dim=16, projection_dim=4, filters=((1, 4),), n_highway=1))
    layer.initialize(generator)
    steps, rows = 6, 5
    inputs = torch.randn(steps, rows, 4, generator=generator, requires_grad=True)
    keep = torch.ones(steps, rows, 1)
    keep[0], keep[3, 1:], keep[5, 2] = 0.0, 0.0, 0.0
    outputs, hidden, state = layer(inputs, torch.ones(rows, 4), torch.ones(rows, 16), keep)
    # Gradients of the size that they have in a large batch.
    (1e-5 * (outputs.square().sum() + hidden.sum() + state.sum())).backward()
    assert len(seen) > 2 * steps
    assert sum(map(n_subnormal, seen)) == 0
    assert layer.kernel.grad is not None
    assert layer.kernel.grad.abs().max() > 1e-8
    # What stands before a fresh start gets nothing from behind it: the first steps of row 2 are as if no more came.
    alone = inputs.detach().clone().requires_grad_()
    before, _, _ = layer(alone[:3], torch.ones(rows, 4), torch.ones(rows, 16), keep[:3])
    (1e-5 * before.square().sum()).backward()
    assert alone.grad is not None
    assert inputs.grad is not None
    torch.testing.assert_close(alone.grad[:3, 2], inputs.grad[:3, 2], rtol=1e-5, atol=1e-12)
