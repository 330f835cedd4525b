"""The pointwise half of an LSTM step: from gates to cell and output, and back. Matrix products are elsewhere.

Gates lie in bilm-tf's order i, j, f, o, side by side; the forget gate's +1 is already in them:

    c = clip(sigmoid(f) * c + sigmoid(i) * tanh(j))
    m = sigmoid(o) * tanh(c)

Where the extension ``_cell`` was built (setup.py), it does this in one pass over the data, for float32 in the CPU's
memory (``infer``: and bfloat16); else torch's operators do, in one pass each. Both come within 3e-7 of the exact m, and
within 3e-7 times 1 + |c| of the exact c. ``SPACY_ELMO_COMPILED=0`` in the environment switches the extension off.

Arguments may not overlap, but ``forward`` may write ``cell`` over ``before``.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType

import torch
from torch import Tensor


def compiled() -> bool:
    """Whether the extension is there and switched on. It is looked for at first use."""
    return _extension() is not None


@functools.cache
def _extension() -> ModuleType | None:
    if os.environ.get("SPACY_ELMO_COMPILED", "1") == "0":
        return None
    try:
        from . import _cell  # type: ignore[attr-defined]  # not there where it was not built
    except ImportError:
        return None
    return _cell


def _on_gpu(gates: Tensor) -> ModuleType | None:
    """Both halves of training in one Triton kernel each, where ``gates`` are on a GPU and that works."""
    if not gates.is_cuda or gates.dtype != torch.float32:
        return None
    from .cuda_step import fused

    return fused()


def _device_of(tensor: Tensor) -> torch.cuda.device:
    """Makes the tensor's GPU the current one: Triton starts its kernels there, wherever their arguments are."""
    return torch.cuda.device(tensor.get_device())


def infer(gates: Tensor, cell: Tensor, squashed: Tensor, cell_clip: float | None) -> None:
    """One step without gradients.

    gates: (B, 4H), **of no use afterwards**. cell: (B, H) float32, c, updated in place. squashed: (B, H), m is written
    here. gates and squashed have one dtype, float32 or bfloat16; all arithmetic is float32.
    """
    extension = _extension()
    if extension is not None and extension.infer(torch.get_num_threads(), cell_clip, gates, cell, squashed):
        return
    size = cell.shape[1]
    if gates.dtype != cell.dtype:
        gates = gates.to(cell.dtype)
    cell.mul_(gates[:, 2 * size : 3 * size].sigmoid_())
    cell.addcmul_(gates[:, :size].sigmoid_(), gates[:, size : 2 * size].tanh_())
    if cell_clip is not None:
        cell.clamp_(-cell_clip, cell_clip)
    if squashed.dtype == cell.dtype:
        torch.tanh(cell, out=squashed).mul_(gates[:, 3 * size :].sigmoid_())
    else:
        squashed.copy_(torch.tanh(cell).mul_(gates[:, 3 * size :].sigmoid_()))


def run_row(
    inputs: Tensor,
    recurrent: Tensor,
    projection: Tensor | None,
    hidden: Tensor,
    cell: Tensor,
    outputs: Tensor,
    clips: tuple[float | None, float | None],
) -> bool:
    """All steps of a single row without gradients, where the extension is there and the tensors are on the CPU.

    A row by itself shares no weights with others: all the time goes into reading them, here from where they are, by
    each thread its own part.

    inputs: (T, 4H), the input's share of the gates, bias included. recurrent: (P, 4H), projection: (H, P) or None, both
    float32 or both bfloat16; all else is float32.
    hidden: (1, P) and cell: (1, H), updated in place. outputs: (T, P), h of each step is written here.
    clips: of cell and of h. RETURNS: whether it was done.
    """
    extension = _extension()
    if extension is None:
        return False
    tensors = (inputs, recurrent, projection, hidden, cell, outputs)
    return bool(extension.run_row(torch.get_num_threads(), *clips, *tensors))


def forward(gates: Tensor, before: Tensor, cell: Tensor, squashed: Tensor, cell_clip: float | None) -> None:
    """One step of training.

    gates: (B, 4H), the activations are left here (sigmoid i, tanh j, sigmoid f, sigmoid o).
    before: (B, H), c of the step before. cell, squashed: (B, H), c and m are written here.
    """
    kernels = _on_gpu(gates)
    if kernels is not None:
        with _device_of(gates):
            return kernels.forward(gates, before, cell, squashed, cell_clip)
    extension = _extension()
    if extension is not None and extension.forward(torch.get_num_threads(), cell_clip, gates, before, cell, squashed):
        return
    size = cell.shape[1]
    i, j = gates[:, :size].sigmoid_(), gates[:, size : 2 * size].tanh_()
    fo = gates[:, 2 * size :].sigmoid_()
    torch.mul(before, fo[:, :size], out=cell)
    cell.addcmul_(i, j)
    if cell_clip is not None:
        cell.clamp_(-cell_clip, cell_clip)
    torch.tanh(cell, out=squashed).mul_(fo[:, size:])


def backward(
    activations: Tensor,
    before: Tensor,
    cell: Tensor,
    d_squashed: Tensor,
    d_cell: Tensor,
    d_gates: Tensor,
    cell_clip: float | None,
) -> None:
    """The gradient of ``forward``; a cell at its clip passes none.

    activations: (B, 4H), what ``forward`` left in the gates. before, cell: (B, H), c before and after the step.
    d_squashed: (B, H), of m. d_cell: (B, H), of c as later steps see it; becomes that of ``before``, **in place**.
    d_gates: (B, 4H), the gradient before the non-linearities is written here.
    """
    kernels = _on_gpu(activations)
    if kernels is not None:
        with _device_of(activations):
            return kernels.backward(activations, before, cell, d_squashed, d_cell, d_gates, cell_clip)
    extension = _extension()
    if extension is not None and extension.backward(
        torch.get_num_threads(), cell_clip, activations, before, cell, d_squashed, d_cell, d_gates
    ):
        return
    size = cell.shape[1]
    i, j, f, o = activations.split(size, dim=1)
    d_i, d_j, d_f, d_o = d_gates.split(size, dim=1)
    tanh_c = torch.tanh(cell)
    # Each d_* is the gradient before the gate's non-linearity: d sigmoid = s (1 - s), d tanh = 1 - t^2.
    torch.mul(d_squashed, tanh_c, out=d_o)
    d_o.mul_(o).mul_(1.0 - o)
    d_cell.addcmul_(d_squashed.mul(o), 1.0 - tanh_c.square_())
    if cell_clip is not None:
        d_cell.masked_fill_(cell.abs() >= cell_clip, 0.0)
    torch.mul(d_cell, j, out=d_i)
    d_i.mul_(i).mul_(1.0 - i)
    torch.mul(d_cell, i, out=d_j)
    d_j.mul_(1.0 - j * j)
    torch.mul(d_cell, before, out=d_f)
    d_f.mul_(f).mul_(1.0 - f)
    d_cell.mul_(f)
