from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm.continuous import DEBYE_ORDER, ContinuousOutput, log_normaliser
from spacy_elmo.errors import ElmoError

LOSSES: list[dict[str, Any]] = [
    {},
    {"loss": "vmf"},
    {"loss": "vmf", "dot_weight": 0.1, "norm_weight": 0.02},
]


def log_bessel(order: float, x: float) -> float:
    """ln I_u(x) by its power series (DLMF 10.25.2), whose terms are all positive. For x up to some hundreds."""
    terms = np.array(
        [
            (2 * k + order) * math.log(x / 2) - math.lgamma(k + 1) - math.lgamma(k + order + 1)
            for k in range(30 + 2 * int(x))
        ]
    )
    return float(terms.max() + math.log(np.exp(terms - terms.max()).sum()))


def plain_log_normaliser(x: float, n_dims: int) -> float:
    order = n_dims / 2 - 1
    return log_bessel(order, x) - order * math.log(x) + n_dims / 2 * math.log(2 * math.pi)


def made(n_dims: int = 5, width: int = 4, n_vectors: int = 9, seed: int = 0, **options: Any) -> ContinuousOutput:
    layer = ContinuousOutput(n_dims, width, vectors="toy", sha256="ab" * 32, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.W.normal_(0.0, 0.7, generator=generator)
        layer.b.normal_(0.0, 0.7, generator=generator)
    table = torch.randn(n_vectors + 1, n_dims, generator=generator, dtype=torch.float64)
    table = F.normalize(table, dim=1)
    table[0] = 0.0
    layer.use_table(table)
    return layer


def examples(n: int, n_vectors: int = 9, width: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, width, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, n_vectors + 1, (n,), generator=generator)
    targets[0] = 0  # at least one is left out
    return hidden, targets


def plain_losses(layer: ContinuousOutput, hidden: Tensor, targets: Tensor) -> np.ndarray:
    """In numpy, one token at a time; NaN for those that do not count."""
    W, b = layer.W.detach().numpy(), layer.b.detach().numpy()
    assert layer.table is not None
    table = layer.table.numpy()
    losses = []
    for y, target in zip(hidden.detach().numpy(), targets.tolist(), strict=True):
        predicted, wanted = W @ y + b, table[target]
        length = float(np.linalg.norm(predicted))
        if target == 0:
            losses.append(math.nan)
        elif layer.loss_name == "cosine":
            losses.append(1.0 - predicted @ wanted / length)
        else:
            density = plain_log_normaliser(length, layer.n_dims) - layer.dot_weight * (predicted @ wanted)
            losses.append(density + layer.norm_weight * length)
    return np.array(losses)


@pytest.mark.parametrize("options", LOSSES, ids=["cosine", "vmf", "regularised"])
def test_losses_are_the_formula(options: dict[str, Any]) -> None:
    layer = made(**options)
    hidden, targets = examples(50)
    expected = plain_losses(layer, hidden, targets)
    found = layer.target_losses(hidden.requires_grad_(), targets)
    assert not found.requires_grad
    np.testing.assert_allclose(found.numpy(), np.nan_to_num(expected), rtol=0, atol=1e-11)
    assert (found[targets == 0] == 0).all()
    assert layer.loss(hidden, targets, seed=1).item() == pytest.approx(np.nanmean(expected), abs=1e-11)


@pytest.mark.parametrize("options", LOSSES, ids=["cosine", "vmf", "regularised"])
def test_gradients(options: dict[str, Any]) -> None:
    layer = made(**options)
    hidden, targets = examples(6)

    def loss(hidden: Tensor, W: Tensor, b: Tensor) -> Any:
        return torch.func.functional_call(Loss(layer, targets), {"layer.W": W, "layer.b": b}, (hidden,))

    arguments = [hidden, layer.W.detach().clone(), layer.b.detach().clone()]
    assert torch.autograd.gradcheck(loss, [argument.requires_grad_() for argument in arguments])


class Loss(torch.nn.Module):
    def __init__(self, layer: ContinuousOutput, targets: Tensor) -> None:
        super().__init__()
        self.layer = layer
        self.targets = targets

    def forward(self, hidden: Tensor) -> Tensor:
        return self.layer.loss(hidden, self.targets, seed=2)


@pytest.mark.parametrize("options", LOSSES, ids=["cosine", "vmf", "regularised"])
def test_words_without_a_vector_teach_nothing(options: dict[str, Any]) -> None:
    layer = made(**options)
    hidden, targets = examples(20)
    hidden.requires_grad_()
    (gradient,) = torch.autograd.grad(layer.loss(hidden, targets, seed=0), [hidden])
    assert (gradient[targets == 0] == 0).all()
    assert (gradient[targets > 0] != 0).any(dim=1).all()
    known = targets > 0
    assert layer.loss(hidden[known], targets[known], seed=0).item() == pytest.approx(
        layer.loss(hidden, targets, seed=0).item(), abs=1e-12
    )
    nothing = layer.loss(hidden, torch.zeros_like(targets), seed=0)
    assert nothing.item() == 0.0
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(nothing, [hidden, layer.W, layer.b]))


@given(
    n_dims=st.sampled_from([2, 3, 4, 7, 50, 99, 101, 102, 300]),
    x=st.floats(1e-3, 300.0),
)
@settings(deadline=None, max_examples=60)
def test_log_normaliser_and_its_derivative(n_dims: int, x: float) -> None:
    concentration = torch.tensor([x], dtype=torch.float64, requires_grad=True)
    found = log_normaliser(concentration, n_dims)
    assert found.item() == pytest.approx(plain_log_normaliser(x, n_dims), rel=1e-11, abs=1e-10)
    (slope,) = torch.autograd.grad(found.sum(), [concentration])
    order = n_dims / 2 - 1
    assert slope.item() == pytest.approx(math.exp(log_bessel(order + 1, x) - log_bessel(order, x)), rel=1e-9)
    assert 0 < slope.item() < 1  # the length of a mean of vectors of length 1


def test_log_normaliser_in_three_dimensions_is_a_known_one() -> None:
    # C_3(κ) = κ / (4π sinh κ): up to any κ, and at 0 the sphere's area.
    for x in (1e-6, 0.5, 3.0, 700.0, 1e5, 1e7):
        expected = math.log(2 * math.pi) + x + math.log1p(-math.exp(-2 * x)) - math.log(x)
        found = log_normaliser(torch.tensor([x], dtype=torch.float64), 3).item()
        assert found == pytest.approx(expected, rel=1e-10)
    assert log_normaliser(torch.zeros(1), 3).item() == pytest.approx(math.log(4 * math.pi), rel=1e-6)


def test_log_normaliser_does_not_jump_where_the_way_of_computing_changes() -> None:
    x = torch.linspace(0.0, 400.0, 50, dtype=torch.float64)
    dims = [int(2 * (DEBYE_ORDER + 1)) + offset for offset in (-2, -1, 0, 1, 2)]
    values = torch.stack([log_normaliser(x, n_dims) for n_dims in dims])
    second = values.diff(dim=0).diff(dim=0)
    assert second.abs().max() < 0.05  # smooth in D
    assert torch.isfinite(values).all()


def test_a_prediction_of_nothing_has_a_finite_gradient() -> None:
    for options in LOSSES:
        layer = made(**options)
        with torch.no_grad():
            layer.W.zero_()
            layer.b.zero_()
        hidden, targets = examples(4)
        layer.loss(hidden, targets, seed=0).backward()
        assert layer.b.grad is not None
        assert torch.isfinite(layer.b.grad).all()


@given(n=st.integers(0, 9), n_dims=st.integers(2, 12), width=st.integers(1, 9), n_vectors=st.integers(1, 5))
@settings(deadline=None, max_examples=30)
def test_any_shape(n: int, n_dims: int, width: int, n_vectors: int) -> None:
    for options in LOSSES[:2]:
        layer = made(n_dims, width, n_vectors, **options)
        hidden, targets = torch.zeros(n, width).double(), torch.arange(n) % (n_vectors + 1)
        assert layer.target_losses(hidden, targets).shape == (n,)
        assert layer.loss(hidden, targets, seed=0).isfinite()


def test_half_precision_tables_and_products() -> None:
    layer = made(300, 16, 40).float()
    assert layer.table is not None
    exact = layer.table.clone()
    hidden, targets = examples(200, 40, 16)
    hidden = hidden.float().requires_grad_()

    def run() -> list[Tensor]:
        loss = layer.loss(hidden, targets, seed=0)
        return [loss, *torch.autograd.grad(loss, [hidden, layer.W])]

    wide = run()
    layer.use_table(exact.half())
    half = run()
    layer.use_table(exact)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = run()
    for left, right in (*zip(half, wide, strict=True), *zip(narrow, wide, strict=True)):
        assert left.dtype == torch.float32
        assert 1e-8 < ((left - right).norm() / right.norm()).item() < 2e-2


def test_vectors_are_no_weights() -> None:
    layer = made()
    assert {name for name, _ in layer.named_parameters()} == {"W", "b"}
    assert set(layer.stored()) == {"W", "b"}
    assert not any("table" in name for name in layer.state_dict())
    other = ContinuousOutput(**layer.settings())
    other.load_state_dict(
        {name: value.float() if name != "_extra_state" else value for name, value in layer.state_dict().items()}
    )
    with pytest.raises(ElmoError, match="'toy' that this output layer predicts were not given"):
        other.loss(torch.zeros(1, 4), torch.ones(1, dtype=torch.int64), seed=0)
    with pytest.raises(ElmoError, match=r"5 numbers .* \(3, 4\)"):
        other.use_table(torch.zeros(3, 4))
    changed = ContinuousOutput(**{**layer.settings(), "sha256": "cd" * 32})
    with pytest.raises(ElmoError, match=r"\(SHA-256 cdcdcdcdcdcd\) are not those .* \(abababababab\)"):
        changed.load_state_dict(layer.state_dict())


def test_copies_share_the_vectors_and_nothing_else() -> None:
    layer = made()
    copied = copy.deepcopy(layer)
    assert copied.table is layer.table
    assert copied.W is not layer.W
    assert torch.equal(copied.W, layer.W)
    hidden, targets = examples(8)
    assert torch.equal(copied.target_losses(hidden, targets), layer.target_losses(hidden, targets))
    with torch.no_grad():
        copied.W.zero_()
    assert (layer.W != 0).all()


def test_initial_values() -> None:
    before = torch.get_rng_state()
    layer = ContinuousOutput(300, 64)
    assert (layer.W == 0).all()
    assert layer.initialize(3) is layer
    assert torch.equal(torch.get_rng_state(), before)
    assert float(layer.W.detach().std()) == pytest.approx(1 / 8, rel=0.03)
    assert (layer.b == 0).all()
    assert torch.equal(layer.W, ContinuousOutput(300, 64).initialize(3).W)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n_dims": 1}, "not 1 from 4"),
        ({"width": 0}, "not 5 from 0"),
        ({"loss": "l2"}, "'cosine' or 'vmf', not 'l2'"),
        ({"loss": "vmf", "dot_weight": 0.0}, "dot_weight"),
        ({"loss": "vmf", "norm_weight": -1.0}, "norm_weight"),
        ({"norm_weight": 0.1}, "no effect on the cosine"),
    ],
)
def test_settings_out_of_range(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ElmoError, match=named):
        ContinuousOutput(options.pop("n_dims", 5), options.pop("width", 4), **options)
