"""Both LSTM stacks for inference, their weights packed once: rows of falling length in, layers 1 to L out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from . import cell as cell_step
from .lstm import LSTMLayer, with_forget_bias
from .matmul import PADDING, Matmul, Precision, padded

if TYPE_CHECKING:
    from .model import BiLM

# Rows of a product over several steps at once: more gain nothing, and their gates would leave the cache.
ROWS_PER_PRODUCT = 256
# Numbers of a matrix that the caches hold.
SMALL_MATRIX = 2**22
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
        n = types.shape[1]
        # Behind the rows that count there are as many more as a product may be padded by.
        layers = [table.new_zeros(2, n + PADDING, table.shape[1]) for _ in self.directions[0]]
        for direction, stack in enumerate(self.directions):
            inputs, index = _first_inputs(table, types[direction], share=batch_sizes[0] > 1)
            for depth, layer in enumerate(stack):
                output = layers[depth][direction]
                layer.run(inputs, index, batch_sizes, hidden[direction, depth], cell[direction, depth], output)
                if depth and self.skips:
                    output += inputs
                inputs, index = output, None
        return [layer[:, :n] for layer in layers]


def _first_inputs(table: Tensor, types: Tensor, share: bool) -> tuple[Tensor, Tensor | None]:
    """The inputs of the first layer, and which of them each step reads (None: its own), both with rows to pad by.

    Words repeat, and so does their product with the input weights: if enough of them do, and ``share``, it is made once
    a type.
    """
    if share and len(types) > ROWS_PER_PRODUCT:
        distinct, index = torch.unique(types, return_inverse=True)
        if len(distinct) <= 0.8 * len(types):
            return table[_extended(distinct)], _extended(index)
    return table[_extended(types)], None


def _extended(index: Tensor) -> Tensor:
    return torch.cat([index, index.new_zeros(PADDING)])


class _Layer:
    """One layer of one direction: ``LSTMLayer``'s formula on packed weights."""

    def __init__(self, layer: LSTMLayer, precision: Precision) -> None:
        width = layer.kernel.shape[0] // 2
        self.input = Matmul(layer.kernel[:width], with_forget_bias(layer.bias), precision)
        self.recurrent = Matmul(layer.kernel[width:], None, precision)
        self.projection = None if layer.projection is None else Matmul(layer.projection, None, precision)
        self.cell_clip, self.proj_clip = layer.cell_clip, layer.proj_clip
        # For rows that run alone: the weights as they lie in the biLM, or a small copy in bfloat16. (Large matrices
        # come from memory, where oneDNN's order is as good and the copy would cost more than it brings.)
        recurrent, projection = layer.kernel.detach()[width:], layer.projection
        self.alone: tuple[Tensor, Tensor | None] | None = None
        if self.input.dtype == recurrent.dtype or recurrent.numel() <= SMALL_MATRIX:
            rounded = None if projection is None else projection.detach().to(self.input.dtype)
            self.alone = recurrent.to(self.input.dtype), rounded

    def run(
        self,
        inputs: Tensor,
        index: Tensor | None,
        batch_sizes: list[int],
        hidden: Tensor,
        cell: Tensor,
        outputs: Tensor,
    ) -> None:
        """Fill the first n rows of ``outputs`` (n + PADDING, P), packed.

        inputs: as many rows, (…, P); or fewer, of which packed step s reads ``inputs[index[s]]``.
        """
        if batch_sizes[0] == 1 and self._run_alone(inputs, hidden, cell, outputs):
            return
        dtype = self.input.dtype
        inputs = inputs.to(dtype)
        shared = None if index is None else self._gates_of_all(inputs)
        # Rows beyond those that run hold what they held: they are multiplied, and nobody reads the result.
        squashed = inputs.new_zeros(padded(batch_sizes[0]), cell.shape[1])
        h = inputs.new_zeros(padded(batch_sizes[0]), hidden.shape[1])
        running = batch_sizes[0]
        h[:running] = hidden[:running]
        chunk, first, end, start = inputs, 0, 0, 0  # chunk: gates of the packed steps from first to end
        for step, rows in enumerate(batch_sizes):
            stop, size = start + rows, padded(rows)
            if shared is not None and index is not None:
                gates = shared.index_select(0, index[start : start + size])
            else:
                if stop > end:
                    first, end, height = start, *_chunk(batch_sizes, step, start)
                    chunk = self.input(inputs[first : first + height])
                gates = chunk[start - first : start - first + size]
            if rows < running:
                hidden[rows:running] = h[rows:running]
                running = rows
            gates = self.recurrent.add(gates, h[:size])
            cell_step.infer(gates[:rows], cell[:rows], squashed[:rows], self.cell_clip)
            # Without a projection h is m itself, which the next step overwrites.
            h = squashed[:size].clone() if self.projection is None else self.projection(squashed[:size])
            if self.proj_clip is not None:
                h.clamp_(-self.proj_clip, self.proj_clip)
            outputs[start:stop] = h[:rows]
            start = stop
        hidden[:running] = h[:running]

    def _run_alone(self, inputs: Tensor, hidden: Tensor, cell: Tensor, outputs: Tensor) -> bool:
        """A single row, by the extension. RETURNS: whether it was done; nothing was if not."""
        if self.alone is None:
            return False
        for start in range(0, len(outputs) - PADDING, ROWS_PER_PRODUCT):
            count = min(ROWS_PER_PRODUCT, len(outputs) - PADDING - start)
            if not cell_step.run_row(
                self.input(inputs[start : start + padded(count)].to(self.input.dtype))[:count].to(cell.dtype),
                *self.alone,
                hidden,
                cell,
                outputs[start : start + count],
                (self.cell_clip, self.proj_clip),
            ):
                return False
        return True

    def _gates_of_all(self, inputs: Tensor) -> Tensor:
        count = len(inputs) - PADDING
        sizes = [padded(min(ROWS_PER_PRODUCT, count - start)) for start in range(0, count, ROWS_PER_PRODUCT)]
        return torch.cat([self.input(some) for some in inputs[: sum(sizes)].split(sizes)])


def _chunk(batch_sizes: list[int], step: int, start: int) -> tuple[int, int]:
    """Packed rows whose input products are made together, from ``step`` on: where they end, and how many with padding.

    At least one step's; the next steps' as long as theirs, each padded, fit into ROWS_PER_PRODUCT.
    """
    end, height = start + batch_sizes[step], padded(batch_sizes[step])
    for rows in batch_sizes[step + 1 :]:
        if end - start + padded(rows) > ROWS_PER_PRODUCT:
            break
        height = max(height, end - start + padded(rows))
        end += rows
    return end, padded(height)


def make_stacks(bilm: BiLM, precision: Precision) -> Stacks:
    """The stacks for the device where the weights are."""
    if bilm.device.type == "cuda":
        from .cuda import CudaStacks

        return CudaStacks(bilm, precision)
    return CPUStacks(bilm, precision)
