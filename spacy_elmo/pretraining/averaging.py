"""A moving average of the weights, which is often better than the weights themselves."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer


class Averages:
    """An exponential moving average of a model's weights: ``a += (1 - d) (w - a)`` after every update.

    d is ``decay``, but never more than (1 + n) / (10 + n) at the n-th update from 0, so that the untrained weights are
    soon forgotten (as in TensorFlow's ``ExponentialMovingAverage`` with ``num_updates``).

    bilm, softmax: copies of the given ones, with the averages as their weights. Rows of a sampled softmax that a step
    does not move are averaged too: a step passes once over all weights.
    """

    def __init__(self, bilm: BiLM, softmax: OutputLayer, decay: float) -> None:
        self.bilm, self.softmax = copy.deepcopy((bilm, softmax))  # together: what they share the copies share
        assert isinstance(softmax, nn.Module)
        assert isinstance(self.softmax, nn.Module)
        self._models = nn.ModuleList([bilm, softmax])
        self._copies = nn.ModuleList([self.bilm, self.softmax]).requires_grad_(False)
        self.decay = decay

    @property
    def weights(self) -> list[Tensor]:
        """The averages."""
        return list(self._copies.parameters())

    @torch.no_grad()
    def update(self, n: int) -> None:
        """Take in the weights after the update number ``n``, counted from 0."""
        decay = min(self.decay, (1.0 + n) / (10.0 + n))
        for average, weight in zip(self._copies.parameters(), self._models.parameters(), strict=True):
            average.lerp_(weight, 1.0 - decay)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint stores."""
        return self._copies.state_dict()

    def load(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of ``tensors``. Raises RuntimeError if they are those of another model."""
        self._copies.load_state_dict(tensors)
