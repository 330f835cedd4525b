"""``cell.py`` for CUDA: each half step as one Triton kernel, which passes over memory once. All arithmetic is float32.

Importing it needs Triton, which torch brings along on Linux. ``cuda.fused`` says whether it works here.
Under ``TRITON_INTERPRET=1`` the kernels run on the CPU: so they are tested where there is no GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _tanh(x):  # type: ignore[no-untyped-def]
    # 2e-7 from the true value at most; libdevice's own does not run in the interpreter.
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _clamp(x, bound):  # type: ignore[no-untyped-def]
    # As torch does it: NaN stays NaN.
    return tl.clamp(x, -bound, bound, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _infer(  # type: ignore[no-untyped-def]
    gates, bias, ahead, index, cell, squashed, plan, size, ahead_d, index_d, cell_d, clip,
    AHEAD: tl.constexpr, CLIPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, direction = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start, rows, step = tl.load(plan), tl.load(plan + 1), tl.load(plan + 2)
    if row + direction + tl.program_id(1) == 0:
        tl.store(plan + 3, start)
        tl.store(plan + 4, rows)
        tl.store(plan + 5, step)
    inside = (unit < size) & (row < rows)
    place = direction * tl.num_programs(0) + row
    at = gates + place * 4 * size + unit
    i = tl.load(at, mask=inside).to(tl.float32)
    j = tl.load(at + size, mask=inside).to(tl.float32)
    f = tl.load(at + 2 * size, mask=inside).to(tl.float32)
    o = tl.load(at + 3 * size, mask=inside).to(tl.float32)
    at = bias + direction * 4 * size + unit
    i += tl.load(at, mask=inside)
    j += tl.load(at + size, mask=inside)
    f += tl.load(at + 2 * size, mask=inside)
    o += tl.load(at + 3 * size, mask=inside)
    if AHEAD:
        made = tl.load(index + direction * index_d + start + row, mask=row < rows, other=0)
        at = ahead + direction * ahead_d + made * 4 * size + unit
        i += tl.load(at, mask=inside).to(tl.float32)
        j += tl.load(at + size, mask=inside).to(tl.float32)
        f += tl.load(at + 2 * size, mask=inside).to(tl.float32)
        o += tl.load(at + 3 * size, mask=inside).to(tl.float32)
    at = cell + direction * cell_d + row * size + unit
    c = tl.sigmoid(f) * tl.load(at, mask=inside) + tl.sigmoid(i) * _tanh(j)
    if CLIPPED:
        c = _clamp(c, clip)
    tl.store(at, c, mask=inside)
    tl.store(squashed + place * size + unit, tl.sigmoid(o) * _tanh(c), mask=inside)


@triton.jit
def _settle(  # type: ignore[no-untyped-def]
    projected, inputs, read, outputs, plan, width, read_d, outputs_d, clip,
    AHEAD: tl.constexpr, SKIP: tl.constexpr, CLIPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, direction = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start, rows, step = tl.load(plan + 3), tl.load(plan + 4), tl.load(plan + 5)
    following = tl.load(plan + 7 + step)
    if row + direction + tl.program_id(1) == 0:
        tl.store(plan, start + rows)
        tl.store(plan + 1, following)
        tl.store(plan + 2, step + 1)
    inside = (unit < width) & (row < rows)
    h = tl.load(projected + (direction * tl.num_programs(0) + row) * width + unit, mask=inside).to(tl.float32)
    if CLIPPED:
        h = _clamp(h, clip)
    at = read + direction * read_d + row * 2 * width + unit
    tl.store(at + width, h, mask=inside)
    here = direction * outputs_d + (start + row) * width + unit
    if not AHEAD:
        inside_next = (unit < width) & (row < following)
        tl.store(at, tl.load(inputs + here + rows * width, mask=inside_next), mask=inside_next)
    if SKIP:
        h += tl.load(inputs + here, mask=inside)
    tl.store(outputs + here, h, mask=inside)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    gates, before, cell, squashed, size, clip, CLIPPED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < size
    at = gates + row * 4 * size + unit
    here = row * size + unit
    i = tl.sigmoid(tl.load(at, mask=inside).to(tl.float32))
    j = _tanh(tl.load(at + size, mask=inside).to(tl.float32))
    f = tl.sigmoid(tl.load(at + 2 * size, mask=inside).to(tl.float32))
    o = tl.sigmoid(tl.load(at + 3 * size, mask=inside).to(tl.float32))
    tl.store(at, i, mask=inside)
    tl.store(at + size, j, mask=inside)
    tl.store(at + 2 * size, f, mask=inside)
    tl.store(at + 3 * size, o, mask=inside)
    c = f * tl.load(before + here, mask=inside) + i * j
    if CLIPPED:
        c = _clamp(c, clip)
    tl.store(cell + here, c, mask=inside)
    tl.store(squashed + here, o * _tanh(c), mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    activations, before, cell, d_squashed, d_cell, d_gates, size, clip, CLIPPED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    unit = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < size
    here = row * size + unit
    at = row * 4 * size + unit
    i = tl.load(activations + at, mask=inside).to(tl.float32)
    j = tl.load(activations + at + size, mask=inside).to(tl.float32)
    f = tl.load(activations + at + 2 * size, mask=inside).to(tl.float32)
    o = tl.load(activations + at + 3 * size, mask=inside).to(tl.float32)
    c = tl.load(cell + here, mask=inside)
    tanh_c = _tanh(c)
    d_m = tl.load(d_squashed + here, mask=inside).to(tl.float32)
    d_c = tl.load(d_cell + here, mask=inside) + d_m * o * (1.0 - tanh_c * tanh_c)
    if CLIPPED:
        d_c = tl.where(tl.abs(c) >= clip, 0.0, d_c)
    tl.store(d_gates + at, d_c * j * i * (1.0 - i), mask=inside)
    tl.store(d_gates + at + size, d_c * i * (1.0 - j * j), mask=inside)
    tl.store(d_gates + at + 2 * size, d_c * tl.load(before + here, mask=inside) * f * (1.0 - f), mask=inside)
    tl.store(d_gates + at + 3 * size, d_m * tanh_c * o * (1.0 - o), mask=inside)
    tl.store(d_cell + here, d_c * f, mask=inside)


def _grid(rows: int, size: int, directions: int = 1) -> tuple[int, int, int]:
    return rows, triton.cdiv(size, BLOCK), directions


def infer(
    gates: Tensor,
    bias: Tensor,
    ahead: Tensor | None,
    index: Tensor,
    cell: Tensor,
    squashed: Tensor,
    cell_clip: float | None,
    plan: Tensor,
) -> None:
    """``cuda.infer`` in one kernel: same arguments, same result."""
    _, rows, size = squashed.shape
    _infer[_grid(rows, size, 2)](
        gates, bias, gates if ahead is None else ahead, index, cell, squashed, plan,
        size, 0 if ahead is None else ahead.stride(0), index.stride(0), cell.stride(0), cell_clip or 0.0,
        AHEAD=ahead is not None, CLIPPED=cell_clip is not None, BLOCK=BLOCK,
    )  # fmt: skip


def settle(
    projected: Tensor,
    inputs: Tensor,
    read: Tensor,
    outputs: Tensor,
    proj_clip: float | None,
    plan: Tensor,
    *,
    ahead: bool,
    skip: bool,
) -> None:
    """``cuda.settle`` in one kernel: same arguments, same result."""
    _, rows, width = projected.shape
    block = min(BLOCK, triton.next_power_of_2(width))
    _settle[rows, triton.cdiv(width, block), 2](
        projected, inputs, read, outputs, plan, width, read.stride(0), outputs.stride(0), proj_clip or 0.0,
        AHEAD=ahead, SKIP=skip, CLIPPED=proj_clip is not None, BLOCK=block,
    )  # fmt: skip


def forward(gates: Tensor, before: Tensor, cell: Tensor, squashed: Tensor, cell_clip: float | None) -> None:
    """``cell.forward`` in one kernel; all tensors contiguous."""
    rows, size = cell.shape
    _forward[_grid(rows, size)](
        gates, before, cell, squashed, size, cell_clip or 0.0, CLIPPED=cell_clip is not None, BLOCK=BLOCK
    )


def backward(
    activations: Tensor,
    before: Tensor,
    cell: Tensor,
    d_squashed: Tensor,
    d_cell: Tensor,
    d_gates: Tensor,
    cell_clip: float | None,
) -> None:
    """``cell.backward`` in one kernel; all tensors contiguous."""
    rows, size = cell.shape
    _backward[_grid(rows, size)](
        activations, before, cell, d_squashed, d_cell, d_gates, size, cell_clip or 0.0,
        CLIPPED=cell_clip is not None, BLOCK=BLOCK,
    )  # fmt: skip
