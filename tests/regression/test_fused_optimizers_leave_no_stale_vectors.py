"""torch does not count what a fused optimizer writes to a parameter: encode went on with the weights before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.pretraining.optimizers import adagrad, adamw

SENTENCES = [["the", "bank"]]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True), id="SGD"),
        pytest.param(lambda parameters: torch.optim.Adam(parameters, lr=0.05, fused=True), id="Adam"),
        pytest.param(adamw(0.05), id="adamw.v1"),
        pytest.param(adagrad(0.2), id="adagrad.v1"),
        pytest.param(lambda parameters: torch.optim.AdamW(parameters, lr=0.05), id="not fused"),
    ],
)
def test_vectors_are_of_the_weights_after_the_step(
    make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
) -> None:
    bilm = BiLM(BiLMConfig(lstm_dim=16, projection_dim=4, filters=((1, 4), (2, 4)))).initialize(0)
    other = BiLM(BiLMConfig(lstm_dim=16, projection_dim=4, filters=((1, 4), (2, 4)))).initialize(1)
    before, versions = bilm.encode(SENTENCES)[0], (bilm.version, other.version)
    optimizer = make(list(bilm.parameters()))
    bilm(SENTENCES)[0].square().sum().backward()
    optimizer.step()
    found = bilm.encode(SENTENCES)[0]
    torch.testing.assert_close(found, bilm(SENTENCES)[0].detach(), rtol=0, atol=2e-6)
    assert (found - before).abs().max() > 1e-3
    assert bilm.version != versions[0]
    assert other.version == versions[1]  # whose weights stayed
