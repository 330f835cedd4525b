"""The projected, clipped LSTM of one direction, differentiable: a layer and a stack of them. (Inference: stacks.py.)

Cell (bilm-tf's; weights as in its files, gate blocks i, j, f, o):

    i, j, f, o = split([x ; h] kernel + bias)
    c = clip(sigmoid(f + 1) * c + sigmoid(i) * tanh(j))
    h = clip((sigmoid(o) * tanh(c)) projection)
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from . import cell as cell_step
from .buffers import Buffers
from .config import BiLMConfig
from .mixed import product, product_dtype


class LSTMLayer(nn.Module):
    """One layer of one direction. ``kernel`` (2P, 4H): rows of the input first, then of h."""

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        hidden, width = config.lstm_dim, config.projection_dim
        self.kernel = nn.Parameter(torch.zeros(2 * width, 4 * hidden))
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        self.projection = nn.Parameter(torch.zeros(hidden, width)) if config.has_projection else None
        self.cell_clip = config.cell_clip
        # Without a projection there is nothing that proj_clip could clip (bilm-tf).
        self.proj_clip = config.proj_clip if config.has_projection else None

    def initialize(self, generator: torch.Generator) -> None:
        """Glorot uniform and zero bias, as in bilm-tf."""
        with torch.no_grad():
            for weight in (self.kernel, self.projection):
                if weight is not None:
                    limit = math.sqrt(6.0 / sum(weight.shape))
                    weight.uniform_(-limit, limit, generator=generator)
            self.bias.zero_()

    def forward(
        self,
        inputs: Tensor,
        hidden: Tensor,
        cell: Tensor,
        keep: Tensor | None = None,
        recurrent_dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run over time, differentiably, with all rows of the same length.

        inputs: (T, B, P). hidden, cell: (B, P) and (B, H), the start state.
        keep: (T, B, 1), 0 where a row starts afresh at a step: its state before is zero. None: it never does.
        recurrent_dropout: on the rows of the kernel that read h, one mask for all steps and rows of text (WeightDrop of
            Merity et al., 2018, section 2).
        RETURNS: outputs (T, B, P), the last hidden (B, P) and cell (B, H).
        """
        kernel: Tensor = self.kernel
        if recurrent_dropout > 0.0:
            of_inputs, of_hidden = kernel.split(inputs.shape[2])
            kernel = torch.cat([of_inputs, F.dropout(of_hidden, recurrent_dropout)])
        return _LSTMFunction.apply(
            inputs, hidden, cell, keep, kernel, self.bias, self.projection, self.cell_clip, self.proj_clip
        )


class LSTMStack(nn.Module):
    """The layers of one direction, the second and later ones with a skip connection where the config has it."""

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([LSTMLayer(config) for _ in range(config.n_layers)])
        self.use_skip_connections = config.use_skip_connections

    def initialize(self, generator: torch.Generator) -> None:
        """Initialise every layer."""
        for layer in self.layers:
            assert isinstance(layer, LSTMLayer)
            layer.initialize(generator)

    def forward(
        self,
        inputs: Tensor,
        hidden: Tensor,
        cell: Tensor,
        dropout: float = 0.0,
        keep: Tensor | None = None,
        recurrent_dropout: float = 0.0,
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Run all layers, differentiably.

        inputs: (T, B, P). hidden, cell: (L, B, P), (L, B, H). keep, recurrent_dropout: as in ``LSTMLayer.forward``.
        dropout: on the input of every layer; the skip adds what was left after dropout (as bilm-tf).
        RETURNS: L outputs (T, B, P), last hidden (L, B, P), last cell (L, B, H).
        """
        outputs, hiddens, cells = [], [], []
        for depth, layer in enumerate(self.layers):
            inputs = F.dropout(inputs, dropout, training=dropout > 0.0)
            output, last_hidden, last_cell = layer(inputs, hidden[depth], cell[depth], keep, recurrent_dropout)
            inputs = output + inputs if depth and self.use_skip_connections else output
            outputs.append(inputs)
            hiddens.append(last_hidden)
            cells.append(last_cell)
        return outputs, torch.stack(hiddens), torch.stack(cells)


def with_forget_bias(bias: Tensor) -> Tensor:
    """The bias with the forget gate's +1, which is in the formula and not in the files."""
    size = len(bias) // 4
    bias = bias.clone()
    bias[2 * size : 3 * size] += 1.0
    return bias


# A forget gate that is shut: its sigmoid is 0.
SHUT = -1e4


class _LSTMFunction(torch.autograd.Function):
    """A layer over time with a backward pass of its own.

    The gates are stored, the weight gradients are one matrix product each over all steps: autograd through the loop
    would make one a step. A value at a clip passes no gradient.

    What a step reads is one row, [x ; h ; 1 ; starts], and its weights one matrix: the kernel, the bias under it, and,
    where rows can start afresh, a last line that shuts the forget gate. So the bias costs nothing, nor does its
    gradient, and a row that starts afresh loses its cell, and the gradient to it, by the formula itself.

    Under autocast matrix products read its dtype; states, gates and all else are in the dtype of ``cell``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        hidden: Tensor,
        cell: Tensor,
        keep: Tensor | None,
        kernel: Tensor,
        bias: Tensor,
        projection: Tensor | None,
        cell_clip: float | None,
        proj_clip: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, rows, width = inputs.shape
        size = cell.shape[1]
        dtype = product_dtype(cell)
        weights = _weights(kernel, bias, keep is not None).to(dtype)
        squash = None if projection is None else projection.to(dtype)
        buffers = Buffers.current()
        read = buffers.take(steps, rows, len(weights), like=cell, dtype=dtype)
        read[..., :width] = inputs
        read[..., 2 * width] = 1.0
        if keep is not None:
            read[..., 2 * width + 1 :] = 1.0 - keep
        gates = buffers.take(steps, rows, 4 * size, like=cell)
        cells = buffers.take(steps, rows, size, like=cell)
        squashed = buffers.take(steps, rows, size, like=cell, dtype=dtype)
        outputs = cell.new_empty(steps, rows, width)
        wide = None if dtype == cell.dtype else cell.new_empty(rows, size)
        h, c = hidden, cell
        for t in range(steps):
            state = read[t, :, width : 2 * width]
            if keep is None:
                state.copy_(h)
            else:
                torch.mul(h, keep[t], out=state)
            product(read[t], weights, gates[t])
            m = squashed[t] if wide is None else wide
            cell_step.forward(gates[t], c, cells[t], m, cell_clip)
            if wide is not None:
                squashed[t] = wide
            h, c = outputs[t], cells[t]
            if squash is None:
                h.copy_(m)
            else:
                product(squashed[t], squash, h)
            if proj_clip is not None:
                h.clamp_(-proj_clip, proj_clip)
        ctx.save_for_backward(cell, keep, weights, squash, read, gates, cells, squashed, outputs)
        ctx.clips = (cell_clip, proj_clip)
        ctx.dtypes = (inputs.dtype, kernel.dtype)
        ctx.buffers, ctx.given = buffers, False
        return outputs, h.clone(), c.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, d_hidden: Tensor, d_cell: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.given:
            raise RuntimeError("the gradient of an LSTM layer was asked for twice, but its buffers are in use again")
        buffers: Buffers = ctx.buffers
        cell, keep, weights, squash, read, gates, cells, squashed, outputs = ctx.saved_tensors
        cell_clip, proj_clip = ctx.clips
        steps, rows, width = outputs.shape
        size = cells.shape[2]
        dtype = weights.dtype
        back = weights[: 2 * width].t()
        inside = None if proj_clip is None else outputs.abs() < proj_clip
        d_gates = buffers.take(*gates.shape, like=cell, dtype=dtype)
        d_projected = cell.new_empty(steps, rows, width, dtype=cell.dtype if squash is None else dtype)
        d_read = cells.new_empty(steps, rows, 2 * width)
        d_squashed = cells.new_empty(rows, size)
        wide = None if dtype == cell.dtype else cells.new_empty(rows, 4 * size)
        d_h, d_c = d_hidden, d_cell.clone()
        for t in reversed(range(steps)):
            d_m = torch.add(d_outputs[t], d_h, out=d_projected[t])
            if inside is not None:
                d_m.mul_(inside[t])
            if squash is None:
                d_squashed = d_m
            else:
                product(d_m, squash.t(), d_squashed)
            before, d_now = cells[t - 1] if t else cell, d_gates[t] if wide is None else wide
            cell_step.backward(gates[t], before, cells[t], d_squashed, d_c, d_now, cell_clip)
            if wide is not None:
                d_gates[t] = wide
            product(d_gates[t], back, d_read[t])
            d_h = d_read[t, :, width:]
            if keep is not None:
                d_h = d_h * keep[t]
        flat = d_gates.view(steps * rows, 4 * size)
        d_weights = (read.view(steps * rows, -1).t() @ flat).to(ctx.dtypes[1])
        d_projection = None
        if squash is not None:
            d_projection = squashed.view(steps * rows, size).t() @ d_projected.view(steps * rows, width)
            d_projection = d_projection.to(ctx.dtypes[1])
        ctx.given = buffers.give(read, gates, cells, squashed, d_gates)
        d_inputs = d_read[..., :width].to(ctx.dtypes[0]) if ctx.needs_input_grad[0] else None
        return d_inputs, d_h, d_c, None, d_weights[: 2 * width], d_weights[2 * width], d_projection, None, None


def _weights(kernel: Tensor, bias: Tensor, can_start: bool) -> Tensor:
    """The weights of [x ; h ; 1] or [x ; h ; 1 ; starts]: (2P + 1, 4H) or (2P + 2, 4H)."""
    lines = [kernel, with_forget_bias(bias)[None]]
    if can_start:
        shut = torch.zeros_like(lines[1])
        size = len(bias) // 4
        shut[:, 2 * size : 3 * size] = SHUT
        lines.append(shut)
    return torch.cat(lines)
