"""A softmax whose loss breaks at chosen steps, as often as it is told to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import spacy
import torch
from torch import Tensor

from spacy_elmo.bilm.softmax import FullSoftmax


class Breaking(FullSoftmax):
    """At step ``s`` (from 0) the first ``times[s]`` forward losses are not finite, or their gradients."""

    def __init__(self, n_words: int, width: int, times: dict[int, int], what: str = "loss") -> None:
        super().__init__(n_words, width)
        self.times, self.what = times, what
        self.seen: dict[int, int] = {}

    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        loss = super().loss(hidden, targets, seed=seed)
        step, backward = divmod(seed, 2)
        if backward:
            return loss
        self.seen[step] = self.seen.get(step, 0) + 1
        if self.seen[step] > self.times.get(step, 0):
            return loss
        # A finite loss with a gradient that is not: d sqrt(x) at 0.
        return loss * math.nan if self.what == "loss" else loss + (loss * 0.0).sqrt()


@spacy.registry.misc("test.breaking_at.v1")
def breaking_at(steps: list[int], what: str = "loss") -> Callable[[int, int], FullSoftmax]:
    """Broken at these steps, once for each time that a step is named."""
    return lambda n_words, width: Breaking(n_words, width, {step: steps.count(step) for step in steps}, what)


def same_weights(one: Any, other: Any) -> bool:
    """To the bit."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
