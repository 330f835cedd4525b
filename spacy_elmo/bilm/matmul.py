"""Products with a fixed matrix, for inference: oneDNN's on a packed copy where that is there and right, else torch's.

torch hands float32 products on x86 to MKL; oneDNN's are up to twice as fast there (measured: docs/speed.md) and as
exact. The way to them is a private operator of torch, so it is tried once against a plain product before it is used.
``SPACY_ELMO_ONEDNN=0`` in the environment switches it off.
"""

from __future__ import annotations

import functools
import os
from bisect import bisect_left
from typing import Literal, get_args

import torch
from torch import Tensor

from ..errors import ElmoError

# oneDNN compiles a kernel for each number of rows it meets (some 0.4 ms) and keeps it (up to 1 MB): rows are padded to
# one of few numbers, an eighth more on average at most.
ROWS = (*range(1, 7), *range(8, 17, 2), *range(20, 33, 4), *range(40, 65, 8), *range(80, 129, 16), *range(160, 257, 32))

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


def checked_precision(precision: str) -> Precision:
    """The precision. Raises ElmoError for another word."""
    if precision not in PRECISIONS:
        raise ElmoError(f"precision is one of {', '.join(map(repr, PRECISIONS))}, not {precision!r}")
    return precision


# More than anything is padded by.
PADDING = ROWS[-1]


def padded(rows: int) -> int:
    """The least number of rows that a product should have to hold so many: see ``ROWS``; beyond, multiples of 256."""
    return ROWS[bisect_left(ROWS, rows)] if rows <= ROWS[-1] else -(-rows // ROWS[-1]) * ROWS[-1]


class Matmul:
    """y = x W + b, and y = other + x W, for one matrix and rows that keep coming, ``padded`` in number.

    weight: (K, N). bias: (N,) or None.
    precision: "float32" leaves the numbers as they are; "bfloat16" rounds W, x and y to it and adds up in float32.
    ``dtype`` is what x and ``other`` are to have and what y has.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, precision: Precision = "float32") -> None:
        self.dtype = torch.bfloat16 if precision == "bfloat16" else weight.dtype
        weight = weight.detach().to(self.dtype)
        self._bias = None if bias is None else bias.detach().to(self.dtype)
        self._packed = weight.device.type == "cpu" and self.dtype in _NEAR and onednn_works(self.dtype)
        # oneDNN's copy, in its own order, or a view of the weights themselves.
        self._weight = _pack(weight) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """(n, K) -> (n, N), a new tensor."""
        if self._packed:
            return _linear(x, self._weight, self._bias)
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add(self, other: Tensor, x: Tensor) -> Tensor:
        """``other`` (n, N) + x W, a new tensor; the bias is not added."""
        if self._packed:
            return _linear_add(x, other, self._weight)
        return torch.addmm(other, x, self._weight)


# How near oneDNN's product has to come to the plain one, with sums of 64 products of numbers around 1.
_NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.25}


@functools.cache
def onednn_works(dtype: torch.dtype) -> bool:
    """Whether torch has the operator here and it computes what it should, in both its forms."""
    if os.environ.get("SPACY_ELMO_ONEDNN", "1") == "0" or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    x, weight, other, bias = (
        torch.randn(size, generator=generator, device="cpu").to(dtype) for size in ((5, 64), (64, 48), (5, 48), (48,))
    )
    try:
        packed = _pack(weight)
        plain, added = _linear(x, packed, bias), _linear_add(x, other, packed)
    # A private operator may be missing, take other arguments or refuse this processor: each is a reason to do without.
    except Exception:
        return False
    product = x.double() @ weight.double()
    wanted = (product + bias.double(), product + other.double())
    return all(
        bool(torch.isclose(y.double(), z, rtol=0.0, atol=_NEAR[dtype]).all())
        for y, z in zip((plain, added), wanted, strict=True)
    )


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.t().contiguous())


def _linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")


def _linear_add(x: Tensor, other: Tensor, packed: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise.binary(x, other, packed, None, "add")
