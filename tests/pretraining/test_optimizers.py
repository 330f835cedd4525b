from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.optimizers import adagrad, adamw
from spacy_elmo.pretraining.schedules import learn_rate_factor


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


ROWS, WIDTH = 7, 3


def row_gradients(n: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows and their gradients, step by step; a row may be there more than once."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randint(0, ROWS - 1, (4,), generator=generator), torch.randn(4, WIDTH, generator=generator))
        for _ in range(n)
    ]


def tables() -> list[nn.Parameter]:
    """A table and a vector of the same rows."""
    generator = torch.Generator().manual_seed(9)
    return [nn.Parameter(torch.randn(*shape, generator=generator)) for shape in ((ROWS, WIDTH), (ROWS,))]


def set_gradients(parameters: list[nn.Parameter], rows: torch.Tensor, values: torch.Tensor, sparse: bool) -> None:
    for parameter, value in zip(parameters, (values, values[:, 0]), strict=True):
        gradient = torch.sparse_coo_tensor(rows[None], value, parameter.shape, check_invariants=True)
        parameter.grad = gradient if sparse else gradient.to_dense()


def test_adagrad_moves_the_rows_of_a_sparse_gradient_as_it_would_move_all() -> None:
    sparse, dense = tables(), tables()
    optimizers = [adagrad()(parameters) for parameters in (sparse, dense)]
    for rows, values in row_gradients(6):
        set_gradients(sparse, rows, values, True)
        set_gradients(dense, rows, values, False)
        for optimizer in optimizers:
            optimizer.step()
        assert sparse[0].grad is not None
        assert sparse[0].grad.is_sparse  # left as it was
    for one, other in zip(sparse, dense, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        assert torch.equal(one[-1], tables()[one.dim() == 1][-1])  # the row that never had a gradient
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    for index in (0, 1):
        torch.testing.assert_close(states[0][index]["sum"], states[1][index]["sum"], rtol=0, atol=1e-6)
        assert states[0][index]["step"] == states[1][index]["step"] == 6


def test_adamw_with_a_sparse_gradient_leaves_other_rows_and_their_moments_alone() -> None:
    parameters = tables()
    optimizer = adamw(learn_rate=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.5)(parameters)
    weights = [parameter.detach().double().numpy().copy() for parameter in parameters]
    means, squares = ([np.zeros_like(weight) for weight in weights] for _ in range(2))
    for step, (rows, values) in enumerate(row_gradients(6), start=1):
        set_gradients(parameters, rows, values, True)
        optimizer.step()
        for weight, mean, square, gradients, decay in zip(
            weights, means, squares, (values.numpy(), values[:, 0].numpy()), (0.5, 0.0), strict=True
        ):
            for row in set(rows.tolist()):
                gradient = gradients[rows.numpy() == row].astype(float).sum(axis=0)
                mean[row] = 0.9 * mean[row] + 0.1 * gradient
                square[row] = 0.99 * square[row] + 0.01 * gradient**2
                update = 0.1 * (mean[row] / (1 - 0.9**step)) / (np.sqrt(square[row] / (1 - 0.99**step)) + 1e-8)
                weight[row] = weight[row] * (1 - 0.1 * decay) - update
    states = optimizer.state_dict()["state"]
    for index, parameter in enumerate(parameters):
        np.testing.assert_allclose(parameter.detach().numpy(), weights[index], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(states[index]["exp_avg"].numpy(), means[index], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(states[index]["exp_avg_sq"].numpy(), squares[index], rtol=1e-5, atol=1e-6)
        assert torch.equal(parameter[-1], tables()[index][-1])


def test_adamw_with_every_row_in_the_sparse_gradient_is_the_dense_one() -> None:
    sparse, dense = tables(), tables()
    optimizers = [adamw(learn_rate=0.1)(parameters) for parameters in (sparse, dense)]
    for step in range(5):
        values = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
        set_gradients(sparse, torch.arange(ROWS), values, True)
        set_gradients(dense, torch.arange(ROWS), values, False)
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(sparse, dense, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [adagrad(), adamw()], ids=["adagrad", "adamw"])
def test_no_operator_of_a_step_runs_over_rows_without_a_gradient(make: Callable[..., Any]) -> None:
    n = 50_000
    table, other = nn.Parameter(torch.ones(n, 2)), nn.Parameter(torch.ones(3, 3))
    optimizer = make([table, other])
    seen: set[str] = set()

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor) and not x.is_sparse]
            if any(tensor.numel() >= n for tensor in tensors):
                seen.add(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    for step in range(2):
        table.grad = torch.sparse_coo_tensor(torch.tensor([[3, 7]]), torch.ones(2, 2), (n, 2), check_invariants=True)
        other.grad = torch.ones(3, 3)
        if step:  # what AdamW allocates at its first step is allocated once
            with Seen():
                optimizer.step()
        else:
            optimizer.step()
    assert seen <= {"index_select", "index_copy_", "index_add_"}
    assert "index_select" in seen


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
