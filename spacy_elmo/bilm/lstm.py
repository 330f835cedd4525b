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
from .config import BiLMConfig


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
        self, inputs: Tensor, hidden: Tensor, cell: Tensor, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run over time, differentiably, with all rows of the same length.

        inputs: (T, B, P). hidden, cell: (B, P) and (B, H), the start state.
        keep: (T, B, 1), 0 where a row starts afresh at a step: its state before is zero. None: it never does.
        RETURNS: outputs (T, B, P), the last hidden (B, P) and cell (B, H).
        """
        return _LSTMFunction.apply(
            inputs, hidden, cell, keep, self.kernel, self.bias, self.projection, self.cell_clip, self.proj_clip
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
        self, inputs: Tensor, hidden: Tensor, cell: Tensor, dropout: float = 0.0, keep: Tensor | None = None
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Run all layers, differentiably.

        inputs: (T, B, P). hidden, cell: (L, B, P), (L, B, H). keep: as in ``LSTMLayer.forward``.
        dropout: on the input of every layer; the skip adds what was left after dropout (as bilm-tf).
        RETURNS: L outputs (T, B, P), last hidden (L, B, P), last cell (L, B, H).
        """
        outputs, hiddens, cells = [], [], []
        for depth, layer in enumerate(self.layers):
            inputs = F.dropout(inputs, dropout, training=dropout > 0.0)
            output, last_hidden, last_cell = layer(inputs, hidden[depth], cell[depth], keep)
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


class _LSTMFunction(torch.autograd.Function):
    """A layer over time with a backward pass of its own.

    The gates are stored, the weight gradients are one matrix product each over all steps: autograd through the
    loop would make one a step. A value at a clip passes no gradient.
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
        flat = inputs.reshape(steps * rows, width)
        gates = torch.addmm(with_forget_bias(bias), flat, kernel[:width]).view(steps, rows, 4 * size)
        recurrent = kernel[width:]
        cells = inputs.new_empty(steps, rows, size)
        squashed = inputs.new_empty(steps, rows, size)
        outputs = inputs.new_empty(steps, rows, width)
        h, c = hidden, cell
        for t in range(steps):
            if keep is not None:
                h, c = h * keep[t], c * keep[t]
            now = gates[t]
            now.addmm_(h, recurrent)
            cell_step.forward(now, c, cells[t], squashed[t], cell_clip)
            c = cells[t]
            h = outputs[t]
            if projection is None:
                h.copy_(squashed[t])
            else:
                torch.mm(squashed[t], projection, out=h)
            if proj_clip is not None:
                h.clamp_(-proj_clip, proj_clip)
        ctx.save_for_backward(inputs, hidden, cell, keep, kernel, projection, gates, cells, squashed, outputs)
        ctx.clips = (cell_clip, proj_clip)
        return outputs, h.clone(), c.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_outputs: Tensor, d_hidden: Tensor, d_cell: Tensor) -> tuple[Tensor | None, ...]:
        inputs, hidden, cell, keep, kernel, projection, gates, cells, squashed, outputs = ctx.saved_tensors
        cell_clip, proj_clip = ctx.clips
        steps, rows, width = inputs.shape
        size = cells.shape[2]
        recurrent_t = kernel[width:].t()
        projection_t = None if projection is None else projection.t()
        d_gates = torch.empty_like(gates)
        d_projected = d_outputs.new_empty(steps, rows, width)  # d_outputs may have any strides
        d_h, d_c = d_hidden, d_cell.clone()
        for t in reversed(range(steps)):
            d_m = torch.add(d_outputs[t], d_h, out=d_projected[t])
            if proj_clip is not None:
                d_m.masked_fill_(outputs[t].abs() >= proj_clip, 0.0)
            d_squashed = d_m if projection_t is None else d_m @ projection_t
            before = cells[t - 1] if t else cell
            if keep is not None:
                before = before * keep[t]
            cell_step.backward(gates[t], before, cells[t], d_squashed, d_c, d_gates[t], cell_clip)
            d_h = d_gates[t] @ recurrent_t
            if keep is not None:
                d_c.mul_(keep[t])
                d_h.mul_(keep[t])
        flat = d_gates.view(steps * rows, 4 * size)
        d_kernel = torch.empty_like(kernel)
        torch.mm(inputs.reshape(steps * rows, width).t(), flat, out=d_kernel[:width])
        states = torch.cat([hidden[None], outputs[:-1]])
        if keep is not None:
            states.mul_(keep)
        torch.mm(states.view(steps * rows, width).t(), flat, out=d_kernel[width:])
        d_weight = None
        if projection is not None:
            d_weight = squashed.view(steps * rows, size).t() @ d_projected.view(steps * rows, width)
        d_inputs = (flat @ kernel[:width].t()).view(steps, rows, width) if ctx.needs_input_grad[0] else None
        return d_inputs, d_h, d_c, None, d_kernel, flat.sum(dim=0), d_weight, None, None
