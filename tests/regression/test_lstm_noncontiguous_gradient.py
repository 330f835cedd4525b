"""The LSTM's backward pass crashed when the gradient of its outputs was transposed: training transposes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.lstm import LSTMLayer
from spacy_elmo.bilm.model import BiLM

STEPS, ROWS, WIDTH = 5, 3, 4


def strided(make: Callable[[Tensor], Tensor]) -> Tensor:
    values = torch.randn(STEPS, ROWS, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient = make(values)
    assert not gradient.is_contiguous()
    return gradient


GRADIENTS = {
    "transposed": lambda values: values.transpose(0, 1).contiguous().transpose(0, 1),
    "permuted": lambda values: values.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "expanded": lambda values: values[:1, :1, :1].expand(STEPS, ROWS, WIDTH),
    "sliced": lambda values: torch.cat([values, values], dim=2)[:, :, :WIDTH],
}


@pytest.mark.parametrize("kind", list(GRADIENTS))
@pytest.mark.parametrize("lstm_dim", [6, WIDTH])
def test_gradient_of_the_outputs_may_have_any_strides(kind: str, lstm_dim: int) -> None:
    layer = LSTMLayer(BiLMConfig(lstm_dim=lstm_dim, projection_dim=WIDTH, cell_clip=0.6, proj_clip=0.5)).double()
    generator = torch.Generator().manual_seed(1)
    for parameter in layer.parameters():
        parameter.data.normal_(0.0, 0.8, generator=generator)
    inputs = torch.randn(STEPS, ROWS, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
    hidden = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    cell = torch.zeros(ROWS, lstm_dim, dtype=torch.float64)
    gradient = strided(GRADIENTS[kind])
    wanted = [inputs, *layer.parameters()]
    found = torch.autograd.grad(layer(inputs, hidden, cell)[0], wanted, gradient)
    expected = torch.autograd.grad(layer(inputs, hidden, cell)[0], wanted, gradient.contiguous())
    for ours, reference in zip(found, expected, strict=True):
        assert reference.abs().max() > 0
        torch.testing.assert_close(ours, reference, rtol=0, atol=1e-12)


def test_training_forward_takes_gradients_of_rows_by_steps() -> None:
    config = BiLMConfig(lstm_dim=6, projection_dim=WIDTH, filters=((1, 3), (2, 4)), char_dim=3)
    bilm = BiLM(config).initialize(0)
    steps = torch.tensor([[0, 1, 2], [2, 1, 0]])
    forward, backward, _ = bilm.hidden(bilm.token_ids(["a", "b", "c"]), steps, steps, bilm.zero_state(2))
    (forward.reshape(-1, WIDTH).square().sum() + backward.reshape(-1, WIDTH).square().sum()).backward()
    assert all(parameter.grad is not None for parameter in bilm.parameters())
