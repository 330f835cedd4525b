"""Both LSTM stacks for inference, their weights packed once: rows of falling length in, layers 1 to L out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from . import cell as cell_step
from .lstm import LSTMLayer, with_forget_bias
from .matmul import Matmul, Precision

if TYPE_CHECKING:
    from .model import BiLM

# Rows of a product over several steps at once: more gain nothing, and their gates would leave the cache.
ROWS_PER_PRODUCT = 256
# Gates of the word types of a window, which are held all together.
GATE_BYTES = 64 * 2**20


class Stacks(Protocol):
    """What ``encode`` needs of the two stacks.

    rows: rows that run together at most. steps: packed steps of one window at most.
    """

    rows: int
    steps: int

    def run(self, table: Tensor, types: Tensor, batch_sizes: list[int], hidden: Tensor, cell: Tensor) -> list[Tensor]:
        """Run a window of rows that end one after another, the longest first.

        table: (U, P), token vectors. types: (2, n) int64, for each direction the row of ``table`` that is read, packed:
        all rows of its first step, then those of the second that still go on, and so forth.
        batch_sizes: rows of each step, never rising; they sum to n.
        hidden, cell: (2, L, B, P), (2, L, B, H): the start state, **updated in place** (a row that ended keeps its last
        state).
        RETURNS: L tensors (2, n, P), packed like ``types``.
        """


class CPUStacks:
    """The stacks on a CPU, one direction after the other: two threads have enough to do in each product."""

    rows = 128

    def __init__(self, bilm: BiLM, precision: Precision) -> None:
        self.directions = [
            [_Layer(layer, precision) for layer in stack.layers if isinstance(layer, LSTMLayer)]
            for stack in (bilm.forward_lstm, bilm.backward_lstm)
        ]
        self.skips = bilm.config.use_skip_connections
        self.steps = min(8192, max(2 * ROWS_PER_PRODUCT, GATE_BYTES // (16 * bilm.config.lstm_dim)))

    def run(self, table: Tensor, types: Tensor, batch_sizes: list[int], hidden: Tensor, cell: Tensor) -> list[Tensor]:
        """See ``Stacks.run``."""
        layers = [table.new_empty(2, types.shape[1], table.shape[1]) for _ in self.directions[0]]
        for direction, stack in enumerate(self.directions):
            inputs, index = _once_each(table, types[direction])
            for depth, layer in enumerate(stack):
                output = layers[depth][direction]
                layer.run(inputs, index, batch_sizes, hidden[direction, depth], cell[direction, depth], output)
                if depth and self.skips:
                    output += inputs
                inputs, index = output, None
        return layers


def _once_each(table: Tensor, types: Tensor) -> tuple[Tensor, Tensor | None]:
    """The inputs of the first layer, and where each step finds its own among them (None: they stand in order).

    Words repeat, and so does their product with the input weights: if enough of them do, it is made once a type.
    """
    if len(types) < ROWS_PER_PRODUCT:
        return table[types], None
    distinct, index = torch.unique(types, return_inverse=True)
    if len(distinct) > 0.8 * len(types):
        return table[types], None
    return table[distinct], index


class _Layer:
    """One layer of one direction: ``LSTMLayer``'s formula on packed weights."""

    def __init__(self, layer: LSTMLayer, precision: Precision) -> None:
        width = layer.kernel.shape[0] // 2
        self.input = Matmul(layer.kernel[:width], with_forget_bias(layer.bias), precision)
        self.recurrent = Matmul(layer.kernel[width:], None, precision)
        self.projection = None if layer.projection is None else Matmul(layer.projection, None, precision)
        self.cell_clip, self.proj_clip = layer.cell_clip, layer.proj_clip

    def run(
        self,
        inputs: Tensor,
        index: Tensor | None,
        batch_sizes: list[int],
        hidden: Tensor,
        cell: Tensor,
        outputs: Tensor,
    ) -> None:
        """Fill ``outputs`` (n, P), packed. inputs: (n, P), or (U, P) of which step s reads row ``index[s]``."""
        dtype = self.input.dtype
        inputs = inputs.to(dtype)
        shared = None if index is None else self._gates(inputs)
        squashed = inputs.new_empty(batch_sizes[0], cell.shape[1])
        h = hidden[: batch_sizes[0]].to(dtype)
        chunk, first, start = inputs, 0, 0  # ``chunk``: gates of the packed steps from ``first`` on
        end = 0
        for step, rows in enumerate(batch_sizes):
            stop = start + rows
            if shared is not None and index is not None:
                gates = shared.index_select(0, index[start:stop])
            else:
                if stop > end:
                    first, end = start, _chunk_end(batch_sizes, step, start)
                    chunk = self.input(inputs[first:end])
                gates = chunk[start - first : stop - first]
            if rows < len(h):
                hidden[rows : len(h)] = h[rows:]
                h = h[:rows]
            gates = self.recurrent.add(gates, h)
            now = squashed[:rows]
            cell_step.infer(gates, cell[:rows], now, self.cell_clip)
            # Without a projection h is m itself, which the next step overwrites.
            h = now.clone() if self.projection is None else self.projection(now)
            if self.proj_clip is not None:
                h.clamp_(-self.proj_clip, self.proj_clip)
            outputs[start:stop] = h
            start = stop
        hidden[: len(h)] = h

    def _gates(self, inputs: Tensor) -> Tensor:
        if len(inputs) <= ROWS_PER_PRODUCT:
            return self.input(inputs)
        return torch.cat([self.input(some) for some in inputs.split(ROWS_PER_PRODUCT)])


def _chunk_end(batch_sizes: list[int], step: int, start: int) -> int:
    """The end of the packed rows whose input products are made together, from ``step`` on, at least one step."""
    end = start + batch_sizes[step]
    for rows in batch_sizes[step + 1 :]:
        if end + rows - start > ROWS_PER_PRODUCT:
            break
        end += rows
    return end


def make_stacks(bilm: BiLM, precision: Precision) -> Stacks:
    """The stacks for the device where the weights are."""
    if bilm.device.type == "cuda":
        from .cuda import CudaStacks

        return CudaStacks(bilm, precision)
    return CPUStacks(bilm, precision)
