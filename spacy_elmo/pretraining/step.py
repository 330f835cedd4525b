"""One step of pretraining: from a window of text to the next weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ..bilm.buffers import Buffers
from ..bilm.model import BiLM, BiLMState
from ..bilm.softmax import FullSoftmax
from ..errors import PretrainingError
from .optimizers import learn_rate_factor
from .word_types import Types

if TYPE_CHECKING:
    from .config import TrainingSettings
    from .streams import Window


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step gives.

    forward, backward (float): the directions' mean losses in nats, before the update.
    state (BiLMState): where the LSTMs stand after the window.
    """

    forward: float
    backward: float
    state: BiLMState

    @property
    def loss(self) -> float:
        """The mean of both directions."""
        return 0.5 * (self.forward + self.backward)


class TrainingStep:
    """bilm-tf's step: both directions read the same window, the gradient of the mean of their losses, times
    ``unroll_steps``, is clipped by one norm over everything, and the optimizer moves all weights.

    bilm, softmax, optimizer: on one device; the optimizer's learning rates are the peaks of the schedule.
    types: the corpus's word types, which a window's ``type_rows`` number.
    settings: [training] of the config.
    """

    def __init__(
        self,
        *,
        bilm: BiLM,
        softmax: FullSoftmax,
        optimizer: torch.optim.Optimizer,
        types: Sequence[str],
        settings: TrainingSettings,
    ) -> None:
        self.bilm = bilm
        self.softmax = softmax
        self.optimizer = optimizer
        self.settings = settings
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self._parameters = [*bilm.parameters(), *softmax.parameters()]
        self._type_ids = _type_ids(bilm, types)
        self._buffers = Buffers()

    def __call__(self, window: Window, state: BiLMState, step: int) -> StepResult:
        """Do the update number ``step``, counted from 0.

        Raises PretrainingError, before anything is changed, if the loss or the gradient is not finite.
        """
        settings, device = self.settings, self.bilm.device
        token_ids = self._on_device(self._type_ids[window.type_rows]).long()
        arrays = (window.forward, window.backward, window.forward_targets, window.backward_targets)
        forward, backward, *targets = self._on_device(np.stack(arrays))
        starts = self._on_device(window.starts) if settings.reset == "sentence" else None
        bfloat16 = torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bfloat16")
        with self._buffers.in_use(), bfloat16:
            *hidden, next_state = self.bilm.hidden(token_ids, forward, backward, state, settings.dropout, starts)
            losses = [
                self.softmax.loss(
                    hidden[direction].flatten(0, 1), targets[direction].flatten(), seed=2 * step + direction
                )
                for direction in (0, 1)
            ]
        self.optimizer.zero_grad(set_to_none=True)
        # bilm-tf's scale: clip_norm and Adagrad's learning rate are meant for it.
        (0.5 * settings.unroll_steps * (losses[0] + losses[1])).backward()
        gradients = merged_gradients(self._parameters)
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))

        # A GPU is waited for here only, and just before, where rows were merged.
        *values, length = torch.stack([*(loss.detach() for loss in losses), norm]).tolist()
        result = StepResult(forward=values[0], backward=values[1], state=next_state)
        if not math.isfinite(result.loss):
            raise PretrainingError(f"the loss at step {step + 1} is {result.loss}")
        if not math.isfinite(length):
            raise PretrainingError(f"the gradient at step {step + 1} is not finite")
        if length > settings.clip_norm:
            for gradient in gradients:
                gradient.mul_(settings.clip_norm / length)

        factor = learn_rate_factor(
            step, max_steps=settings.max_steps, warmup_steps=settings.warmup_steps, schedule=settings.schedule
        )
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        self.optimizer.step()
        return result

    def _on_device(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        device = self.bilm.device
        # From pinned memory a copy runs by itself.
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def merged_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradients' numbers, each once: of a sparse one its values, after those of the same row were added up.

    Writing to them changes the gradients.
    """
    values = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())
        else:
            values.append(parameter.grad)
    return values


def _type_ids(bilm: BiLM, types: Sequence[str]) -> np.ndarray:
    """What the token encoder reads for each type of the corpus, computed once: (n_types, C), on disk, or (n_types,)."""
    config = bilm.config
    if isinstance(types, Types) and config.filters is not None and config.n_words is None and not config.is_many_langs:
        return types.character_rows(config.max_characters_per_token)
    dtype = np.int16 if config.filters is not None else np.int32  # of (n, C) int64 a quarter
    parts = [
        bilm.token_ids(types[start : start + 8192]).cpu().numpy().astype(dtype) for start in range(0, len(types), 8192)
    ]
    return np.concatenate(parts)
