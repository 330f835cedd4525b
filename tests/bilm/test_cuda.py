from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spacy_elmo.bilm import cell, cuda, cuda_step, encode
from spacy_elmo.bilm.cuda import CudaStacks, rounded_up
from spacy_elmo.bilm.lstm import LSTMStack
from spacy_elmo.bilm.model import BiLM

from .twins import make_bilm, numpy_twin

SHAPES: dict[str, dict[str, Any]] = {
    "as published": {},
    "three layers": {"n_layers": 3},
    "one layer": {"n_layers": 1},
    "no projection": {"lstm_dim": 5},
    "no clips": {"cell_clip": None, "proj_clip": None},
    "no skip connections": {"use_skip_connections": False},
}
MANY_CELLS: dict[str, Any] = {"lstm_dim": 64, "projection_dim": 16}
# Rows that end one after another, some of them together, the last alone for a while.
LENGTHS = [9, 9, 6, 5, 5, 1]


SENTENCES = [
    ["The", "cat", "sat", "."],
    [],
    ["no"] * 40,
    *([f"w{i}", "the", "日本語"] * (i % 5 + 1) for i in range(70)),
]


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def batch_sizes(lengths: list[int], steps: range) -> list[int]:
    return [sum(length > step for length in lengths) for step in steps]


class Rows:
    """Token vectors, rows of ragged length that read them, and states to start from."""

    def __init__(self, bilm: BiLM, lengths: list[int], n_types: int = 7, seed: int = 0) -> None:
        config, rows = bilm.config, len(lengths)
        self.lengths = lengths
        self.table = drawn(n_types, config.projection_dim, seed=seed)
        generator = torch.Generator().manual_seed(seed + 1)
        # (2, B, T): what each direction reads.
        self.types = torch.randint(n_types, (2, rows, lengths[0]), generator=generator)
        self.hidden = drawn(2, config.n_layers, rows, config.projection_dim, seed=seed + 2)
        self.cell = drawn(2, config.n_layers, rows, config.lstm_dim, seed=seed + 3).clamp_(-1.0, 1.0)

    def run(self, stacks: CudaStacks, windows: list[int], device: str = "cpu") -> tuple[list[Tensor], Tensor, Tensor]:
        """Layers (2, sum of lengths, P) packed over all windows, and the states that are left."""
        hidden, cell = self.hidden.to(device, copy=True), self.cell.to(device, copy=True)
        parts: list[list[Tensor]] = []
        begin = 0
        for steps in windows:
            window = range(begin, min(begin + steps, self.lengths[0]))
            sizes = batch_sizes(self.lengths, window)
            types = torch.cat([self.types[:, :size, step] for step, size in zip(window, sizes, strict=True)], dim=1)
            parts.append(stacks.run(self.table.to(device), types.to(device), sizes, hidden, cell))
            begin = window.stop
        assert begin == self.lengths[0]
        return [torch.cat(layer, dim=1).cpu() for layer in zip(*parts, strict=True)], hidden.cpu(), cell.cpu()

    def expected(self, bilm: BiLM) -> tuple[list[Tensor], Tensor, Tensor]:
        """The same by the layers of training, row by row."""
        hidden, cell = torch.empty_like(self.hidden), torch.empty_like(self.cell)
        shape = (2, len(self.lengths), self.lengths[0], self.table.shape[1])
        layers = [self.table.new_zeros(shape) for _ in range(bilm.config.n_layers)]
        for direction, stack in enumerate((bilm.forward_lstm, bilm.backward_lstm)):
            assert isinstance(stack, LSTMStack)
            for row, length in enumerate(self.lengths):
                one = slice(row, row + 1)
                inputs = self.table[self.types[direction, row, :length], None]
                with torch.no_grad():
                    outputs, h, c = stack(inputs, self.hidden[direction, :, one], self.cell[direction, :, one])
                hidden[direction, :, one], cell[direction, :, one] = h, c
                for layer, output in zip(layers, outputs, strict=True):
                    layer[direction, row, :length] = output[:, 0]
        sizes = batch_sizes(self.lengths, range(self.lengths[0]))
        return [torch.cat([x[:, :size, t] for t, size in enumerate(sizes)], dim=1) for x in layers], hidden, cell


def assert_equal(found: tuple[list[Tensor], Tensor, Tensor], wanted: tuple[list[Tensor], Tensor, Tensor]) -> None:
    for one, other in zip([*found[0], *found[1:]], [*wanted[0], *wanted[1:]], strict=True):
        assert one.dtype == torch.float32
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0.0, atol=2e-6)


@pytest.fixture(params=["products of rows", "product of each type", "input and state together"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The three ways to the gates, which sizes choose between; the test must take it in some window."""
    name: str = request.param
    monkeypatch.setattr(cuda, "FEW_ROWS", 100 if name == "products of rows" else 0)
    monkeypatch.setattr(cuda, "WIDE", 0 if name == "product of each type" else 10**6)
    taken = []
    make_ahead = CudaStacks._make_ahead

    def watched(stacks: CudaStacks, layer: Any, inputs: Tensor, rows: int, words: Any) -> bool:
        ahead = make_ahead(stacks, layer, inputs, rows, words)
        taken.append((ahead, words is not None))
        return ahead

    monkeypatch.setattr(CudaStacks, "_make_ahead", watched)
    yield name
    if name == "products of rows":
        assert all(ahead for ahead, _ in taken)
    elif name == "product of each type":
        assert (True, True) in taken
        assert (True, False) not in taken
    else:
        assert not any(ahead for ahead, _ in taken)


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("windows", [[9], [4, 4, 4], [1] * 9], ids=str)
def test_equals_the_layers_of_training(options: dict[str, Any], windows: list[int], path: str) -> None:
    bilm = make_bilm(**options)
    rows = Rows(bilm, LENGTHS, n_types=3)
    wanted = rows.expected(bilm)
    if bilm.config.cell_clip is not None:
        assert (wanted[2].abs() == bilm.config.cell_clip).any()
    if bilm.config.proj_clip is not None and bilm.config.has_projection:
        assert (wanted[1].abs() == torch.tensor(bilm.config.proj_clip)).any()
    assert_equal(rows.run(CudaStacks(bilm, "float32"), windows), wanted)


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
def test_encode_by_them_equals_the_reference(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "make_stacks", CudaStacks)
    bilm = make_bilm(5, **options)
    twin = numpy_twin(bilm)
    batches = [SENTENCES[:9], SENTENCES[9:15]]
    for batch, wanted in zip(batches, twin.encode_carried(batches), strict=True):
        for found, layers in zip(bilm.encode(batch, "carry"), wanted, strict=True):
            torch.testing.assert_close(found.double(), torch.from_numpy(layers), rtol=0.0, atol=1e-5)
    assert (twin.clip_hits["cell"] > 0) == (bilm.config.cell_clip is not None)
    stacks = bilm._runtime.packed["float32"].stacks
    assert isinstance(stacks, CudaStacks)


def test_bfloat16_is_near(path: str) -> None:
    bilm = make_bilm(**MANY_CELLS)
    rows = Rows(bilm, LENGTHS, n_types=3)
    found, wanted = rows.run(CudaStacks(bilm, "bfloat16"), [9]), rows.expected(bilm)
    for one, other in zip(found[0], wanted[0], strict=True):
        assert one.dtype == torch.float32
        assert not torch.equal(one, other)
        similarity = F.cosine_similarity(one, other, dim=2)
        assert similarity.min() > 0.99
        assert similarity.mean() > 0.999


def test_double_weights_are_computed_in_double() -> None:
    bilm = make_bilm()
    rows = Rows(bilm, LENGTHS)
    rows.table, rows.hidden, rows.cell = rows.table.double(), rows.hidden.double(), rows.cell.double()
    wanted = rows.expected(bilm.double())
    for one, other in zip(rows.run(CudaStacks(bilm, "float32"), [9])[0], wanted[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-12)


def test_rows_are_rounded_to_few_sizes() -> None:
    sizes = [rounded_up(rows) for rows in range(1, 4097)]
    assert all(rows <= size < max(2 * rows, rows + 128) for rows, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 8 + 31
    assert rounded_up(128) == 128


@pytest.mark.parametrize("lstm_dim", [8, 1024, 4096, 2**20])
def test_buffers_follow_the_sizes(lstm_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "BYTES", 2**18)
    monkeypatch.setattr(cuda, "MOST_STEPS", 64)
    stacks = CudaStacks(make_bilm(lstm_dim=lstm_dim, n_layers=1), "float32")
    assert rounded_up(stacks.rows) == stacks.rows
    assert stacks.rows == {8: 1024, 1024: 8, 4096: 2, 2**20: 1}[lstm_dim]
    assert stacks.steps == max(stacks.rows, 64)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_the_kernels_equal_the_plain_functions(root: Path) -> None:
    # Its interpreter runs them on a CPU; it is switched on before Triton is imported.
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted_kernels.py"))],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "18 comparisons"


def pair(seed: int = 0, **options: Any) -> tuple[BiLM, BiLM]:
    """The same biLM twice, on the CPU and on the GPU."""
    return make_bilm(seed, **options), make_bilm(seed, **options).cuda()


@pytest.fixture
def no_tf32() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = False
    yield
    matmul.allow_tf32 = before


gpu = pytest.mark.gpu
pytestmark = pytest.mark.usefixtures("no_tf32")


@gpu
@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("triton", [True, False], ids=["Triton", "torch's operators"])
def test_gpu_equals_cpu(options: dict[str, Any], triton: bool, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not triton:
        monkeypatch.setattr(cuda, "fused", lambda: None)
    on_cpu, on_gpu = pair(**options)
    rows = Rows(on_cpu, LENGTHS, n_types=3)
    stacks = CudaStacks(on_gpu, "float32")
    # The first time kernel by kernel, then captured, then again from the graphs.
    for _ in range(3):
        assert_equal(rows.run(stacks, [4, 4, 4], "cuda"), rows.expected(on_cpu))
    assert bool(stacks._graphs) == triton


@gpu
def test_gpu_works_with_triton() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cuda_step.fused() is not None


@gpu
@pytest.mark.parametrize("state", ["zero", "carry"])
def test_gpu_encode(state: Any) -> None:
    on_cpu, on_gpu = pair(lstm_dim=64, projection_dim=16)
    for _ in range(3):
        for found, wanted in zip(on_gpu.encode(SENTENCES, state), on_cpu.encode(SENTENCES, state), strict=True):
            assert found.device.type == "cuda"
            torch.testing.assert_close(found.cpu(), wanted, rtol=0.0, atol=5e-6)


@gpu
def test_gpu_encode_in_bfloat16() -> None:
    on_cpu, on_gpu = pair(lstm_dim=64, projection_dim=16)
    for _ in range(3):
        found = torch.cat(on_gpu.encode(SENTENCES, precision="bfloat16"), dim=1)
        wanted = torch.cat(on_cpu.encode(SENTENCES), dim=1)
        assert found.dtype == torch.float32
        similarity = F.cosine_similarity(found.cpu(), wanted, dim=2)
        assert similarity.min() > 0.95
        assert similarity.mean() > 0.999


@gpu
def test_gpu_sees_changed_weights() -> None:
    _, bilm = pair()
    for _ in range(3):
        bilm.encode(SENTENCES)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.mul_(0.5)
    found = torch.cat(bilm.encode(SENTENCES), dim=1).cpu()
    torch.testing.assert_close(found, torch.cat(bilm.cpu().encode(SENTENCES), dim=1), rtol=0.0, atol=5e-6)


@gpu
def test_gpu_sees_a_changed_tf32_switch() -> None:
    on_cpu, on_gpu = pair(lstm_dim=256, projection_dim=128)
    wanted = torch.cat(on_cpu.encode(SENTENCES), dim=1)
    errors = []
    for tf32 in (False, True, False):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        for _ in range(3):
            found = torch.cat(on_gpu.encode(SENTENCES), dim=1).cpu()
        errors.append((found - wanted).abs().mean().item())
    assert errors[1] > 20 * errors[0]
    assert errors[2] == pytest.approx(errors[0])


@gpu
def test_gpu_threads_do_not_disturb_each_other() -> None:
    _, bilm = pair(lstm_dim=64, projection_dim=16)
    jobs = [SENTENCES[i:] + SENTENCES[:i] for i in range(8)]
    expected = [torch.cat(bilm.encode(job), dim=1) for job in jobs]
    found: list[Tensor | None] = [None] * len(jobs)

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(10):
                result = torch.cat(bilm.encode(jobs[number]), dim=1)
                torch.cuda.current_stream().synchronize()
                found[number] = result

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=[number]) for number in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        torch.testing.assert_close(one, other, rtol=0.0, atol=2e-6)


@gpu
def test_gpu_memory_is_bounded() -> None:
    bilm = BiLM(make_bilm(lstm_dim=1024, projection_dim=128).config).initialize(0).cuda()
    sentences = [[f"w{i % 500}"] * (5 + i % 30) for i in range(1000)]
    out = [torch.empty(3, len(sentence), 256, device="cuda") for sentence in sentences]
    peaks = []
    for times in (1, 8):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        bilm.encode(sentences * times, out=out * times)
        peaks.append(torch.cuda.max_memory_allocated())
    # Rows of a batch are limited, and so is what a batch needs.
    assert peaks[0] < 1.5e9
    assert peaks[1] < 2 * peaks[0] + 5e8


@gpu
@pytest.mark.parametrize("clip", [None, 0.5])
def test_gpu_kernels_of_training(clip: float | None) -> None:
    from spacy_elmo.bilm import cell_triton

    gates, before, d_squashed, d_cell = (drawn(33, n, seed=n) for n in (4 * 1500, 1500, 1501, 1502))
    d_squashed, d_cell = d_squashed[:, :1500].contiguous(), d_cell[:, :1500].contiguous()
    results = []
    for kernels, device in ((cell, "cpu"), (cell_triton, "cuda")):
        numbers = (tensor.to(device, copy=True) for tensor in (gates, before, d_squashed, d_cell))
        activations, old, d_m, d_c = numbers
        c, m, d_gates = torch.empty_like(old), torch.empty_like(old), torch.empty_like(activations)
        kernels.forward(activations, old, c, m, clip)
        kernels.backward(activations, old, c, d_m, d_c, d_gates, clip)
        results.append([tensor.cpu() for tensor in (activations, c, m, d_gates, d_c)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=2e-6)


@gpu
def test_gpu_gradients() -> None:
    gradients = []
    for bilm in pair(3):
        ids = bilm.token_ids(["The", "cat", "sat", "."])
        steps = torch.randint(4, (3, 5), generator=torch.Generator().manual_seed(0)).to(bilm.device)
        forward, backward, _ = bilm.hidden(ids, steps, steps.flip(1), bilm.zero_state(3))
        (forward.square() + backward.sin()).sum().backward()
        gradients.append({name: parameter.grad for name, parameter in bilm.named_parameters()})
    for name, one in gradients[0].items():
        other = gradients[1][name]
        assert one is not None
        assert other is not None
        torch.testing.assert_close(other.cpu(), one, rtol=1e-4, atol=1e-5)


@gpu
def test_gpu_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu, on_gpu = pair()
    kernels = CudaStacks._kernels

    def refuse(stacks: CudaStacks, depth: int, rows: int, ahead: bool) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("not today")
        kernels(stacks, depth, rows, ahead)

    monkeypatch.setenv("SPACY_ELMO_GRAPHS", "1")
    monkeypatch.setattr(CudaStacks, "_kernels", refuse)
    with pytest.warns(UserWarning, match="without CUDA graphs.*not today"):
        found = on_gpu.encode(SENTENCES)
    wanted = torch.cat(on_cpu.encode(SENTENCES), dim=1)
    torch.testing.assert_close(torch.cat(found, dim=1).cpu(), wanted, rtol=0.0, atol=5e-6)
    monkeypatch.undo()
    monkeypatch.setenv("SPACY_ELMO_GRAPHS", "0")
    on_gpu.invalidate()
    torch.testing.assert_close(torch.cat(on_gpu.encode(SENTENCES), dim=1).cpu(), wanted, rtol=0.0, atol=5e-6)
    assert on_gpu._runtime.packed["float32"].stacks._graphs == {}  # type: ignore[attr-defined]
