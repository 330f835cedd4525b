from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.pretraining.averaging import Averages

from .test_step import ROWS, WORDS, parts, training_step, window


def test_it_is_the_formula_in_float64() -> None:
    bilm, softmax = parts()
    step, _ = training_step(bilm, softmax, ema=0.6)
    weights = [*bilm.parameters(), *softmax.parameters()]
    expected = [weight.detach().double().numpy().copy() for weight in weights]
    state = bilm.zero_state(ROWS)
    decays = []
    for number in range(8):
        state = step(window(number), state, number).state
        decays.append(min(0.6, (1 + number) / (10 + number)))
        for n, weight in enumerate(weights):
            expected[n] = decays[-1] * expected[n] + (1 - decays[-1]) * weight.detach().double().numpy()
    assert decays[0] == 0.1
    assert decays[-1] < 0.6
    averaged = [parameter for model in step.shown for parameter in model.parameters()]
    for average, wanted, weight in zip(averaged, expected, weights, strict=True):
        np.testing.assert_allclose(average.numpy(), wanted, rtol=1e-5, atol=1e-6)
        assert not torch.equal(average, weight)
        assert not average.requires_grad


def test_the_decay_is_never_more_than_what_was_asked_for() -> None:
    bilm, softmax = parts()
    averages = Averages(bilm, softmax, 0.5)
    with torch.no_grad():
        softmax.b.fill_(1.0)
    averages.update(10**6)
    assert torch.equal(averages.softmax.stored()["b"], torch.full((WORDS,), 0.5))


def test_off_the_weights_themselves_are_shown() -> None:
    bilm, softmax = parts()
    assert training_step(bilm, softmax)[0].shown == (bilm, softmax)


def test_what_the_models_share_the_averages_share() -> None:
    bilm, _ = parts(filters=None, max_characters_per_token=50, n_words=WORDS)
    softmax = FullSoftmax(WORDS, 4, tied=True)
    table = bilm.token_encoder.embedding
    assert isinstance(table, nn.Parameter)
    softmax.tie(table)
    averages = Averages(bilm, softmax, 0.9)
    assert averages.bilm.token_encoder.embedding is averages.softmax.stored()["W"]
    assert averages.softmax.stored()["W"] is not table


def test_they_come_back_to_the_bit() -> None:
    bilm, softmax = parts()
    averages = Averages(bilm, softmax, 0.9)
    with torch.no_grad():
        softmax.W.mul_(3.0)
    averages.update(5)
    other = Averages(bilm, softmax, 0.9)
    other.load({name: tensor.clone() for name, tensor in averages.tensors().items()})
    for one, two in zip(averages.weights, other.weights, strict=True):
        assert torch.equal(one, two)
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load({})
