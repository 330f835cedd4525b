from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.optimizers import adagrad, adamw, learn_rate_factor


def test_adagrad_is_bilm_tfs_formula() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimizer = adagrad(learn_rate=0.2, initial_accumulator=1.0)([parameter])
    weights, accumulator = np.array([1.0, -2.0, 3.0]), np.ones(3)
    # A gradient of zero must leave a weight alone; a huge one must not be softened by an epsilon.
    for gradient in ([0.5, 0.0, -100.0], [0.25, 0.0, 1e-4], [-1.0, 0.0, 7.0]):
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        accumulator += np.square(gradient)
        weights -= 0.2 * np.array(gradient) / np.sqrt(accumulator)
        np.testing.assert_allclose(parameter.detach().numpy(), weights, rtol=1e-6)
    assert parameter[1] == -2.0


def test_adamw_is_the_formula_and_decays_matrices_only() -> None:
    matrix, bias = nn.Parameter(torch.full((2, 2), 2.0)), nn.Parameter(torch.full((2,), 2.0))
    optimizer = adamw(learn_rate=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.5)([matrix, bias])
    m = v = 0.0
    expected = {"matrix": 2.0, "bias": 2.0}
    for step, gradient in enumerate([0.3, -0.7, 0.1], start=1):
        matrix.grad, bias.grad = torch.full((2, 2), gradient), torch.full((2,), gradient)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
        update = 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.99**step)) + 1e-8)
        expected["matrix"] = expected["matrix"] * (1 - 0.1 * 0.5) - update
        expected["bias"] -= update
    np.testing.assert_allclose(matrix.detach().numpy(), expected["matrix"], rtol=1e-5)
    np.testing.assert_allclose(bias.detach().numpy(), expected["bias"], rtol=1e-5)


def test_the_learning_rate_rises_then_falls_to_a_tenth() -> None:
    factors = [learn_rate_factor(step, max_steps=100, warmup_steps=10, schedule="cosine") for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9] == factors[10] == 1.0
    assert all(one > other for one, other in pairwise(factors[10:]))
    assert factors[55] == pytest.approx(0.55)
    assert factors[100] == pytest.approx(0.1)
    assert learn_rate_factor(200, max_steps=100, warmup_steps=10, schedule="cosine") == pytest.approx(0.1)


def test_the_learning_rate_can_be_constant() -> None:
    factors = {learn_rate_factor(step, max_steps=9, warmup_steps=0, schedule="constant") for step in range(9)}
    assert factors == {1.0}


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (adagrad, "learn_rate", [-1.0, 0.0, math.nan, math.inf]),
        (adagrad, "initial_accumulator", [-1.0, 0.0, math.nan]),
        (adamw, "learn_rate", [-1.0, 0.0, math.nan, math.inf]),
        (adamw, "beta1", [-0.1, 1.0, 2.0, math.nan]),
        (adamw, "beta2", [-0.1, 1.0, 2.0, math.nan]),
        (adamw, "eps", [-1.0, 0.0, math.nan, math.inf]),
        (adamw, "weight_decay", [-1.0, math.nan, math.inf]),
    ],
)
def test_arguments_out_of_range_are_named(make: Callable[..., Any], name: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(PretrainingError, match=rf"optimizer\.{name} is {value}: it must be"):
            make(**{name: value})
