"""Continuous outputs: predict the pretrained vector of the next word instead of the word."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.polynomial import Polynomial
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import ElmoError

VectorLoss = Literal["cosine", "vmf"]
# Bessel functions: the uniform expansion is used from this order on, with so many terms; 1e-13 is left out.
DEBYE_ORDER = 50.0
DEBYE_TERMS = 7


class ContinuousOutput(nn.Module):
    """ŷ = W y + b is to point where the next word's pretrained vector points (Li et al., 2019, "Efficient contextual
    representation learning with continuous outputs"). There is no vocabulary, and nothing grows with one. See
    `OutputLayer`.

    W: (D, P). b: (D,). Vectors (D numbers each) are no weights: they are given by ``use_table`` and never stored.
    loss: "cosine": 1 - cos(ŷ, e). "vmf": the negative log-density, in nats, of e under the von Mises-Fisher
        distribution around ŷ with concentration κ = ||ŷ||: -ln C_D(κ) - ŷ·e, for e of length 1 (Kumar and Tsvetkov,
        2019, "Von Mises-Fisher loss for training sequence to sequence models with continuous outputs").
    dot_weight, norm_weight: λ2 and λ1 of that paper's regularised losses, -ln C_D(κ) - λ2 ŷ·e + λ1 κ. With "vmf" only.
    vectors, sha256: the name and the hash of the table that the vectors come from.
    Raises ElmoError for a value out of range. Parameters are zeros until ``initialize`` draws them.
    """

    kind: ClassVar[str] = "continuous_output"
    has_perplexity: ClassVar[bool] = False
    table: Tensor | None

    def __init__(
        self,
        n_dims: int,
        width: int,
        *,
        loss: VectorLoss = "cosine",
        dot_weight: float = 1.0,
        norm_weight: float = 0.0,
        vectors: str = "",
        sha256: str = "",
    ) -> None:
        super().__init__()
        if n_dims < 2 or width < 1:
            raise ElmoError(f"vectors of two numbers or more are predicted from one or more, not {n_dims} from {width}")
        if loss not in get_args(VectorLoss):
            raise ElmoError(f"loss is {' or '.join(map(repr, get_args(VectorLoss)))}, not {loss!r}")
        if not 0 < dot_weight < math.inf or not 0 <= norm_weight < math.inf:
            raise ElmoError(f"dot_weight is more than 0 and norm_weight 0 or more, not {dot_weight} and {norm_weight}")
        if loss == "cosine" and (dot_weight, norm_weight) != (1.0, 0.0):
            raise ElmoError("dot_weight and norm_weight have no effect on the cosine: they are of loss = 'vmf'")
        if not isinstance(vectors, str) or not re.fullmatch(r"([0-9a-f]{64})?", sha256):
            raise ElmoError(f"vectors have a name and a SHA-256 in hexadecimal, not {vectors!r} and {sha256!r}")
        self.n_words: int | None = None
        self.n_dims = n_dims
        self.width = width
        self.loss_name = loss
        self.dot_weight = dot_weight
        self.norm_weight = norm_weight
        self.vectors = vectors
        self.sha256 = sha256
        self.W = nn.Parameter(torch.zeros(n_dims, width))
        self.b = nn.Parameter(torch.zeros(n_dims))
        self.register_buffer("table", None, persistent=False)

    def use_table(self, table: Tensor) -> None:
        """Give the vectors that targets are rows of.

        table: (R, D), any floating-point dtype, each row of length 1. Row 0 is not read: it stands for "no vector".
        Raises ElmoError for vectors of another width.
        """
        if table.dim() != 2 or table.shape[1] != self.n_dims:
            raise ElmoError(f"vectors of {self.n_dims} numbers are predicted, not a table {tuple(table.shape)}")
        self.table = table.to(self.b.device)

    def initialize(self, seed: int = 0) -> ContinuousOutput:
        """W ~ N(0, 1/P) (variance), b = 0, as the softmax's."""
        generator = torch.Generator(device=self.W.device).manual_seed(seed)
        with torch.no_grad():
            self.W.normal_(0.0, math.sqrt(1.0 / self.width), generator=generator)
            self.b.zero_()
        return self

    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        """Mean loss of the targets that have a vector, differentiable; 0 if none has one.

        hidden: (N, P). targets: (N,) int64, rows of the table, 0 for a word without a vector: it is left out. seed: for
        what an output layer draws; nothing here.
        """
        return self._losses(hidden, targets).sum() / (targets > 0).sum().clamp(min=1)

    def target_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Each target's loss, without gradient: (N,), 0 where there is no vector."""
        with torch.no_grad():
            return self._losses(hidden, targets)

    def _losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        if self.table is None:
            raise ElmoError(f"the vectors '{self.vectors}' that this output layer predicts were not given to it")
        # Under autocast only the product is narrow.
        predicted = F.linear(hidden, self.W, self.b).to(self.W.dtype)
        wanted = F.embedding(targets, self.table).to(self.W.dtype)
        if self.loss_name == "cosine":
            losses = 1.0 - F.cosine_similarity(predicted, wanted, dim=1)
        else:
            concentration = torch.linalg.vector_norm(predicted, dim=1)
            losses = log_normaliser(concentration, self.n_dims) - self.dot_weight * (predicted * wanted).sum(dim=1)
            losses = losses + self.norm_weight * concentration
        return losses.masked_fill(targets == 0, 0.0)

    def settings(self) -> dict[str, Any]:
        """Arguments of the constructor: of the vectors no more than their name and hash."""
        return {
            "n_dims": self.n_dims,
            "width": self.width,
            "loss": self.loss_name,
            "dot_weight": self.dot_weight,
            "norm_weight": self.norm_weight,
            "vectors": self.vectors,
            "sha256": self.sha256,
        }

    def stored(self) -> Mapping[str, Tensor]:
        """W (D, P) and b (D,)."""
        return {"W": self.W, "b": self.b}

    def __deepcopy__(self, memo: dict[int, Any]) -> ContinuousOutput:
        # Nobody writes to the table, and it is large: copies (averaged weights) share it.
        memo[id(self.table)] = self.table
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def get_extra_state(self) -> Tensor:
        """The hash, in bytes: a checkpoint's state is of these vectors."""
        return torch.tensor(list(bytes.fromhex(self.sha256)), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """Raises ElmoError for the state of a layer that predicts other vectors."""
        if not torch.equal(state.cpu(), self.get_extra_state()):
            raise ElmoError(
                f"the vectors '{self.vectors}' (SHA-256 {self.sha256[:12]}) are not those that were predicted so far "
                f"({bytes(state.cpu().tolist()).hex()[:12]})"
            )


def log_normaliser(concentration: Tensor, n_dims: int) -> Tensor:
    """-ln C_D(κ), where C_D(κ) = κ^v / ((2π)^(D/2) I_v(κ)) and v = D/2 - 1: what makes exp(κ μ·e) a density on the
    sphere of D dimensions. Finite and exact to some 1e-12 for any κ >= 0, 0 and 1e6 included; computed in float64.

    concentration: (N,). RETURNS: (N,), of its dtype. Differentiable once: the derivative is I_(v+1)(κ) / I_v(κ), the
    length of the mean vector.
    """
    return _LogNormaliser.apply(concentration, n_dims)


class _LogNormaliser(torch.autograd.Function):
    """With F_u(x) = I_u(x) / x^u, which is smooth at 0: F_(u-1) = 2u F_u + x² F_(u+1) (DLMF 10.29.1). Downwards this
    loses no digits. It begins at an order that Debye's uniform expansion (DLMF 10.41.3) is good for.
    """

    @staticmethod
    def forward(ctx: Any, concentration: Tensor, n_dims: int) -> Tensor:
        x, order = concentration.double(), n_dims / 2.0 - 1.0
        steps = max(0, math.ceil(DEBYE_ORDER - order))
        u = order + steps
        log_f = _log_scaled_bessel(u, x)
        ratio = torch.exp(_log_scaled_bessel(u + 1.0, x) - log_f)  # F_(u+1) / F_u
        for step in range(steps):
            ratio = 1.0 / (2.0 * (u - step) + x * x * ratio)
            log_f = log_f - ratio.log()
        ctx.save_for_backward((x * ratio).to(concentration.dtype))
        return (log_f + n_dims / 2.0 * math.log(2.0 * math.pi)).to(concentration.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mean_length,) = ctx.saved_tensors
        return gradient * mean_length, None


def _log_scaled_bessel(order: float, x: Tensor) -> Tensor:
    """ln(I_u(x) / x^u) for a large order u, by DLMF 10.41.3, with s = √(u² + x²) and p = u / s."""
    s = torch.sqrt(order * order + x * x)
    p = order / s
    total = torch.zeros_like(p)
    for coefficient in reversed(_debye_coefficients(order)):  # Horner
        total = total * p + coefficient
    return s - order * torch.log(order + s) - 0.5 * torch.log(2.0 * math.pi * s) + total.log()


@cache
def _debye_coefficients(order: float) -> list[float]:
    """Coefficients of Σ U_k(p) / u^k as one polynomial of p, its lowest first. U_k: DLMF 10.41.9."""
    term, total = Polynomial([1.0]), Polynomial([0.0])
    for k in range(DEBYE_TERMS):
        total = total + term / order**k
        term = Polynomial([0, 0, 0.5, 0, -0.5]) * term.deriv() + 0.125 * (Polynomial([1, 0, -5]) * term).integ()
    return np.asarray(total.coef).tolist()
