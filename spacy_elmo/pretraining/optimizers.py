"""Optimizers that a config can ask for, and the course of the learning rate.

Of a parameter with a sparse gradient (the words' rows of a sampled softmax) they read and write the gradient's rows and
no others, so that a step costs the same with a vocabulary of any size. Their state is dense, in checkpoints too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PretrainingError

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

# The learning rate's end under the cosine schedule, as a share of its peak.
COSINE_END = 0.1


def adagrad(learn_rate: float = 0.2, initial_accumulator: float = 1.0) -> MakeOptimizer:
    """``spacy-elmo.adagrad.v1``: bilm-tf's, ``a += g²; w -= r g / √a``, without epsilon, decay or momentum.

    It is torch's Adagrad with eps = 0, which is exactly this formula. Rows that a sparse gradient lacks would not move
    by it either.

    learn_rate (float): r; 0.2 is bilm-tf's.
    initial_accumulator (float): a before the first step; 1.0 is TensorFlow's.
    Raises PretrainingError for a value out of range.
    """
    _check("learn_rate", learn_rate, learn_rate > 0, "more than 0")
    _check("initial_accumulator", initial_accumulator, initial_accumulator > 0, "more than 0")  # 0 / √0 is NaN

    def create(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        parameters = list(parameters)
        # Fused, which there is for the CPU only: one pass over a parameter instead of four.
        fused = True if all(parameter.device.type == "cpu" for parameter in parameters) else None
        return RowsAdagrad(
            parameters, lr=learn_rate, initial_accumulator_value=initial_accumulator, eps=0.0, fused=fused
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

    With a sparse gradient it is "lazy", as torch's SparseAdam: a step in which a row has no gradient leaves the row and
    its moments as they are. It is neither decayed nor moved on by its momentum then.

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
        return RowsAdamW(groups, lr=learn_rate, betas=(beta1, beta2), eps=eps, fused=True)

    return create


class _Rows(torch.optim.Optimizer):
    """Mixed into an optimizer of torch, which goes on to serve the parameters with dense gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update. There is no closure."""
        assert closure is None
        sparse: list[tuple[nn.Parameter, Tensor]] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and gradient.is_sparse:
                    sparse.append((parameter, gradient))
                    gradient = gradient.coalesce()
                    self._step_rows(parameter, gradient.indices()[0], gradient.values(), group)
                    parameter.grad = None  # out of torch's sight
        super().step()
        for parameter, gradient in sparse:
            parameter.grad = gradient

    def _step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update the given rows, each of which is there once."""
        raise NotImplementedError


class RowsAdagrad(_Rows, torch.optim.Adagrad):
    """torch's Adagrad without its decays."""

    def _step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        state["step"] += 1
        total = state["sum"].index_select(0, rows).addcmul_(gradient, gradient)
        state["sum"].index_copy_(0, rows, total)
        parameter.index_add_(0, rows, gradient / total.sqrt_().add_(group["eps"]), alpha=-group["lr"])


class RowsAdamW(_Rows, torch.optim.AdamW):
    """torch's AdamW, lazy where a gradient is sparse."""

    def _step_rows(self, parameter: nn.Parameter, rows: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        mean = state["exp_avg"].index_select(0, rows).lerp_(gradient, 1.0 - beta1)
        square = state["exp_avg_sq"].index_select(0, rows).mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        state["exp_avg"].index_copy_(0, rows, mean)
        state["exp_avg_sq"].index_copy_(0, rows, square)
        # As tensors: nothing waits for a GPU. In float64, since 1 - beta2 has few digits otherwise.
        step = state["step"].double()
        rate, spread = group["lr"] / (1.0 - beta1**step), (1.0 - beta2**step).sqrt()
        update = mean.mul_(rate).div_(square.sqrt_().div_(spread).add_(group["eps"]))
        weights = parameter.index_select(0, rows).mul_(1.0 - group["lr"] * group["weight_decay"]).sub_(update)
        parameter.index_copy_(0, rows, weights)


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
