"""The LSTM stacks on a GPU: both directions in each product, and few launches a step.

A step of a layer is four kernels: the product with the recurrent weights, ``infer`` (gates to cell and output), the
product with the projection, ``settle`` (clip, and put the result where it is read). With ``SPACY_ELMO_GRAPHS=1`` in the
environment they are launched together, as a CUDA graph. A graph is for fixed addresses and a fixed number of rows: so
everything lies in buffers that stay, rows are rounded up, and what changes from step to step is read from a plan on the
GPU, which the kernels move on themselves.

Where Triton does not work, torch's operators stand in for two of the kernels. So they do on a CPU, where all this can
run to be tested.
"""

from __future__ import annotations

import os
import threading
import warnings
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from .cuda_step import PLAIN, fused
from .lstm import LSTMLayer, with_forget_bias
from .matmul import Precision

if TYPE_CHECKING:
    from .model import BiLM

# The gates of a step, and half of the products made ahead. Less where the card has little.
BYTES = 256 * 2**20
MOST_ROWS, MOST_STEPS, MOST_AHEAD = 4096, 16384, 4096
# With so few rows a step waits for its weights: the input's half of them is better read once for all steps.
FEW_ROWS = 32
# From this width on a product is worth more than the memory traffic of making it ahead, once a word type.
WIDE = 256


class CudaStacks:
    """``stacks.Stacks`` for CUDA. Calls from several threads run one after another.

    "float32" leaves torch's TF32 switch as the user has it (off, unless somebody turned it on).
    """

    def __init__(self, bilm: BiLM, precision: Precision) -> None:
        config, device = bilm.config, bilm.device
        weight = bilm.forward_lstm.layers[0].kernel
        assert isinstance(weight, Tensor)
        self.dtype = torch.bfloat16 if precision == "bfloat16" else weight.dtype
        self.skips, self.width, self.size = config.use_skip_connections, config.projection_dim, config.lstm_dim
        self.layers = [
            _Layer(forward, backward, self.dtype)
            for forward, backward in zip(bilm.forward_lstm.layers, bilm.backward_lstm.layers, strict=True)
            if isinstance(forward, LSTMLayer) and isinstance(backward, LSTMLayer)
        ]
        gates = 2 * 4 * self.size * self.dtype.itemsize  # bytes a row
        budget = _budget(device)
        rows = max(1, min(MOST_ROWS, budget // gates))
        self.rows = rows - rows % 128 if rows >= 128 else 1 << (rows.bit_length() - 1)
        self.steps = max(self.rows, MOST_STEPS)
        self._most_ahead = min(MOST_AHEAD, 2 * budget // gates)
        self._ops: ModuleType | SimpleNamespace = PLAIN
        if device.type == "cuda" and weight.dtype == torch.float32:
            self._ops = fused() or PLAIN

        def buffer(*shape: int, dtype: torch.dtype = weight.dtype) -> Tensor:
            with torch.inference_mode(False):  # later calls may write to it outside of inference mode
                return torch.zeros(*shape, dtype=dtype, device=device)

        # What a row reads in a step, as the weights stand: its input and its last output. And its cell.
        self._read = buffer(2, self.rows, 2 * self.width, dtype=self.dtype)
        self._cell = buffer(2, self.rows, self.size)
        # Packed: what a layer reads and what it gives, in turns.
        self._packed = buffer(2, 2, self.steps, self.width)
        self._gates = buffer(2 * self.rows * 4 * self.size, dtype=self.dtype)
        self._squashed = buffer(2 * self.rows * self.size, dtype=self.dtype)
        self._projected = buffer(2 * self.rows * self.width, dtype=self.dtype)
        # Products of inputs with their weights, and which of them each packed step adds.
        self._ahead = buffer(2, self._most_ahead, 4 * self.size, dtype=self.dtype)
        self._index = buffer(2, self.steps, dtype=torch.int64)
        # See ``cuda_step``. Torch's operators read it on the host.
        on = torch.device("cpu") if self._ops is PLAIN else device
        with torch.inference_mode(False):  # as in `buffer`
            self._plan = torch.zeros(6 + self.steps + 1, dtype=torch.int64, device=on)

        self._lock = threading.Lock()
        self._seen: set[tuple[object, ...]] = set()
        self._graphs: dict[tuple[object, ...], torch.cuda.CUDAGraph] = {}
        self._device, self._captures = device, False
        if device.type == "cuda":
            self._stream, self._free = torch.cuda.Stream(device), torch.cuda.Event()
            self._pool = torch.cuda.graph_pool_handle()
            wanted = self._plan.is_cuda and os.environ.get("SPACY_ELMO_GRAPHS", "0") == "1"
            self._captures = wanted and self._graphs_work(config.n_layers)

    def run(self, table: Tensor, types: Tensor, batch_sizes: list[int], hidden: Tensor, cell: Tensor) -> list[Tensor]:
        """See ``stacks.Stacks.run``."""
        if self._device.type != "cuda":
            return self._run(table, types, batch_sizes, hidden, cell)
        with self._lock, torch.cuda.device(self._device):
            # Another thread may have used the buffers on another stream.
            torch.cuda.current_stream().wait_event(self._free)
            layers = self._run(table, types, batch_sizes, hidden, cell)
            self._free.record()
            return layers

    def _run(self, table: Tensor, types: Tensor, batch_sizes: list[int], hidden: Tensor, cell: Tensor) -> list[Tensor]:
        n, rows, width = types.shape[1], batch_sizes[0], self.width
        plan = torch.tensor([0, rows, 0, 0, 0, 0, *batch_sizes, 0], device="cpu")
        if self._plan.is_cuda:
            plan = plan.pin_memory().to(self._device, non_blocking=True)
        self._packed[0, :, :n] = F.embedding(types, table)
        layers = []
        for depth, layer in enumerate(self.layers):
            inputs, outputs = self._packed[depth % 2, :, :n], self._packed[1 - depth % 2, :, :n]
            self._plan[: len(plan)] = plan
            ahead = self._make_ahead(layer, inputs, rows, (table, types) if depth == 0 else None)
            if not ahead:
                self._read[:, :rows, :width] = inputs[:, :rows]
            self._read[:, :rows, width:] = hidden[:, depth, :rows]
            self._cell[:, :rows] = cell[:, depth, :rows]
            for active in batch_sizes:
                self._step(depth, rounded_up(active), ahead)
            hidden[:, depth, :rows] = self._read[:, :rows, width:]
            cell[:, depth, :rows] = self._cell[:, :rows]
            layers.append(outputs.clone())
        return layers

    def _make_ahead(self, layer: _Layer, inputs: Tensor, rows: int, words: tuple[Tensor, Tensor] | None) -> bool:
        """Make the products of inputs with their weights before the steps, and say whether that was done.

        inputs: (2, n, P). words: table and types of the first layer, where words repeat and so do their products.
        """
        n, kernel = inputs.shape[1], layer.kernel[:, : self.width]
        if rows <= FEW_ROWS and n <= self._most_ahead:
            torch.bmm(inputs.to(self.dtype), kernel, out=self._ahead[:, :n])
            self._index[:, :n] = torch.arange(n, device=inputs.device)
            return True
        if words is None or rows <= FEW_ROWS or self.width < WIDE:
            return False
        distinct, index = torch.unique(words[1], return_inverse=True)
        if len(distinct) > min(self._most_ahead, n // 2):
            return False
        vectors = words[0][distinct].to(self.dtype).expand(2, -1, -1)
        torch.bmm(vectors, kernel, out=self._ahead[:, : len(distinct)])
        self._index[:, :n] = index
        return True

    def _step(self, depth: int, rows: int, ahead: bool) -> None:
        """One step of one layer for so many rows; those that have ended are left as they are."""
        if not self._captures:
            return self._kernels(depth, rows, ahead)
        key = (depth, rows, ahead, _tf32())
        graph = self._graphs.get(key)
        if graph is None and key not in self._seen:
            # The first time counts, and makes libraries and Triton load what they need: a capture must not.
            self._seen.add(key)
            return self._kernels(depth, rows, ahead)
        if graph is None:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.current_blas_handle()  # each thread has one, and it cannot be made in a capture
            with torch.cuda.stream(self._stream):
                # Relaxed: what other threads do meanwhile, or the garbage collector, must not end it.
                graph.capture_begin(pool=self._pool, capture_error_mode="relaxed")
                try:
                    self._kernels(depth, rows, ahead)
                finally:
                    graph.capture_end()
            self._graphs[key] = graph
        graph.replay()
        return None

    def _graphs_work(self, n_layers: int) -> bool:
        """Try them: what they give must be what the kernels give one by one. If not, a warning says so."""
        table = torch.linspace(-1.0, 1.0, 3 * self.width, device=self._device).view(3, self.width)
        near = 1e-2 if self.dtype == torch.bfloat16 else 1e-3
        try:
            for rows in {min(some, self.rows) for some in (2, FEW_ROWS + 1, 129)}:
                sizes = [rows, rows, 1]
                types = (torch.arange(2 * sum(sizes), device=self._device) % 3).view(2, -1)
                results = []
                for self._captures in (False, True, True, True):
                    state = [table.new_zeros(2, n_layers, rows, size) for size in (self.width, self.size)]
                    results.append(torch.cat([x.flatten() for x in [*self.run(table, types, sizes, *state), *state]]))
                if not all(torch.allclose(result, results[0], atol=near, equal_nan=True) for result in results):
                    raise RuntimeError("their result is wrong")
        # A driver may refuse to capture; then it does so here, and not in a user's call.
        except RuntimeError as error:
            warnings.warn(f"spacy-elmo does without CUDA graphs, which do not work here: {error}", stacklevel=2)
            self._graphs.clear()
            return False
        return True

    def _kernels(self, depth: int, rows: int, ahead: bool) -> None:
        layer, width, size = self.layers[depth], self.width, self.size
        gates = self._gates[: 2 * rows * 4 * size].view(2, rows, 4 * size)
        squashed = self._squashed[: 2 * rows * size].view(2, rows, size)
        first = width if ahead else 0
        torch.bmm(self._read[:, :rows, first:], layer.kernel[:, first:], out=gates)
        products = self._ahead if ahead else None
        self._ops.infer(
            gates, layer.bias, products, self._index, self._cell[:, :rows], squashed, layer.cell_clip, self._plan
        )
        projected = squashed
        if layer.projection is not None:
            projected = self._projected[: 2 * rows * width].view(2, rows, width)
            torch.bmm(squashed, layer.projection, out=projected)
        inputs, outputs = self._packed[depth % 2], self._packed[1 - depth % 2]
        skip = bool(depth) and self.skips
        self._ops.settle(projected, inputs, self._read, outputs, layer.proj_clip, self._plan, ahead=ahead, skip=skip)


class _Layer:
    """One layer of both directions, weights stacked: kernel (2, 2P, 4H), bias (2, 4H), projection (2, H, P)."""

    def __init__(self, forward: LSTMLayer, backward: LSTMLayer, dtype: torch.dtype) -> None:
        both = (forward, backward)
        self.kernel = torch.stack([layer.kernel.detach() for layer in both]).to(dtype)
        self.bias = torch.stack([with_forget_bias(layer.bias.detach()) for layer in both])
        projections = [layer.projection.detach() for layer in both if layer.projection is not None]
        self.projection = torch.stack(projections).to(dtype) if projections else None
        self.cell_clip, self.proj_clip = forward.cell_clip, forward.proj_clip


def rounded_up(rows: int) -> int:
    """Rows that a step is computed for: a power of 2, or a multiple of 128, which is how products are cut anyway."""
    return 1 << (rows - 1).bit_length() if rows <= 128 else -(-rows // 128) * 128


def _tf32() -> object:
    """torch's switch, by its new name or its old one; a graph keeps what it was captured with."""
    matmul = torch.backends.cuda.matmul
    return getattr(matmul, "fp32_precision", None) or matmul.allow_tf32


def _budget(device: torch.device) -> int:
    if device.type != "cuda":
        return BYTES
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(BYTES, free // 32)
