"""``encode`` went on with packed weights of tensors that were no longer the biLM's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spacy_elmo.bilm.model import BiLM

from ..bilm.twins import make_bilm, numpy_twin

SENTENCES = [["The", "cat", "sat"], ["no"]]


def replace_a_parameter(bilm: BiLM) -> None:
    layer = bilm.forward_lstm.layers[0]
    layer.kernel = torch.nn.Parameter(layer.kernel.detach() * 1.5)  # type: ignore[operator]


def assign_to_a_part(bilm: BiLM) -> None:
    part = bilm.backward_lstm
    part.load_state_dict({name: 1.5 * value for name, value in part.state_dict().items()}, assign=True)


def replace_a_part(bilm: BiLM) -> None:
    bilm.token_encoder = make_bilm(9).token_encoder


def load_all(bilm: BiLM) -> None:
    bilm.load_state_dict({name: 1.5 * value for name, value in bilm.state_dict().items()})


def step_of_an_optimizer(bilm: BiLM) -> None:
    sum(layers.square().sum() for layers in bilm(SENTENCES)).backward()
    torch.optim.SGD(bilm.parameters(), lr=0.01).step()


def unseen(bilm: BiLM) -> None:
    for parameter in bilm.parameters():
        parameter.data.mul_(1.1)
    bilm.invalidate()


@pytest.mark.parametrize(
    "change", [replace_a_parameter, assign_to_a_part, replace_a_part, load_all, step_of_an_optimizer, unseen]
)
def test_vectors_are_those_of_the_weights_as_they_are(change: Callable[[BiLM], None]) -> None:
    bilm = make_bilm(3)
    before = bilm.encode(SENTENCES)
    version = bilm.version
    change(bilm)
    assert bilm.version != version
    after = bilm.encode(SENTENCES)
    assert max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True)) > 1e-2
    for found, wanted in zip(after, numpy_twin(bilm).encode(SENTENCES), strict=True):
        torch.testing.assert_close(found.double(), torch.from_numpy(wanted), rtol=0, atol=1e-5)


def test_a_start_state_that_is_written_to() -> None:
    bilm = make_bilm(3, state="warm")
    before, version = bilm.encode(SENTENCES), bilm.version
    with torch.no_grad():
        bilm.get_buffer("start_forward_hidden").fill_(0.7)
    assert bilm.version != version  # by which training texts are remembered
    after = bilm.encode(SENTENCES)
    assert max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True)) > 1e-2
