"""How the matrix products of a run are made: by which library, and in which precision."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

Precision = Literal["float32", "bfloat16", "float16"]


def chosen_precision(asked: Literal["auto"] | Precision, device: torch.device) -> Precision:
    """What ``training.precision`` means on a device: "auto" is bfloat16 where it is faster, else float32."""
    if asked != "auto":
        return asked
    faster = has_bfloat16_units(device) and (device.type != "cpu" or bfloat16_gain() > WORTHWHILE)
    return "bfloat16" if faster else "float32"


# What bfloat16 has to gain to be taken: it is not as exact, and times vary by some percent.
WORTHWHILE = 1.1


@functools.cache
def bfloat16_gain() -> float:
    """How many times as fast as in float32 this CPU multiplies matrices in bfloat16: measured once, in 0.1 seconds.

    To have units for it is not enough: AVX-512 BF16 of an Intel processor whose AMX a virtual machine hides is at 0.6.
    The fastest of several products counts, which other programs disturb least.
    """
    left, right = torch.ones(256, 512, device="cpu"), torch.ones(512, 2048, device="cpu")
    pairs = {dtype: (left.to(dtype), right.to(dtype)) for dtype in (torch.float32, torch.bfloat16)}
    fastest = dict.fromkeys(pairs, float("inf"))
    for _ in range(8):  # in turn, and the first of each is never the fastest
        for dtype, (x, weight) in pairs.items():
            start = time.perf_counter()
            torch.mm(x, weight)
            fastest[dtype] = min(fastest[dtype], time.perf_counter() - start)
    return fastest[torch.float32] / fastest[torch.bfloat16]


def has_bfloat16_units(device: torch.device) -> bool:
    """Whether a device has units that multiply bfloat16. (An old torch cannot tell: it has none then.)"""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    tell = getattr(torch.cpu, "get_capabilities", None)
    found = tell() if tell is not None else {}
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))  # the last is Arm's


@contextmanager
def onednn_products(wanted: bool) -> Iterator[str | None]:
    """Let torch hand float32 products on the CPU to oneDNN instead of MKL while the block lasts.

    The switch for it is torch's permission to multiply in bfloat16, which oneDNN makes use of on CPUs with units for
    it (AMX, some ARM) and nowhere else. What it does on this one is tried: where products lose digits the switch stays
    as it was. It is put back at the end, whatever happens, also to follow ``torch.backends.fp32_precision`` if it did.

    wanted: if not, nothing is done.
    RETURNS: what came of it, for the plan; None where it is not wanted.
    """
    if not wanted:
        yield None
        return
    switch = onednn_switch()
    if switch is None:
        yield "without oneDNN: that needs a torch of version 2.9 or newer, built with it"
        return
    before = _set_on(switch, *(type(switch)(backend, "all") for backend in ("mkldnn", "generic")))
    try:
        switch.fp32_precision = "bf16"
        if products_are_exact():
            yield "float32 products by oneDNN"
        else:
            switch.fp32_precision = before
            yield "without oneDNN: on this CPU its products would be in bfloat16"
    finally:
        switch.fp32_precision = before


def onednn_switch() -> Any:
    """The object whose ``fp32_precision`` is the switch; None where torch has none."""
    switch = getattr(torch.backends.mkldnn, "matmul", None)
    return switch if torch.backends.mkldnn.is_available() and hasattr(switch, "fp32_precision") else None


def _set_on(switch: Any, *above: Any) -> str:
    """What is set on a switch itself: "none" where it follows the next one above, whose value it then shows as its own.

    To find out, that one is turned for a moment: torch has no other way to tell a value from an inherited one.
    """
    shown: str = switch.fp32_precision
    if not above:
        return shown
    kept = _set_on(*above)
    try:
        above[0].fp32_precision = "ieee" if shown == "bf16" else "bf16"
        return shown if switch.fp32_precision == shown else "none"
    finally:
        above[0].fp32_precision = kept


def products_are_exact() -> bool:
    """Whether float32 products on the CPU are as precise as sums of float32 products can be."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(256, 256, generator=generator) for _ in range(2))
    exact = left.double() @ right.double()
    products = (left @ right, left.t().contiguous().t() @ right, left @ right.t().contiguous().t())
    # Sums of 256 such products: some 1e-5 in float32, 5e-2 from factors in bfloat16.
    return all(bool((product.double() - exact).abs().max() < 1e-3) for product in products)
