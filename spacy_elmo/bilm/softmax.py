"""The output layers of pretraining: from a top-layer vector to a distribution over the vocabulary."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ElmoError

# Logits that are held at once while the full softmax is scored: 64 MB.
LOGITS_PER_CHUNK = 16_000_000


class FullSoftmax(nn.Module):
    """logits = y W^T + b over the whole vocabulary. One serves both directions.

    W: (V, P). b: (V,).
    """

    def __init__(self, n_words: int, width: int) -> None:
        super().__init__()
        if n_words < 1 or width < 1:
            raise ElmoError(f"a softmax needs at least one word and one dimension, not {n_words} and {width}")
        self.W = nn.Parameter(torch.zeros(n_words, width))
        self.b = nn.Parameter(torch.zeros(n_words))

    def initialize(self, seed: int = 0) -> FullSoftmax:
        """W ~ N(0, 1/P) (variance), b = 0, as in bilm-tf."""
        generator = torch.Generator(device=self.W.device).manual_seed(seed)
        with torch.no_grad():
            self.W.normal_(0.0, math.sqrt(1.0 / self.W.shape[1]), generator=generator)
            self.b.zero_()
        return self

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


class SampledSoftmax(FullSoftmax):
    """Trains against a sample of the vocabulary, log-uniform by rank; scores by all of it.

    The vocabulary must stand in descending order of frequency: rank k is drawn with p(k) = ln((k+2)/(k+1)) / ln(V+1).
    """

    def __init__(self, n_words: int, width: int, *, n_samples: int) -> None:
        super().__init__(n_words, width)
        if not 1 <= n_samples <= n_words:
            raise ElmoError(f"n_samples ({n_samples}) is between 1 and the vocabulary's size ({n_words})")
        self.n_samples = n_samples

    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        """Mean sampled loss in nats: **not** a perplexity of the model, it is too low.

        One set of distinct negatives for all targets, the same for the same seed on every device and rank.
        """
        n_words = len(self.W)
        sampled, draws = sample_log_uniform(n_words, self.n_samples, seed)
        samples = torch.from_numpy(sampled).to(hidden.device)
        ranks = torch.cat([targets, samples])
        expected = _expected_counts(ranks, n_words, self.n_samples, draws)
        rows = F.embedding(ranks, self.W)
        biases = self.b[ranks] - expected.log().to(hidden.dtype)
        n = len(targets)
        true_logits = (hidden * rows[:n]).sum(dim=1) + biases[:n]
        negatives = torch.addmm(biases[n:], hidden, rows[n:].t())
        # A negative that is this token's own target must not count against it.
        negatives = negatives.masked_fill(targets[:, None] == samples[None], torch.finfo(hidden.dtype).min)
        return (torch.logaddexp(negatives.logsumexp(dim=1), true_logits) - true_logits).mean()


def sample_log_uniform(n_words: int, n_samples: int, seed: int) -> tuple[np.ndarray, int]:
    """Draw distinct ranks from the log-uniform distribution, by rejection of repeats.

    RETURNS: ranks (n_samples,) int64 in order of first appearance, and the number of draws it took.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    log_range = math.log(n_words + 1)
    seen = np.zeros(0, dtype=np.int64)
    draws = np.zeros(0, dtype=np.int64)
    size = 2 * n_samples
    while True:
        uniform = generator.random(size)
        draws = np.concatenate([draws, (np.exp(uniform * log_range).astype(np.int64) - 1) % n_words])
        _, first = np.unique(draws, return_index=True)
        if len(first) >= n_samples:
            first.sort()
            seen = draws[first[:n_samples]]
            return seen, int(first[n_samples - 1]) + 1
        # The rest of the tail is rare: draw in growing blocks.
        size *= 2


def _expected_counts(ranks: Tensor, n_words: int, n_samples: int, draws: int) -> Tensor:
    """How often each rank is expected in the sample: Q = 1 - (1 - p)^draws, float64."""
    k = ranks.to(torch.float64)
    p = torch.log((k + 2.0) / (k + 1.0)) / math.log(n_words + 1)
    if draws == n_samples:
        return p * n_samples
    return -torch.expm1(draws * torch.log1p(-p))
