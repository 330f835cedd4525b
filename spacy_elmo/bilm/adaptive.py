"""The adaptive softmax: frequent words by the whole vector, rare ones in clusters by a part of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ElmoError
from . import softmax


class AdaptiveSoftmax(nn.AdaptiveLogSoftmaxWithLoss):
    """torch's adaptive softmax (Grave et al., 2017, "Efficient softmax approximation for GPUs"). See `OutputLayer`.

    Words [0, c_1) and one entry for each cluster stand in the head; cluster i holds the words [c_i, c_(i+1)), of which
    the last ends with V, and reads P / div_value^i numbers. It is a distribution of its own and not an estimate of the
    full softmax: perplexities are exact. The vocabulary must stand in descending order of frequency.

    cutoffs: c_1, c_2, ...: rising, each from 1 to V - 1.
    head_bias, tail_bias: whether the head, and the clusters, have biases. torch's clusters have none.
    Raises ElmoError for a value out of range. Parameters are zeros until ``initialize`` draws them.
    """

    kind: ClassVar[str] = "adaptive_softmax"
    has_perplexity: ClassVar[bool] = True

    def __init__(
        self,
        n_words: int,
        width: int,
        *,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        tail_bias: bool = False,
    ) -> None:
        if n_words < 2 or width < 1:
            raise ElmoError(f"an adaptive softmax needs two words and one dimension, not {n_words} and {width}")
        rising = all(low < high for low, high in pairwise([0, *cutoffs, n_words]))
        if not cutoffs or not rising or not all(isinstance(cutoff, int) for cutoff in cutoffs):
            raise ElmoError(
                f"cutoffs are rising whole numbers from 1 to the vocabulary's size less one ({n_words - 1}), "
                f"not {list(cutoffs)}"
            )
        if not div_value >= 1 or width // div_value ** len(cutoffs) < 1:
            raise ElmoError(
                f"div_value is {div_value}: it must be 1 or more, and small enough that the last cluster of "
                f"{len(cutoffs)} reads something: {width} / {div_value}^{len(cutoffs)} must be 1 or more"
            )
        # Made without numbers first: torch would draw them from the global generator.
        super().__init__(width, n_words, list(cutoffs), div_value, head_bias, device="meta")
        self.tail_bias = tail_bias
        if tail_bias:
            for cluster in self.tail:
                assert isinstance(cluster, nn.Sequential)
                last = cluster[1]
                assert isinstance(last, nn.Linear)
                cluster[1] = nn.Linear(last.in_features, last.out_features, device="meta")
        self.to_empty(device=torch.get_default_device())
        self.n_words: int | None = n_words
        self.width = width
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()

    def initialize(self, seed: int = 0) -> AdaptiveSoftmax:
        """Matrices ~ N(0, 1 / what they read) (variance), as the full softmax's; biases 0."""
        generator = torch.Generator(device=self.head.weight.device).manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, math.sqrt(1.0 / parameter.shape[1]), generator=generator)
                else:
                    parameter.zero_()
        return self

    @torch.no_grad()
    def begin_with(self, log_frequencies: Tensor) -> None:
        """Set the biases so that where all else is 0 the words have these frequencies. All biases must be there.

        log_frequencies: (V,).
        """
        parts = log_frequencies.split([high - low for low, high in pairwise([0, *self.cutoffs])])
        totals = [part.logsumexp(dim=0) for part in parts[1:]]
        self.head.bias.copy_(torch.cat([parts[0], torch.stack(totals)]))
        for cluster, part, total in zip(self.tail, parts[1:], totals, strict=True):
            cluster[1].bias.copy_(part - total)  # type: ignore[index]

    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        """Mean negative log-likelihood in nats, differentiable.

        hidden: (N, P). targets: (N,) int64. seed: for what an output layer draws; nothing here.
        """
        return self._losses(hidden, targets).mean()

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each target, in nats, without gradient.

        hidden: (N, P). targets: (N,) int64. RETURNS: (N,) float32.
        """
        sizes = [high - low for low, high in pairwise(self.cutoffs)]
        rows = max(1, softmax.LOGITS_PER_CHUNK // max(self.head_size, *sizes))
        with torch.no_grad():
            parts = zip(hidden.split(rows), targets.split(rows), strict=True)
            return torch.cat([self._losses(*part) for part in parts])

    def target_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """``nll``."""
        return self.nll(hidden, targets)

    def _losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """What torch's ``forward`` computes. That one fails under autocast on the CPU, and gives the clusters that no
        target falls into no gradient: then ranks would differ in what they have gradients of.
        """
        dtype = self.head.weight.dtype
        place, tails = targets, hidden.new_zeros(len(hidden), dtype=dtype)
        for i, low in enumerate(self.cutoffs[:-1]):
            inside = (targets >= low) & (targets < self.cutoffs[i + 1])
            place = torch.where(inside, self.shortlist_size + i, place)
            rows = inside.nonzero()[:, 0]
            logits = self.tail[i](hidden[rows]).to(dtype)
            tails = tails.index_add(0, rows, F.cross_entropy(logits, targets[rows] - low, reduction="none"))
        return F.cross_entropy(self.head(hidden).to(dtype), place, reduction="none") + tails

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor."""
        return {
            "n_words": self.n_words,
            "width": self.width,
            "cutoffs": self.cutoffs[:-1],
            "div_value": self.div_value,
            "head_bias": self.head_bias,
            "tail_bias": self.tail_bias,
        }

    def stored(self) -> Mapping[str, Tensor]:
        """torch's names: head.weight, tail.0.0.weight, ..."""
        return dict(self.named_parameters())
