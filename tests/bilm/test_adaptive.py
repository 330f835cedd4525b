from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm import softmax
from spacy_elmo.bilm.adaptive import AdaptiveSoftmax
from spacy_elmo.errors import ElmoError


def drawn(n_words: int, width: int, cutoffs: list[int], seed: int = 0, **options: Any) -> Any:
    made = AdaptiveSoftmax(n_words, width, cutoffs=cutoffs, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.7, generator=generator)
    return made


def examples(n: int, n_words: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, width, generator=generator, dtype=torch.float64)
    return hidden, torch.randint(0, n_words, (n,), generator=generator)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    highest = logits.max()
    return logits - highest - math.log(np.exp(logits - highest).sum())


def plain_nll(made: AdaptiveSoftmax, hidden: Tensor, targets: Tensor) -> np.ndarray:
    """The formula of Grave et al. in numpy, one token at a time: p(word) = p(cluster) p(word | cluster)."""
    weights = {name: value.numpy() for name, value in made.state_dict().items()}
    losses = []
    for y, target in zip(hidden.detach().numpy(), targets.tolist(), strict=True):
        head = log_softmax(weights["head.weight"] @ y + weights.get("head.bias", 0.0))
        if target < made.cutoffs[0]:
            losses.append(-head[target])
            continue
        cluster = max(i for i, cutoff in enumerate(made.cutoffs) if cutoff <= target)
        inside = log_softmax(weights[f"tail.{cluster}.1.weight"] @ (weights[f"tail.{cluster}.0.weight"] @ y))
        losses.append(-head[made.cutoffs[0] + cluster] - inside[target - made.cutoffs[cluster]])
    return np.array(losses)


@pytest.mark.parametrize(
    ("n_words", "cutoffs", "options"),
    [
        (40, [5, 12], {"div_value": 2.0}),
        (40, [5, 12], {"div_value": 1.0, "head_bias": True}),
        (5, [2], {}),
        (5, [1, 2, 3, 4], {"div_value": 1.5}),
        (2, [1], {"head_bias": True}),
    ],
)
def test_losses_are_the_formula_and_torchs_own(n_words: int, cutoffs: list[int], options: dict[str, Any]) -> None:
    made = drawn(n_words, 6, cutoffs, **options)
    hidden, targets = examples(60, n_words, 6)
    expected = plain_nll(made, hidden, targets)
    np.testing.assert_allclose(made.nll(hidden, targets).numpy(), expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(made.target_losses(hidden, targets).numpy(), expected, rtol=0, atol=1e-12)
    assert made.loss(hidden, targets, seed=3).item() == pytest.approx(expected.mean(), abs=1e-12)
    np.testing.assert_allclose(-made(hidden, targets).output.detach().numpy(), expected, rtol=0, atol=1e-12)
    every = torch.stack([torch.exp(-made.nll(hidden, torch.full((60,), k))) for k in range(n_words)])
    torch.testing.assert_close(every.sum(0), torch.ones(60, dtype=torch.float64), rtol=0, atol=1e-12)


@given(data=st.data(), n_words=st.integers(2, 40), width=st.integers(1, 9), n=st.integers(1, 12))
@settings(deadline=None, max_examples=40)
def test_any_shape_is_a_distribution(data: st.DataObject, n_words: int, width: int, n: int) -> None:
    cutoffs = sorted(data.draw(st.sets(st.integers(1, n_words - 1), min_size=1, max_size=4)))
    made = drawn(n_words, width, cutoffs, div_value=1.0, head_bias=data.draw(st.booleans()))
    hidden, targets = examples(n, n_words, width)
    np.testing.assert_allclose(made.nll(hidden, targets).numpy(), plain_nll(made, hidden, targets), atol=1e-11)
    every = torch.stack([torch.exp(-made.nll(hidden, torch.full((n,), k))) for k in range(n_words)])
    torch.testing.assert_close(every.sum(0), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-12)


def test_gradients() -> None:
    made = drawn(12, 4, [3, 6], div_value=2.0, head_bias=True)
    hidden, targets = examples(9, 12, 4)
    names = [name for name, _ in made.named_parameters()]

    def loss(hidden: Tensor, *values: Tensor) -> Any:
        return torch.func.functional_call(Loss(made, targets), {f"made.{n}": v for n, v in zip(names, values)}, hidden)  # noqa: B905

    arguments = [hidden, *(parameter.detach().clone() for parameter in made.parameters())]
    assert torch.autograd.gradcheck(loss, [argument.requires_grad_() for argument in arguments])


class Loss(torch.nn.Module):
    def __init__(self, made: AdaptiveSoftmax, targets: Tensor) -> None:
        super().__init__()
        self.made = made
        self.targets = targets

    def forward(self, hidden: Tensor) -> Tensor:
        return self.made.loss(hidden, self.targets, seed=2)


def test_a_cluster_without_targets_has_a_gradient_too() -> None:
    # Otherwise processes that share a step would have gradients of different parameters.
    made = drawn(12, 4, [3, 6], div_value=2.0)
    hidden, _ = examples(5, 12, 4)
    made.loss(hidden, torch.zeros(5, dtype=torch.int64), seed=0).backward()
    for name, parameter in made.named_parameters():
        assert (parameter.grad != 0).any() == (name == "head.weight"), name


def test_nll_in_chunks_and_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = drawn(40, 6, [5, 12], div_value=2.0)
    hidden, targets = examples(30, 40, 6)
    expected = made.nll(hidden, targets)
    for held in (1, 60, 100_000):
        monkeypatch.setattr(softmax, "LOGITS_PER_CHUNK", held)
        torch.testing.assert_close(made.nll(hidden, targets), expected, rtol=0, atol=1e-12)
    assert made.nll(hidden[:0], targets[:0]).shape == (0,)
    assert not made.nll(hidden.requires_grad_(), targets).requires_grad


def test_initial_values_are_of_a_seed_and_of_no_other_generator() -> None:
    before = torch.get_rng_state()
    made = AdaptiveSoftmax(3000, 64, cutoffs=[500, 1500], head_bias=True)
    assert all((parameter == 0).all() for parameter in made.parameters())
    assert made.initialize(3) is made
    assert torch.equal(torch.get_rng_state(), before)
    for name, parameter in made.named_parameters():
        if parameter.dim() > 1:
            assert float(parameter.detach().std()) == pytest.approx(parameter.shape[1] ** -0.5, rel=0.1), name
        else:
            assert (parameter == 0).all()
    again, other = (AdaptiveSoftmax(3000, 64, cutoffs=[500, 1500]).initialize(seed) for seed in (3, 4))
    assert torch.equal(made.head.weight, again.head.weight)
    assert not torch.equal(made.head.weight, other.head.weight)


def test_bfloat16_products_are_near_those_of_float32() -> None:
    made = drawn(300, 16, [50, 100]).float()
    hidden, targets = examples(200, 300, 16)
    hidden = hidden.float().requires_grad_()

    def run(enabled: bool) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = made.loss(hidden, targets, seed=1)
        return [loss, *torch.autograd.grad(loss, [hidden, *made.parameters()])]

    for narrow, wide in zip(run(True), run(False), strict=True):
        assert narrow.dtype == torch.float32
        assert 1e-7 < ((narrow - wide).norm() / wide.norm()).item() < 2e-2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cutoffs": []}, r"cutoffs .* \(9\), not \[\]"),
        ({"cutoffs": [3, 3]}, "cutoffs"),
        ({"cutoffs": [0, 3]}, "cutoffs"),
        ({"cutoffs": [10]}, "cutoffs"),
        ({"cutoffs": [2.5]}, "cutoffs"),
        ({"cutoffs": [2, 4], "div_value": 4.0}, r"8 / 4\.0\^2 must be 1 or more"),
        ({"cutoffs": [2], "div_value": 0.5}, "div_value is 0.5"),
        ({"cutoffs": [2], "div_value": math.nan}, "div_value is nan"),
        ({"cutoffs": [1], "n_words": 1}, "not 1 and 8"),
    ],
)
def test_settings_that_make_no_softmax(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ElmoError, match=named):
        AdaptiveSoftmax(options.pop("n_words", 10), 8, **options)
