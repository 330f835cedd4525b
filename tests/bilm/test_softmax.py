from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from spacy_elmo.bilm import softmax
from spacy_elmo.bilm.softmax import FullSoftmax, SampledSoftmax, sample_log_uniform
from spacy_elmo.errors import ElmoError


def drawn(made: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    made = made.double()
    with torch.no_grad():
        made.W.normal_(0.0, 0.7, generator=generator)
        made.b.normal_(0.0, 0.7, generator=generator)
    return made


def examples(n: int, n_words: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Hidden vectors and targets, frequent words more often."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, width, generator=generator, dtype=torch.float64)
    targets = (torch.rand(n, generator=generator) ** 2 * n_words).long()
    return hidden, targets


def full_nll(made: FullSoftmax, hidden: Tensor, targets: Tensor) -> np.ndarray:
    """-log softmax(y W^T + b)[target], in numpy."""
    logits = hidden.detach().numpy() @ made.W.detach().numpy().T + made.b.detach().numpy()
    normaliser = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    return normaliser - logits[np.arange(len(targets)), targets.numpy()]


# The whole vocabulary


def test_full_loss_is_the_mean_cross_entropy() -> None:
    made = drawn(FullSoftmax(11, 4))
    hidden, targets = examples(20, 11, 4)
    found = made.loss(hidden, targets, seed=5)
    assert found.item() == pytest.approx(full_nll(made, hidden, targets).mean(), abs=1e-12)
    expected = torch.nn.CrossEntropyLoss()(hidden @ made.W.T + made.b, targets)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(found, made.loss(hidden, targets, seed=6))  # nothing is drawn


def test_gradients_of_the_full_loss() -> None:
    made = drawn(FullSoftmax(6, 3))
    hidden, targets = examples(5, 6, 3)
    arguments = [hidden.requires_grad_(), made.W, made.b]
    found = torch.autograd.grad(made.loss(hidden, targets, seed=0), arguments)
    # softmax - one-hot, averaged
    error = torch.softmax(hidden @ made.W.T + made.b, dim=1) - F.one_hot(targets, 6)
    expected = (error @ made.W / 5, error.T @ hidden / 5, error.sum(0) / 5)
    for gradient, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["full", "sampled"])
def test_nll_of_each_target_over_the_whole_vocabulary(kind: str) -> None:
    made = drawn(FullSoftmax(9, 4) if kind == "full" else SampledSoftmax(9, 4, n_samples=3))
    hidden, targets = examples(13, 9, 4)
    found = made.nll(hidden.requires_grad_(), targets)
    assert not found.requires_grad
    np.testing.assert_allclose(found.numpy(), full_nll(made, hidden, targets), rtol=0, atol=1e-12)
    probabilities = torch.stack([torch.exp(-made.nll(hidden, torch.full((13,), k))) for k in range(9)])
    torch.testing.assert_close(probabilities.sum(0), torch.ones(13, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("held", [1, 8, 9, 27, 50, 10_000])
def test_nll_in_chunks(monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    made = drawn(FullSoftmax(9, 4))
    hidden, targets = examples(13, 9, 4)
    expected = made.nll(hidden, targets)
    monkeypatch.setattr(softmax, "LOGITS_PER_CHUNK", held)
    widest = 0
    linear = F.linear

    def watched(*arguments: Any) -> Tensor:
        nonlocal widest
        logits = linear(*arguments)
        widest = max(widest, logits.numel())
        return logits

    monkeypatch.setattr(F, "linear", watched)
    torch.testing.assert_close(made.nll(hidden, targets), expected, rtol=0, atol=1e-12)
    assert widest <= max(held, 9)  # or one row


def test_nll_of_nothing() -> None:
    found = FullSoftmax(9, 4).nll(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert found.shape == (0,)
    assert found.dtype == torch.float32


def test_large_logits_stay_finite() -> None:
    for made in (FullSoftmax(5, 2), SampledSoftmax(5, 2, n_samples=3)):
        with torch.no_grad():
            made.W.fill_(1e4)
            made.b.copy_(torch.tensor([0.0, 1e4, -1e4, 5e3, 0.0]))
        hidden, targets = torch.ones(5, 2), torch.arange(5)
        assert made.nll(hidden, targets).isfinite().all()
        for seed in range(5):
            assert made.loss(hidden, targets, seed=seed).isfinite()


@pytest.mark.parametrize("kind", ["full", "sampled"])
def test_initial_values(kind: str) -> None:
    def make() -> FullSoftmax:
        return FullSoftmax(300, 64) if kind == "full" else SampledSoftmax(300, 64, n_samples=5)

    made = make()
    assert (made.W == 0).all()
    before = torch.get_rng_state()
    assert made.initialize(3) is made
    assert torch.equal(torch.get_rng_state(), before)
    values = made.W.detach()
    assert float(values.std()) == pytest.approx(1 / 8, rel=0.03)  # variance 1 / P
    assert abs(float(values.mean())) < 0.005
    assert values.abs().max() > 3 / 8  # normal, not uniform
    assert (made.b == 0).all()
    assert {name: tuple(p.shape) for name, p in made.named_parameters()} == {"W": (300, 64), "b": (300,)}
    assert torch.equal(made.W, make().initialize(3).W)
    assert not torch.equal(made.W, make().initialize(4).W)


@pytest.mark.parametrize(("n_words", "width"), [(0, 4), (-1, 4), (4, 0)])
def test_a_softmax_over_nothing_is_an_error(n_words: int, width: int) -> None:
    with pytest.raises(ElmoError, match=f"{n_words} and {width}"):
        FullSoftmax(n_words, width)


@pytest.mark.parametrize("n_samples", [0, -1, 11])
def test_no_more_samples_than_words(n_samples: int) -> None:
    with pytest.raises(ElmoError, match=rf"n_samples \({n_samples}\).*\(10\)"):
        SampledSoftmax(10, 4, n_samples=n_samples)


# The sample


def probability(k: np.ndarray, n_words: int) -> np.ndarray:
    return np.log((k + 2) / (k + 1)) / np.log(n_words + 1)


@given(n_words=st.integers(1, 300), data=st.data(), seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=80)
def test_samples_are_distinct_draws_of_a_seed(n_words: int, data: st.DataObject, seed: int) -> None:
    n_samples = data.draw(st.integers(1, min(n_words, 40)))
    ranks, draws = sample_log_uniform(n_words, n_samples, seed)
    assert ranks.dtype == np.int64
    # One uniform number at a time, repeats rejected.
    generator = np.random.Generator(np.random.PCG64(seed))
    expected: list[int] = []
    count = 0
    while len(expected) < n_samples:
        rank = (math.floor(math.exp(generator.random() * math.log(n_words + 1))) - 1) % n_words
        count += 1
        if rank not in expected:
            expected.append(rank)
    assert ranks.tolist() == expected
    assert draws == count


@pytest.mark.parametrize("n_words", [1, 2, 7, 60])
def test_as_many_samples_as_words_are_all_words(n_words: int) -> None:
    for seed in range(5):
        ranks, draws = sample_log_uniform(n_words, n_words, seed)
        assert sorted(ranks.tolist()) == list(range(n_words))
        assert draws >= n_words


def test_first_draws_follow_the_log_uniform_law() -> None:
    n_words, n = 12, 6000
    counts = np.zeros(n_words)
    for seed in range(n):
        ranks, draws = sample_log_uniform(n_words, 1, seed)
        assert draws == 1
        counts[ranks[0]] += 1
    expected = n * probability(np.arange(n_words), n_words)
    assert expected.sum() == pytest.approx(n)
    # chi-square with 11 degrees of freedom: 31.3 is its 0.999 quantile. The seeds are fixed, so is the outcome.
    assert ((counts - expected) ** 2 / expected).sum() < 31.3


def counted(made: SampledSoftmax, seed: int) -> np.ndarray:
    """Q of every rank."""
    _, draws = sample_log_uniform(len(made.W), made.n_samples, seed)
    found = softmax._expected_counts(torch.arange(len(made.W)), len(made.W), made.n_samples, draws)
    assert found.dtype == torch.float64
    return found.numpy()


def test_expected_counts_formula() -> None:
    for n_words, n_samples in ((50, 8), (50, 50), (1000, 3), (1, 1)):
        made = SampledSoftmax(n_words, 2, n_samples=n_samples)
        for seed in range(4):
            _, draws = sample_log_uniform(n_words, n_samples, seed)
            p = probability(np.arange(n_words), n_words)
            expected = p * n_samples if draws == n_samples else 1 - (1 - p) ** draws
            np.testing.assert_allclose(counted(made, seed), expected, rtol=1e-9)


def test_expected_counts_are_how_often_a_word_is_sampled() -> None:
    n_words, n_samples, n = 40, 20, 4000
    made = SampledSoftmax(n_words, 2, n_samples=n_samples)
    frequency, expected = np.zeros(n_words), np.zeros(n_words)
    for seed in range(n):
        ranks, draws = sample_log_uniform(n_words, n_samples, seed)
        assert draws > n_samples  # where no draw was a repeat, the formula is another, and a rough one
        frequency[ranks] += 1 / n
        expected += counted(made, seed) / n
    assert frequency.sum() == pytest.approx(n_samples)
    # The formula is an approximation: the number of draws is not independent of what was drawn.
    np.testing.assert_allclose(expected, frequency, rtol=0, atol=0.03)
    assert np.all(np.diff(expected) < 0)
    assert frequency[0] > 3 * frequency[-1]


# The sampled loss


def sampled_loss(made: SampledSoftmax, hidden: Tensor, targets: Tensor, seed: int) -> tuple[float, int]:
    """The loss in plain numpy, one token at a time, and how many accidental hits it met."""
    n_words, n_samples = len(made.W), made.n_samples
    ranks, draws = sample_log_uniform(n_words, n_samples, seed)
    W, b, y = made.W.detach().numpy(), made.b.detach().numpy(), hidden.detach().numpy()

    def count(k: int) -> float:
        p = math.log((k + 2) / (k + 1)) / math.log(n_words + 1)
        return p * n_samples if draws == n_samples else -math.expm1(draws * math.log1p(-p))

    losses, hits = [], 0
    for row, target in enumerate(targets.tolist()):
        logits = [y[row] @ W[target] + b[target] - math.log(count(target))]
        for k in ranks.tolist():
            if k == target:
                hits += 1
                continue
            logits.append(y[row] @ W[k] + b[k] - math.log(count(k)))
        losses.append(np.log(np.sum(np.exp(logits))) - logits[0])
    return float(np.mean(losses)), hits


@pytest.mark.parametrize(("n_words", "n_samples"), [(30, 6), (30, 1), (12, 12), (200, 40), (2, 1)])
def test_sampled_loss_is_the_formula(n_words: int, n_samples: int) -> None:
    made = drawn(SampledSoftmax(n_words, 4, n_samples=n_samples))
    hidden, targets = examples(25, n_words, 4)
    met = 0
    for seed in range(8):
        expected, hits = sampled_loss(made, hidden, targets, seed)
        met += hits
        assert made.loss(hidden, targets, seed=seed).item() == pytest.approx(expected, abs=1e-10)
    assert met > 0


@given(seed=st.integers(0, 2**32), n_words=st.integers(2, 60), data=st.data())
@settings(deadline=None, max_examples=30)
def test_sampled_loss_of_any_size_is_the_formula(seed: int, n_words: int, data: st.DataObject) -> None:
    made = drawn(SampledSoftmax(n_words, 3, n_samples=data.draw(st.integers(1, n_words))), seed % 7)
    hidden, targets = examples(6, n_words, 3, seed % 11)
    expected, _ = sampled_loss(made, hidden, targets, seed)
    assert made.loss(hidden, targets, seed=seed).item() == pytest.approx(expected, abs=1e-9)


def test_a_seed_decides_the_sample() -> None:
    made = drawn(SampledSoftmax(100, 4, n_samples=5))
    hidden, targets = examples(10, 100, 4)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    losses = [made.loss(hidden, targets, seed=seed).item() for seed in range(6)]
    assert torch.equal(torch.get_rng_state(), before)
    assert len(set(losses)) == 6
    assert losses == [made.loss(hidden, targets, seed=seed).item() for seed in range(6)]


def test_a_sample_that_is_the_target_does_not_count_against_it() -> None:
    n_words = 8
    made = drawn(SampledSoftmax(n_words, 4, n_samples=n_words))  # so every target is among the samples
    hidden, targets = examples(20, n_words, 4)
    _, draws = sample_log_uniform(n_words, n_words, 1)
    assert draws > n_words
    # All words, each once: the full softmax, with each bias lowered by ln Q.
    lowered = drawn(FullSoftmax(n_words, 4))
    with torch.no_grad():
        lowered.W.copy_(made.W)
        lowered.b.copy_(made.b - torch.from_numpy(counted(made, 1)).log())
    expected = full_nll(lowered, hidden, targets).mean()
    assert made.loss(hidden, targets, seed=1).item() == pytest.approx(expected, abs=1e-12)


def test_a_lone_sample_that_is_the_target_leaves_no_loss() -> None:
    made = drawn(SampledSoftmax(9, 4, n_samples=1))
    (rank,), _ = sample_log_uniform(9, 1, 0)
    hidden = examples(1, 9, 4)[0].requires_grad_()
    loss = made.loss(hidden, torch.tensor([int(rank)]), seed=0)
    assert loss.item() == 0.0
    loss.backward()
    assert (made.W.grad.to_dense() == 0).all()
    assert (hidden.grad == 0).all()  # type: ignore[union-attr]


def test_over_many_samples_the_mean_gradient_is_near_the_full_one() -> None:
    # What the correction by ln Q is for: a sampled softmax without it pushes frequent words down.
    n_words = 30
    made = drawn(SampledSoftmax(n_words, 4, n_samples=15))
    hidden, targets = examples(40, n_words, 4)
    full = drawn(FullSoftmax(n_words, 4))
    assert torch.equal(full.W, made.W)
    full.loss(hidden, targets, seed=0).backward()
    mean = torch.zeros_like(made.b)
    for seed in range(300):
        made.zero_grad()
        made.loss(hidden, targets, seed=seed).backward()
        mean += made.b.grad.to_dense() / 300
    cosine = F.cosine_similarity(mean, full.b.grad, dim=0).item()
    assert cosine > 0.97
    assert float((mean - full.b.grad).abs().max()) < 0.03


def test_only_rows_that_take_part_are_in_the_gradient() -> None:
    made = drawn(SampledSoftmax(60, 4, n_samples=6))
    hidden, targets = examples(5, 60, 4)
    ranks, _ = sample_log_uniform(60, 6, 3)
    made.loss(hidden, targets, seed=3).backward()
    taking_part = sorted({*ranks.tolist(), *targets.tolist()})
    assert len(taking_part) < 15
    for gradient, shape in ((made.W.grad, (60, 4)), (made.b.grad, (60,))):
        assert gradient.is_sparse
        assert gradient.shape == shape
        gradient = gradient.coalesce()
        assert gradient.indices()[0].tolist() == taking_part
        assert (gradient.values() != 0).all()


class Seen(TorchDispatchMode):
    """Notes which operators read or write a tensor of at least ``large`` numbers."""

    def __init__(self, large: int) -> None:
        super().__init__()
        self.large = large
        self.operators: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_flatten((args, kwargs, result))[0] if isinstance(x, Tensor) and not x.is_sparse]
        if any(tensor.numel() >= self.large for tensor in tensors):
            self.operators.add(func.overloadpacket.__name__)
        return result


def test_no_operator_runs_over_the_whole_vocabulary() -> None:
    made = drawn(SampledSoftmax(50_000, 4, n_samples=6))
    hidden, targets = examples(5, 50_000, 4)
    with Seen(50_000) as seen:
        made.loss(hidden.requires_grad_(), targets, seed=3).backward()
    # Rows of W and numbers of b by their index; detach gives another name to a tensor.
    assert {"embedding", "index"} <= seen.operators <= {"embedding", "index", "detach"}


def plain_loss(made: SampledSoftmax, hidden: Tensor, targets: Tensor, seed: int) -> Tensor:
    """The sampled loss for autograd, all logits at once."""
    ranks, _ = sample_log_uniform(len(made.W), made.n_samples, seed)
    samples = torch.from_numpy(ranks)
    correction = torch.from_numpy(counted(made, seed)).log()
    true = (hidden * made.W[targets]).sum(1) + made.b[targets] - correction[targets]
    negatives = hidden @ made.W[samples].T + made.b[samples] - correction[samples]
    negatives = negatives.masked_fill(samples[None] == targets[:, None], -torch.inf)
    return (torch.cat([true[:, None], negatives], dim=1).logsumexp(dim=1) - true).mean()


@pytest.mark.parametrize("held", [1, 40, 95, 10_000])
@pytest.mark.parametrize(("n_words", "n_samples"), [(30, 13), (13, 13), (200, 13)])
def test_loss_and_gradients_block_by_block_are_those_of_autograd(
    monkeypatch: pytest.MonkeyPatch, n_words: int, n_samples: int, held: int
) -> None:
    monkeypatch.setitem(softmax.LOGITS_PER_BLOCK, "cpu", held)
    made = drawn(SampledSoftmax(n_words, 4, n_samples=n_samples))
    hidden, targets = examples(25, n_words, 4)
    targets[:5] = targets[0]  # one word often
    arguments = [hidden.requires_grad_(), made.W, made.b]
    for seed in range(4):
        found, expected = made.loss(hidden, targets, seed=seed), plain_loss(made, hidden, targets, seed)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        gradients, references = (torch.autograd.grad(loss * 1.7, arguments) for loss in (found, expected))
        for gradient, reference in zip(gradients, references, strict=True):
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-12)


def test_gradients_of_several_losses_add_up() -> None:
    # Both directions have one W.
    made = drawn(SampledSoftmax(40, 4, n_samples=9))
    pairs = [examples(7, 40, 4, seed) for seed in (0, 1)]
    total = sum(made.loss(*pair, seed=seed) for seed, pair in enumerate(pairs))
    expected = sum(plain_loss(made, *pair, seed) for seed, pair in enumerate(pairs))
    assert isinstance(total, Tensor)
    assert isinstance(expected, Tensor)
    total.backward()
    for gradient, reference in zip(
        (made.W.grad, made.b.grad), torch.autograd.grad(expected, [made.W, made.b]), strict=True
    ):
        torch.testing.assert_close(gradient.to_dense(), reference, rtol=0, atol=1e-12)


class Densely(torch.autograd.Function):
    """The same number, with a dense gradient: what gradcheck asks for."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to_dense()


def test_gradients_of_the_sampled_loss() -> None:
    made = drawn(SampledSoftmax(7, 3, n_samples=4))
    hidden, targets = examples(6, 7, 3)

    def loss(hidden: Tensor, W: Tensor, b: Tensor) -> Any:
        values = {"made.W": Densely.apply(W), "made.b": Densely.apply(b)}
        return torch.func.functional_call(Loss(made, targets), values, (hidden,))

    arguments = [hidden, made.W.detach().clone(), made.b.detach().clone()]
    assert torch.autograd.gradcheck(loss, [argument.requires_grad_() for argument in arguments])


class Loss(torch.nn.Module):
    """The loss as a module's forward, so that torch can put other weights in its place."""

    def __init__(self, made: SampledSoftmax, targets: Tensor) -> None:
        super().__init__()
        self.made = made
        self.targets = targets

    def forward(self, hidden: Tensor) -> Tensor:
        return self.made.loss(hidden, self.targets, seed=2)


def test_loss_in_float32_is_that_in_float64() -> None:
    made = drawn(SampledSoftmax(50, 4, n_samples=10))
    hidden, targets = examples(30, 50, 4)
    expected = made.loss(hidden, targets, seed=1).item()
    found = made.float().loss(hidden.float(), targets, seed=1)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_bfloat16_products_are_near_those_of_float32() -> None:
    made = drawn(SampledSoftmax(300, 16, n_samples=80)).float()
    with torch.no_grad():
        made.b.mul_(8.0)  # biases are not rounded
    hidden, targets = examples(50, 300, 16)
    hidden = hidden.float().requires_grad_()

    def run(enabled: bool) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = made.loss(hidden, targets, seed=1)
        return [loss, *torch.autograd.grad(loss, [hidden, made.W, made.b])]

    for narrow, wide in zip(run(True), run(False), strict=True):
        assert narrow.dtype == torch.float32
        narrow, wide = (x.to_dense() if x.is_sparse else x for x in (narrow, wide))
        error = ((narrow - wide).norm() / wide.norm()).item()
        assert 1e-7 < error < 1e-2


# A table shared with the biLM's input


@pytest.mark.parametrize("kind", ["full", "sampled"])
def test_a_tied_softmax_reads_and_teaches_the_other_table(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    table = torch.nn.Parameter(torch.randn(20, 4, generator=generator, dtype=torch.float64))

    def make(tied: bool) -> FullSoftmax:
        return FullSoftmax(20, 4, tied=tied) if kind == "full" else SampledSoftmax(20, 4, n_samples=6, tied=tied)

    tied, own = make(True), make(False)
    for made in (tied.double(), own.double()):
        with torch.no_grad():
            made.b.copy_(torch.linspace(-1, 1, 20))
    tied.tie(table)
    with torch.no_grad():
        own.W.copy_(table)
    # The other module owns it: it is not given to an optimizer or a checkpoint twice, and keeps its values.
    assert [name for name, _ in tied.named_parameters()] == list(tied.state_dict()) == ["b"]
    before = table.detach().clone()
    tied.initialize(0)
    assert torch.equal(table, before)
    own.b.data.zero_()
    hidden, targets = examples(25, 20, 4)
    assert torch.equal(tied.nll(hidden, targets), own.nll(hidden, targets))
    found, expected = (made.loss(hidden, targets, seed=3) + (made.W[2:5] ** 2).sum() for made in (tied, own))
    assert torch.equal(found, expected)
    found.backward()  # with what the input side adds
    expected.backward()
    assert table.grad is not None
    assert own.W.grad is not None
    assert not table.grad.is_sparse
    torch.testing.assert_close(table.grad, own.W.grad, rtol=0, atol=1e-12)
    assert torch.equal(tied.stored()["W"], table)


def test_a_table_of_another_shape_is_not_shared() -> None:
    with pytest.raises(ElmoError, match=r"\(20, 5\).*20 words and 4 dimensions"):
        FullSoftmax(20, 4, tied=True).tie(torch.nn.Parameter(torch.zeros(20, 5)))
