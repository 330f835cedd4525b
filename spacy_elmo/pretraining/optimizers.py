"""Optimizers that a config can ask for.

Of a parameter with a sparse gradient (the words' rows of a sampled softmax) our own, ``adagrad`` and ``adamw``, read
and write the gradient's rows and no others, so that a step costs the same with a vocabulary of any size. Their state is
dense, in checkpoints too.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PretrainingError

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

# Optimizers of torch that are none for us.
_UNFIT = {
    "LBFGS": "asks for the loss several times a step",
    "SparseAdam": "takes no dense gradients (spacy-elmo.adamw.v1 does the same with sparse ones, and takes both)",
}
# Settings of torch's optimizers that are not the user's to make.
_NO_SETTINGS = ("params", "maximize", "differentiable", "capturable")


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
        return RowsAdamW(groups, lr=learn_rate, betas=(float(beta1), float(beta2)), eps=eps, fused=True)

    return create


def torch_optimizer(name: str, settings: dict[str, Any] | None = None) -> MakeOptimizer:
    """``spacy-elmo.torch_optimizer.v1``: any optimizer of ``torch.optim`` that works with one gradient a step.

    Where it cannot read the sparse gradients of a sampled softmax they are made dense, with a warning: a step then
    moves all rows of the table. SGD and Adagrad read them, as long as they have neither decay nor momentum.

    name (str): as in torch, "NAdam".
    settings (dict): its arguments by torch's names, ``lr`` among them; the schedule multiplies ``lr``. None: torch's
        defaults.
    Raises PretrainingError that lists the names, or the settings, for an unknown one; for a value that torch refuses.
    """
    known = sorted(
        key
        for key, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    )
    fit = ", ".join(key for key in known if key not in _UNFIT)
    if name in _UNFIT:
        raise PretrainingError(f"optimizer.name is {name}, which {_UNFIT[name]}: choose one of {fit}")
    if name not in known:
        raise PretrainingError(f"optimizer.name is {name}, but torch.optim has {fit}")
    torch_class = getattr(torch.optim, name)
    wanted = {key: tuple(value) if isinstance(value, list) else value for key, value in (settings or {}).items()}
    names = [key for key in inspect.signature(torch_class).parameters if key not in _NO_SETTINGS]
    unknown = sorted(set(wanted) - set(names))
    if unknown:
        raise PretrainingError(
            f"optimizer.settings: {name} has no {', '.join(unknown)}; its settings are {', '.join(names)}"
        )
    reads_rows = name in ("SGD", "Adagrad") and not any(
        wanted.get(key) for key in ("momentum", "weight_decay", "fused")
    )
    made = torch_class if reads_rows else type(name, (_Densified, torch_class), {})

    def create(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        try:
            return made(list(parameters), **wanted)
        except (ValueError, TypeError, RuntimeError, AssertionError, LookupError) as error:
            raise PretrainingError(f"torch's {name} cannot be made: {error}") from error

    create([nn.Parameter(torch.zeros(1, 1))])  # what torch refuses is refused before any text is read
    return create


class _Densified(torch.optim.Optimizer):
    """Mixed into an optimizer of torch that cannot read sparse gradients."""

    _warned = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update. There is no closure."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    self._warn(parameter)
                    parameter.grad = parameter.grad.to_dense()
        return super().step()

    def _warn(self, parameter: nn.Parameter) -> None:
        if not self._warned:
            self._warned = True
            name = type(self).__name__
            warnings.warn(
                f"torch's {name} cannot read sparse gradients: each step moves all {parameter.numel():,} numbers of "
                "the softmax's table, instead of the rows that have a gradient. The optimizers spacy-elmo.adagrad.v1 "
                "and spacy-elmo.adamw.v1 move these rows only",
                stacklevel=3,
            )


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
