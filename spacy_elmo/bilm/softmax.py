"""The output layers of pretraining: from a top-layer vector to a distribution over the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import ElmoError
from .buffers import Buffers
from .mixed import add_product, product, product_dtype

# Logits that are held at once while the full softmax is scored: 64 MB.
LOGITS_PER_CHUNK = 16_000_000
# Logits of the sampled softmax that are worked on at once: 8 MB for a CPU's cache; on a GPU few launches count.
LOGITS_PER_BLOCK = {"cpu": 1 << 21, "cuda": 1 << 26}


class FullSoftmax(nn.Module):
    """logits = y W^T + b over the whole vocabulary. One serves both directions. See `OutputLayer`.

    W: (V, P). b: (V,).
    tied: W is the table of another module, which ``tie`` is to give before anything else.
    """

    kind: ClassVar[str] = "softmax"
    has_perplexity: ClassVar[bool] = True
    W: nn.Parameter

    def __init__(self, n_words: int, width: int, *, tied: bool = False) -> None:
        super().__init__()
        if n_words < 1 or width < 1:
            raise ElmoError(f"a softmax needs at least one word and one dimension, not {n_words} and {width}")
        self.n_words: int | None = n_words
        self.width = width
        self.tied = tied
        if not tied:
            self.W = nn.Parameter(torch.zeros(n_words, width))
        self.b = nn.Parameter(torch.zeros(n_words))

    def tie(self, table: nn.Parameter) -> None:
        """Take the table of a word-input biLM for W (bilm-tf's ``share_embedding_softmax``), once both are in place.

        It stays the other module's: that one moves it to a device, stores it and gives it to the optimizer.
        table: (V, P), its rows the words of this softmax.
        Raises ElmoError for a table of another shape.
        """
        if tuple(table.shape) != (self.n_words, self.width):
            raise ElmoError(
                f"the word table has shape {tuple(table.shape)}, but the softmax that shares it is of "
                f"{self.n_words} words and {self.width} dimensions"
            )
        object.__setattr__(self, "W", table)  # nn.Module's own would make it a parameter of this one too

    def initialize(self, seed: int = 0) -> FullSoftmax:
        """W ~ N(0, 1/P) (variance), b = 0, as in bilm-tf. A W that is tied is the other module's to draw."""
        generator = torch.Generator(device=self.b.device).manual_seed(seed)
        with torch.no_grad():
            if not self.tied:
                self.W.normal_(0.0, math.sqrt(1.0 / self.width), generator=generator)
            self.b.zero_()
        return self

    @torch.no_grad()
    def begin_with(self, log_frequencies: Tensor) -> None:
        """Set the biases so that where y W^T is 0 the words have these frequencies. log_frequencies: (V,)."""
        self.b.copy_(log_frequencies)

    def settings(self) -> dict[str, Any]:
        """Those of a softmax with a W of its own: a tied one's file holds the table, so that it can be read alone."""
        return {"n_words": self.n_words, "width": self.width}

    def stored(self) -> Mapping[str, Tensor]:
        """W (V, P) and b (V,)."""
        return {"W": self.W, "b": self.b}

    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        """Mean negative log-likelihood in nats, differentiable.

        hidden: (N, P). targets: (N,) int64. seed: for what a softmax draws; nothing here.
        """
        return F.cross_entropy(F.linear(hidden, self.W, self.b), targets)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each target by the full softmax, in nats, without gradient.

        hidden: (N, P). targets: (N,) int64. RETURNS: (N,) float32.
        """
        rows = max(1, LOGITS_PER_CHUNK // len(self.W))
        with torch.no_grad():
            chunks = [
                F.cross_entropy(F.linear(some, self.W, self.b), wanted, reduction="none")
                for some, wanted in zip(hidden.split(rows), targets.split(rows), strict=True)
            ]
            return torch.cat(chunks) if chunks else hidden.new_zeros(0)

    def target_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """``nll``: evaluation is by the whole vocabulary, whatever the training draws."""
        return self.nll(hidden, targets)


class SampledSoftmax(FullSoftmax):
    """Trains against a sample of the vocabulary, log-uniform by rank; scores by all of it.

    The vocabulary must stand in descending order of frequency: rank k is drawn with p(k) = ln((k+2)/(k+1)) / ln(V+1).
    Its file is that of a full softmax: the samples are the training's.
    """

    def __init__(self, n_words: int, width: int, *, n_samples: int, tied: bool = False) -> None:
        super().__init__(n_words, width, tied=tied)
        if not 1 <= n_samples <= n_words:
            raise ElmoError(f"n_samples ({n_samples}) is between 1 and the vocabulary's size ({n_words})")
        self.n_samples = n_samples

    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        """Mean sampled loss in nats: **not** a perplexity of the model, it is too low.

        One set of distinct negatives for all targets, the same for the same seed on every device and rank.
        W and b get sparse gradients (not coalesced), of the targets' and the negatives' rows: nothing here, and in an
        optimizer that reads them, costs more with a larger vocabulary. (A tied W gets a dense one from its other use.)
        """
        n_words = len(self.W)
        sampled, draws = sample_log_uniform(n_words, self.n_samples, seed)
        samples = torch.from_numpy(np.sort(sampled)).to(hidden.device, non_blocking=True)
        corrections = [
            _expected_counts(ranks, n_words, self.n_samples, draws).log().to(self.b.dtype)
            for ranks in (targets, samples)
        ]
        return _SampledLoss.apply(hidden, self.W, self.b, targets, samples, *corrections)


class _SampledLoss(torch.autograd.Function):
    """Mean over tokens of ln(e^t + Σ_s e^z_s) - t, where t = y·W_t + b_t - ln Q_t, and z_s the same for each sample s.

    Gradients are made with the loss, a block of tokens after the other, while the block's logits are in the cache:
    those of all tokens (tokens x samples) are never held.

    Under autocast the products with W read its dtype; all else is in the dtype of W.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        W: Tensor,
        b: Tensor,
        targets: Tensor,
        samples: Tensor,
        target_correction: Tensor,
        sample_correction: Tensor,
    ) -> Tensor:
        """hidden: (N, P). targets: (N,), samples: (S,) sorted, and ln Q of each. RETURNS: the mean, of no dimension."""
        dtype = product_dtype(W)
        n, n_samples = len(hidden), len(samples)
        y, wanted, rows = hidden.to(W.dtype), F.embedding(targets, W), F.embedding(samples, W)
        t = (y * wanted).sum(dim=1) + b[targets] - target_correction
        # The samples' biases and corrections as a last column: cheaper than to add them afterwards. In bfloat16 they
        # would lose too much.
        offset = b[samples] - sample_correction
        table = rows.to(dtype)
        left, right = y.to(dtype), table
        if dtype == W.dtype:
            left, right = F.pad(y, (0, 1), value=1.0), torch.cat([rows, offset[:, None]], dim=1)
        # Where a negative is this token's own target: it must not count against it.
        place = torch.searchsorted(samples, targets).clamp_(max=n_samples - 1)[:, None]
        hit = samples[place] == targets[:, None]

        losses, d_t, d_y = torch.empty_like(t), torch.empty_like(t), torch.empty_like(y)
        d_rows, d_offset = torch.zeros_like(rows), torch.zeros_like(offset)
        block = max(1, LOGITS_PER_BLOCK[W.device.type] // n_samples)
        buffers = Buffers.current()
        logits = buffers.take(min(block, n), n_samples, like=y)
        for start in range(0, n, block):
            now = slice(start, start + block)
            z = logits[: len(y[now])]
            if dtype == W.dtype:
                torch.mm(left[now], right.t(), out=z)
            else:
                torch.add(torch.mm(left[now], right.t()), offset, out=z)
            z.scatter_(1, place[now], z.gather(1, place[now]).masked_fill_(hit[now], torch.finfo(W.dtype).min))
            highest = torch.maximum(z.amax(dim=1), t[now])
            z.sub_(highest[:, None]).exp_()
            of_target = torch.exp(t[now] - highest)
            total = z.sum(dim=1).add_(of_target)
            losses[now] = total.log() + highest - t[now]
            # Probabilities are z / total, and of the mean 1 / n: the few columns of y are scaled instead of z. The n
            # comes after the product: with it float16 would have no digits left.
            share = 1.0 / (total * n)
            d_t[now] = of_target * share - 1.0 / n
            d_offset += share @ z
            p = z.to(dtype)
            add_product(p.t(), (y[now] / total[:, None]).to(dtype), d_rows)
            product(p, table, d_y[now])
            d_y[now].mul_(share[:, None])
        buffers.give(logits)
        d_rows.div_(n)
        d_y.addcmul_(wanted, d_t[:, None])
        ctx.save_for_backward(y, targets, samples, d_t, d_y, d_rows, d_offset)
        ctx.n_words, ctx.dtype = len(W), hidden.dtype
        return losses.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        y, targets, samples, d_t, d_y, d_rows, d_offset = ctx.saved_tensors
        n, width = y.shape
        ranks = torch.cat([targets, samples])[None]
        d_W = d_rows.new_empty(ranks.shape[1], width)
        torch.mul(y, (d_t * d_loss)[:, None], out=d_W[:n])
        torch.mul(d_rows, d_loss, out=d_W[n:])
        d_b = torch.cat([d_t, d_offset]) * d_loss
        return (
            (d_y * d_loss).to(ctx.dtype),
            torch.sparse_coo_tensor(ranks, d_W, (ctx.n_words, width), check_invariants=False),
            torch.sparse_coo_tensor(ranks, d_b, (ctx.n_words,), check_invariants=False),
            *[None] * 4,
        )


def sample_log_uniform(n_words: int, n_samples: int, seed: int) -> tuple[np.ndarray, int]:
    """Draw distinct ranks from the log-uniform distribution, by rejection of repeats.

    RETURNS: ranks (n_samples,) int64 in order of first appearance, and the number of draws it took.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    log_range = math.log(n_words + 1)
    draws = np.zeros(0, dtype=np.int64)
    # Where in the draws a rank appears first. What is not drawn is never read, so nothing is to be set before.
    first = np.empty(n_words, dtype=np.int64)
    size = 2 * n_samples
    while True:
        uniform = generator.random(size)
        draws = np.concatenate([draws, (np.exp(uniform * log_range).astype(np.int64) - 1) % n_words])
        numbers = np.arange(len(draws))
        first[draws[::-1]] = numbers[::-1]  # of several values for one place the last one stays
        distinct = np.flatnonzero(first[draws] == numbers)
        if len(distinct) >= n_samples:
            return draws[distinct[:n_samples]], int(distinct[n_samples - 1]) + 1
        # The rest of the tail is rare: draw in growing blocks.
        size *= 2


def _expected_counts(ranks: Tensor, n_words: int, n_samples: int, draws: int) -> Tensor:
    """How often each rank is expected in the sample: Q = 1 - (1 - p)^draws, float64."""
    k = ranks.to(torch.float64)
    p = torch.log((k + 2.0) / (k + 1.0)) / math.log(n_words + 1)
    if draws == n_samples:
        return p * n_samples
    return -torch.expm1(draws * torch.log1p(-p))
