"""Go back to before the last update, which made the loss infinite."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .checkpoint import optimizer_state, optimizer_tensors


class Undo:
    """A copy of the weights and of the optimizer's state, from before the last update.

    weights: all that an update moves, averages included.
    """

    def __init__(self, weights: Sequence[Tensor], optimizer: torch.optim.Optimizer) -> None:
        self._weights = list(weights)
        self._optimizer = optimizer
        self._before: tuple[list[Tensor], dict[int, Any]] | None = None

    def remember(self) -> None:
        """Copy what is there now, in the place of what was copied before."""
        self._before = None  # its memory serves the new copy
        state = copy.deepcopy(self._optimizer.state_dict()["state"])
        self._before = [weight.detach().clone() for weight in self._weights], state

    @torch.no_grad()
    def take_back(self) -> None:
        """Put the copy back, if there is one; there is none afterwards."""
        if self._before is None:
            return
        (weights, state), self._before = self._before, None
        for weight, before in zip(self._weights, weights, strict=True):
            weight.copy_(before)
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": state})

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint stores, by group."""
        if self._before is None:
            return {}
        weights, state = self._before
        return {
            "undo_weights": {str(number): weight for number, weight in enumerate(weights)},
            "undo_optimizer": optimizer_tensors(state, self._optimizer),
        }

    def load(self, weights: dict[str, Tensor], optimizer: dict[str, Tensor]) -> None:
        """The inverse of ``tensors``. Averages that a run has only from here on were nothing else before.

        Raises RuntimeError or KeyError if they are those of another model.
        """
        if not weights:
            return
        copies = [
            torch.empty_like(weight).copy_(weights[str(n)] if n < len(weights) else weight)
            for n, weight in enumerate(self._weights)
        ]
        self._before = copies, optimizer_state(optimizer)
