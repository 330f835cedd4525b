"""The pointwise halves of an LSTM step on a GPU: in torch's operators here, as Triton kernels in ``cell_triton``.

They learn from a *plan* at which step they are, so that a CUDA graph of them fits every step. It is an int64 tensor:

    0-2   for ``infer``: the step's first packed place, its rows that have not ended, its number
    3-5   the same for ``settle``
    6-    rows of each step of the window, and a 0

``infer`` hands what it read on to ``settle``, and ``settle`` writes the next step's for ``infer``: so no kernel writes
what another block of the same kernel may still have to read.
"""

from __future__ import annotations

import functools
import warnings
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

from . import cell as cell_step


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
    """Gates to cell and output: ``cell.infer`` for both directions and the rows of a step that have not ended.

    gates: (2, B, 4H), without bias. bias: (2, 4H). ahead: (2, U, 4H), added to the gates: of a packed step the row that
    ``index`` (2, n) has for it. cell: (2, B, H), in place. squashed: (2, B, H), written.
    """
    plan[3:6] = plan[:3]
    start, rows, _ = plan[:3].tolist()
    for direction in range(2):
        total = gates[direction, :rows].to(cell.dtype) + bias[direction]
        if ahead is not None:
            total += ahead[direction, index[direction, start : start + rows]]
        m = torch.empty_like(cell[direction, :rows])
        cell_step.infer(total, cell[direction, :rows], m, cell_clip)
        squashed[direction, :rows] = m


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
    """Clip what the projection gave, and put it where it is read. Then the plan is at the next step.

    projected: (2, B, P). read: (2, B, 2P), the right half is written, and if not ``ahead`` the left half, the next
    inputs. inputs, outputs: (2, n, P), packed; outputs are written, with the inputs added if ``skip``.
    """
    start, rows, step = plan[3:6].tolist()
    following = int(plan[7 + step])
    plan[:3] = plan.new_tensor([start + rows, following, step + 1])
    width, stop = projected.shape[2], start + rows
    h = projected[:, :rows].to(outputs.dtype)
    if proj_clip is not None:
        h = h.clamp(-proj_clip, proj_clip)
    read[:, :rows, width:] = h
    if not ahead:
        read[:, :following, :width] = inputs[:, stop : stop + following]
    outputs[:, start:stop] = h + inputs[:, start:stop] if skip else h


PLAIN = SimpleNamespace(infer=infer, settle=settle)


@functools.cache
def fused() -> ModuleType | None:
    """``cell_triton`` if it works here. It needs Triton and a C compiler: without, a warning says so, once."""
    try:
        from . import cell_triton

        results = []
        for ops, device in ((cell_triton, "cuda"), (PLAIN, "cpu")):
            numbers = torch.linspace(-4.0, 4.0, 2 * 4 * 20, device=device)
            cell, read = torch.ones(2, 4, 5, device=device), torch.zeros(2, 4, 10, device=device)
            squashed, outputs = torch.zeros_like(cell), torch.zeros(2, 5, 5, device=device)
            inputs = numbers[:50].view(2, 5, 5)
            plan = torch.tensor([0, 3, 0, 0, 0, 0, 3, 2, 0], device=device)
            index = torch.tensor([[4, 3, 2, 1, 0], [0, 0, 1, 1, 2]], device=device)
            ahead, bias = numbers.flip(0)[:200].view(2, -1, 20), numbers[:40].view(2, 20)
            ops.infer(numbers.view(2, 4, 20), bias, ahead, index, cell, squashed, 0.9, plan)
            ops.settle(squashed, inputs, read, outputs, 0.3, plan, ahead=False, skip=True)
            results.append([x.cpu() for x in (cell, squashed[:, :3], read, outputs, plan)])
        if not all(torch.allclose(x, y, atol=1e-5) for x, y in zip(*results, strict=True)):
            raise RuntimeError("its result is wrong")
    # Triton may be missing, find no compiler, or not know the card: each is a reason to do without.
    except Exception as error:
        warnings.warn(
            f"spacy-elmo is slower than it could be on this GPU, because Triton does not work: {error}", stacklevel=2
        )
        return None
    return cell_triton
