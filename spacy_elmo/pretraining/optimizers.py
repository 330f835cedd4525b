"""Optimizers that a config can ask for, and the course of the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from ..errors import PretrainingError

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

# The learning rate's end under the cosine schedule, as a share of its peak.
COSINE_END = 0.1


def adagrad(learn_rate: float = 0.2, initial_accumulator: float = 1.0) -> MakeOptimizer:
    """``spacy-elmo.adagrad.v1``: bilm-tf's, ``a += g²; w -= r g / √a``, without epsilon, decay or momentum.

    It is torch's Adagrad with eps = 0, which is exactly this formula.

    learn_rate (float): r; 0.2 is bilm-tf's.
    initial_accumulator (float): a before the first step; 1.0 is TensorFlow's.
    Raises PretrainingError for a value out of range.
    """
    _check("learn_rate", learn_rate, learn_rate > 0, "more than 0")
    _check("initial_accumulator", initial_accumulator, initial_accumulator > 0, "more than 0")  # 0 / √0 is NaN

    def create(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(
            list(parameters), lr=learn_rate, initial_accumulator_value=initial_accumulator, eps=0.0
        )

    return create


def adamw(
    learn_rate: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
) -> MakeOptimizer:
    """``spacy-elmo.adamw.v1``: AdamW (Loshchilov and Hutter, 2019). Biases are not decayed.

    Raises PretrainingError for a value out of range.
    """
    _check("learn_rate", learn_rate, learn_rate > 0, "more than 0")
    _check("beta1", beta1, 0 <= beta1 < 1, "from 0 to less than 1")
    _check("beta2", beta2, 0 <= beta2 < 1, "from 0 to less than 1")
    _check("eps", eps, eps > 0, "more than 0")  # a row without a gradient would be 0 / 0
    _check("weight_decay", weight_decay, weight_decay >= 0, "0 or more")

    def create(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        parameters = list(parameters)
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        # Fused: one pass over a parameter instead of some ten; on a CPU the softmax's table makes that matter.
        return torch.optim.AdamW(groups, lr=learn_rate, betas=(beta1, beta2), eps=eps, fused=True)

    return create


def _check(name: str, value: float, in_range: bool, wanted: str) -> None:
    if not (in_range and math.isfinite(value)):
        raise PretrainingError(f"optimizer.{name} is {value}: it must be {wanted}")


def learn_rate_factor(step: int, *, max_steps: int, warmup_steps: int, schedule: str) -> float:
    """The share of the peak learning rate at a step (from 0): a linear rise, then constant or a cosine's half wave
    down to ``COSINE_END``.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, max_steps - warmup_steps))
    return COSINE_END + (1.0 - COSINE_END) * 0.5 * (1.0 + math.cos(math.pi * progress))
