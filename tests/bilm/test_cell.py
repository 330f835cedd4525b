"""The pointwise half of an LSTM step, compiled and in torch's operators, against the formula in float64."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm import cell as cell_step

CLIP = 3.0
NAN, INF = float("nan"), float("inf")
# Sigmoid and tanh are right to 1.5e-7, and a few of them and their products make up a step.
EACH, STEP = 1.6e-7, 5e-7


def instruction_sets() -> list[str]:
    extension = cell_step._extension()
    return [] if extension is None else extension.instruction_sets()


@pytest.fixture
def extension() -> Iterator[ModuleType]:
    """The extension as this machine runs it, whatever the test makes it use."""
    found = cell_step._extension()
    if found is None:
        pytest.skip("spacy_elmo.bilm._cell was not built, or SPACY_ELMO_COMPILED=0")
    yield found
    found.use(found.instruction_sets()[-1])


@pytest.fixture(params=["torch", *(instruction_sets() or ["compiled"])])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test with torch's operators and with the code for each instruction set of this machine."""
    if request.param == "torch":
        monkeypatch.setattr(cell_step, "_extension", lambda: None)
    else:
        request.getfixturevalue("extension").use(request.param)
    return request.param


class Case(NamedTuple):
    """Operands of a step, float32, some of them rows of a wider matrix."""

    gates: Tensor
    before: Tensor
    clip: float | None

    def exact(self) -> tuple[Tensor, Tensor]:
        return formula(self.gates.double(), self.before.double(), self.clip)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, size = draw(st.integers(1, 200)), draw(st.integers(2, 70))
    scale, gap = draw(st.sampled_from([0.01, 1.0, 5.0, 100.0, 1e30])), draw(st.sampled_from([0, 1, 5]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    gates = torch.randn(rows, 4 * size + gap, generator=generator)[:, : 4 * size] * scale
    before = torch.randn(rows, size + gap, generator=generator)[:, gap:] * draw(st.sampled_from([0.1, 2.0, 50.0]))
    return Case(gates, before, draw(st.sampled_from([None, CLIP])))


# Fixtures change nothing that an example could leave behind.
each_path = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def formula(gates: Tensor, before: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """c and m."""
    i, j, f, o = gates.chunk(4, dim=1)
    cell = torch.sigmoid(f) * before + torch.sigmoid(i) * torch.tanh(j)
    if clip is not None:
        cell = cell.clamp(-clip, clip)
    return cell, torch.sigmoid(o) * torch.tanh(cell)


def within(got: Tensor, exact: Tensor, bound: Tensor | float) -> bool:
    """Whether no element is off by more than its bound; one that is no number is."""
    return bool(((got.double() - exact).abs() <= bound).all())


def strided(like: Tensor) -> Tensor:
    """A matrix of the same shape and other row stride, full of NaN."""
    return torch.full((len(like), like.shape[1] + 3), NAN, dtype=like.dtype)[:, : like.shape[1]]


@each_path
@given(case=cases())
def test_infer_is_the_formula(path: str, case: Case) -> None:
    cell, squashed = strided(case.before), strided(case.before)
    cell.copy_(case.before)
    cell_step.infer(case.gates.clone(), cell, squashed, case.clip)
    exact, exact_squashed = case.exact()
    bound = STEP * (1.0 + case.before.double().abs())
    assert within(cell, exact, bound)
    assert within(squashed, exact_squashed, bound)


@each_path
@given(case=cases())
def test_forward_is_the_formula_and_leaves_the_activations(path: str, case: Case) -> None:
    gates, cell, squashed = strided(case.gates), strided(case.before), strided(case.before)
    gates.copy_(case.gates)
    kept = case.before.clone()
    cell_step.forward(gates, case.before, cell, squashed, case.clip)
    exact, exact_squashed = case.exact()
    bound = STEP * (1.0 + case.before.double().abs())
    assert within(cell, exact, bound)
    assert within(squashed, exact_squashed, bound)
    i, j, f, o = case.gates.double().chunk(4, dim=1)
    assert within(gates, torch.cat([i.sigmoid(), j.tanh(), f.sigmoid(), o.sigmoid()], dim=1), EACH)
    assert torch.equal(case.before, kept)


@each_path
@given(case=cases(), seed=st.integers(0, 10**6))
def test_backward_is_autograd(path: str, case: Case, seed: int) -> None:
    # Steeper than this the clip takes almost every cell, and what autograd gets in float64 is not what float32 saw.
    gates = case.gates.clamp(-20.0, 20.0)
    generator = torch.Generator().manual_seed(seed)
    d_squashed, d_cell = (torch.randn(case.before.shape, generator=generator) for _ in range(2))
    leaves = [x.double().requires_grad_() for x in (gates, case.before)]
    exact_cell, exact_squashed = formula(leaves[0], leaves[1], case.clip)
    (exact_cell * d_cell + exact_squashed * d_squashed).sum().backward()

    cell, squashed, d_gates, activations = (strided(x) for x in (case.before, case.before, gates, gates))
    activations.copy_(gates)
    cell_step.forward(activations, case.before, cell, squashed, case.clip)
    unchanged = [x.clone() for x in (activations, case.before, cell, d_squashed)]
    cell_step.backward(activations, case.before, cell, d_squashed, d_cell, d_gates, case.clip)
    assert all(map(torch.equal, (activations, case.before, cell, d_squashed), unchanged))
    # A cell that rounding puts at its clip or takes away from it has another gradient: leave those out.
    sure = torch.ones_like(exact_cell, dtype=torch.bool)
    if case.clip is not None:
        sure = formula(leaves[0], leaves[1], None)[0].abs().sub(case.clip).abs() > 1e-4
    bound = 4e-6 * (1.0 + case.before.double().abs())
    assert leaves[0].grad is not None
    assert leaves[1].grad is not None
    assert within(d_cell[sure], leaves[1].grad[sure], bound[sure])
    assert within(d_gates[sure.repeat(1, 4)], leaves[0].grad[sure.repeat(1, 4)], bound.repeat(1, 4)[sure.repeat(1, 4)])


def activations_of(values: list[float] | Tensor) -> tuple[Tensor, Tensor]:
    """sigmoid (of the gates i, f and o in turn) and tanh as ``forward`` computes them."""
    x = torch.as_tensor(values, dtype=torch.float32)[None]
    gates, zeros = x.repeat(1, 4), torch.zeros_like(x)
    cell_step.forward(gates, zeros, torch.empty_like(x), torch.empty_like(x), None)
    i, j, f, o = gates.chunk(4, dim=1)
    return torch.cat([i, f, o]), j[0]


@pytest.mark.parametrize("reach", [1e-3, 1.0, 10.0, 100.0, 3e38])
def test_sigmoid_and_tanh_over_their_whole_range(path: str, reach: float) -> None:
    x = torch.linspace(-1.0, 1.0, 200_001) * reach
    sigmoid, tanh = activations_of(x)
    assert within(sigmoid, x.double().sigmoid(), EACH)
    assert within(tanh, x.double().tanh(), EACH)


def test_values_without_end_and_values_near_zero(path: str) -> None:
    x = [-INF, INF, -1e38, 1e38, 0.0, -0.0, 1e-30, -1e-30, 1e-6]
    sigmoid, tanh = activations_of(x)
    for row in sigmoid.tolist():
        assert row == pytest.approx([0, 1, 0, 1, 0.5, 0.5, 0.5, 0.5, 0.5 + 2.5e-7], abs=EACH)
    assert tanh[:6].tolist() == [-1, 1, -1, 1, 0, 0]
    assert tanh[6:].tolist() == pytest.approx(x[6:], rel=5e-7, abs=0.0)


# Wide enough for vector code and for what is left over behind it.
WIDTH = 39


@pytest.mark.parametrize("clip", [None, CLIP])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gate", range(5))
def test_a_nan_goes_through_and_stays_in_its_column(
    path: str, gate: int, dtype: torch.dtype, clip: float | None
) -> None:
    gates, cell = torch.zeros(2, 4 * WIDTH), torch.ones(2, WIDTH)
    columns = [3, 20, 38]
    if gate < 4:
        gates[1, [gate * WIDTH + column for column in columns]] = NAN
    else:
        # All bits set: rounding up would carry into the sign.
        cell.view(torch.int32)[1, columns] = 0x7FFFFFFF
    expected = torch.zeros(2, WIDTH, dtype=torch.bool)
    expected[1, columns] = True
    squashed = torch.empty(2, WIDTH, dtype=dtype)
    # The output gate comes after the cell.
    expected_cell = expected if gate != 3 else torch.zeros_like(expected)
    cell_step.infer(gates.to(dtype), cell, squashed, clip)
    assert torch.equal(cell.isnan(), expected_cell)
    assert torch.equal(squashed.isnan(), expected)


def test_a_nan_in_a_gradient_goes_through(path: str) -> None:
    ones = torch.ones(1, WIDTH)
    d_squashed, d_cell = ones.clone(), ones.clone()
    d_squashed[0, 4] = NAN
    d_gates = torch.empty(1, 4 * WIDTH)
    cell_step.backward(ones.repeat(1, 4) / 2, ones, ones, d_squashed, d_cell, d_gates, CLIP)
    wanted = torch.arange(WIDTH)[None] == 4
    assert torch.equal(d_cell.isnan(), wanted)
    assert torch.equal(d_gates.isnan(), wanted.repeat(1, 4))


@pytest.mark.parametrize("function", ["infer", "forward"])
def test_a_cell_stops_at_its_clip(path: str, function: str) -> None:
    before = torch.tensor([[-50.0, -3.001, -1.0, 0.0, 2.5, 3.0, 3.001, INF]])
    gates = torch.zeros(1, 32)
    gates[:, 16:24] = 100.0  # forget nothing; j = 0 adds nothing
    squashed = torch.empty(1, 8)
    if function == "infer":
        cell = before.clone()
        cell_step.infer(gates, cell, squashed, CLIP)
    else:
        cell = torch.empty(1, 8)
        cell_step.forward(gates, before, cell, squashed, CLIP)
    assert cell.tolist() == [[-3.0, -3.0, -1.0, 0.0, 2.5, 3.0, 3.0, 3.0]]


@pytest.mark.parametrize("clip", [None, CLIP])
def test_a_cell_at_its_clip_passes_no_gradient(path: str, clip: float | None) -> None:
    cell = torch.tensor([[-3.0, -2.9999, 0.0, 2.9999, 3.0, 4.0, INF]])
    ones = torch.ones_like(cell)
    d_cell, d_gates = ones.clone(), torch.empty(1, 28)
    cell_step.backward(ones.repeat(1, 4) / 2, ones, cell, torch.zeros_like(cell), d_cell, d_gates, clip)
    passes = torch.ones(1, 7) if clip is None else torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]])
    assert torch.equal(d_cell, passes / 2)
    i, j, f, o = d_gates.chunk(4, dim=1)
    assert torch.equal(i, passes / 8)  # d j i (1 - i)
    assert torch.equal(j, passes * 3 / 8)  # d i (1 - j^2)
    assert torch.equal(f, passes / 4)  # d before f (1 - f)
    assert torch.equal(o, torch.zeros(1, 7))


def test_c_may_be_written_over_the_one_before(path: str) -> None:
    gates = torch.linspace(-4.0, 4.0, 4 * WIDTH)[None].repeat(3, 1)
    before = torch.linspace(-2.0, 2.0, WIDTH)[None].repeat(3, 1)
    exact, _ = formula(gates.double(), before.double(), CLIP)
    cell_step.forward(gates, before, before, torch.empty_like(before), CLIP)
    assert within(before, exact, STEP * 3)


@each_path
@given(case=cases())
def test_bfloat16_rounds_what_float32_gives(path: str, case: Case) -> None:
    low = case.gates.bfloat16()
    cell, wanted_cell = case.before.clone(), case.before.clone()
    squashed, wanted = strided(case.before).bfloat16(), torch.empty_like(case.before)
    cell_step.infer(low.clone(), cell, squashed, case.clip)
    cell_step.infer(low.float(), wanted_cell, wanted, case.clip)
    assert torch.equal(cell, wanted_cell)
    assert torch.equal(squashed, wanted.bfloat16())


def test_bfloat16_rounds_to_nearest_and_ties_to_even(path: str) -> None:
    # m is c where both gates are open and c is tiny: any bits can be made to go through.
    upper = torch.arange(0x2C00, 0x3000, dtype=torch.int32) << 16
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    bits = (upper[:, None] + lower).flatten()
    cell = torch.cat([bits.view(torch.float32), -bits.view(torch.float32)])[None]
    assert float(cell.abs().max()) < 1e-8
    gates = torch.zeros(1, 4 * cell.shape[1], dtype=torch.bfloat16)
    gates[:, 2 * cell.shape[1] :] = 100.0
    squashed = torch.empty_like(cell, dtype=torch.bfloat16)
    cell_step.infer(gates, cell, squashed, CLIP)
    assert torch.equal(squashed, cell.bfloat16())


def test_bfloat16_compiled_is_torchs_path(extension: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = torch.linspace(-9.0, 9.0, 4 * 6000).view(60, 400).bfloat16()
    before = torch.linspace(-3.0, 3.0, 6000).view(60, 100)
    results = []
    for found in (extension, None):
        monkeypatch.setattr(cell_step, "_extension", lambda found=found: found)
        cell, squashed = before.clone(), torch.empty(60, 100, dtype=torch.bfloat16)
        cell_step.infer(gates.clone(), cell, squashed, CLIP)
        results.append((cell, squashed))
    assert within(results[0][0], results[1][0].double(), 2e-6)
    # Where both lie on the two sides of a rounding step, one of them is a step further.
    apart = (results[0][1].double() - results[1][1].double()).abs()
    assert float(apart.max()) <= 2**-8
    assert float((apart > 0).double().mean()) < 1e-3


def operands(function: str, rows: int, size: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    widths = {"infer": (4, 1, 1), "forward": (4, 1, 1, 1), "backward": (4, 1, 1, 1, 1, 4)}[function]
    generator = torch.Generator().manual_seed(rows + size)
    return [torch.rand(rows, width * size, generator=generator).to(dtype) for width in widths]


FUNCTIONS = ["infer", "forward", "backward"]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_the_extension_cannot_run_is_left_untouched_for_torch(extension: ModuleType, function: str) -> None:
    call = getattr(extension, function)
    assert call(1, CLIP, *operands(function, 3, 8)) is True
    bad = [
        operands(function, 3, 8, torch.float64),
        operands(function, 3, 8, torch.float16),
        [x.to("meta") for x in operands(function, 3, 8)],
    ]
    for number in range(len(operands(function, 3, 8))):
        shapes: list[Any] = [
            lambda x: x.t().contiguous().t(),  # columns apart
            lambda x: x[:2],
            lambda x: x[:, 1:],
            lambda x: x[0],
            lambda x: x[None],
            lambda x: x.double(),
        ]
        for change in shapes:
            tensors = operands(function, 3, 8)
            tensors[number] = change(tensors[number])
            bad.append(tensors)
    for tensors in bad:
        kept = [x.clone() for x in tensors]
        assert call(1, CLIP, *tensors) is False
        assert all(torch.equal(x, y) for x, y in zip(tensors, kept, strict=True) if x.device.type == "cpu")


def test_what_the_extension_cannot_run_torch_does() -> None:
    gates, before = torch.randn(8, 3, dtype=torch.float64).t(), torch.randn(3, 2, dtype=torch.float64)
    exact, exact_squashed = formula(gates, before, CLIP)
    cell, squashed = before.clone(), torch.empty_like(before)
    cell_step.infer(gates.clone(), cell, squashed, CLIP)
    assert within(cell, exact, 1e-15)
    assert within(squashed, exact_squashed, 1e-15)
    columns_apart = gates.float()
    assert columns_apart.stride(1) != 1
    low = before.float()
    cell_step.infer(columns_apart, low, torch.empty_like(low), CLIP)
    assert within(low, exact, 1e-6)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_extension_says_what_it_was_given_wrongly(extension: ModuleType, function: str) -> None:
    call = getattr(extension, function)
    tensors = operands(function, 1, 1)
    with pytest.raises(TypeError, match=f"expected {len(tensors) + 2} arguments, not {len(tensors) + 1}"):
        call(1, CLIP, *tensors[1:])
    with pytest.raises(TypeError):
        call("1", CLIP, *tensors)
    with pytest.raises(TypeError):
        call(1, "3", *tensors)
    with pytest.raises(AttributeError):
        call(1, CLIP, *tensors[:-1], "x")
    with pytest.raises(ValueError, match="'sse9' is none of"):
        extension.use("sse9")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_rows_are_no_work(path: str, function: str) -> None:
    tensors = operands(function, 0, 8)
    getattr(cell_step, function)(*tensors, CLIP)
    assert all(x.shape[0] == 0 for x in tensors)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("rows", "size"), [(300, 301), (1, 70_001), (37, 4096)])
def test_results_do_not_depend_on_the_number_of_threads(
    extension: ModuleType, function: str, rows: int, size: int
) -> None:
    if not extension.has_threads():
        pytest.skip("torch has no OpenMP library here that the extension could share")
    one = operands(function, rows, size)
    for threads in (2, 3):
        others = operands(function, rows, size)
        getattr(extension, function)(threads, CLIP, *others)
        if threads == 2:
            getattr(extension, function)(1, CLIP, *one)
        assert all(map(torch.equal, one, others))


def run_python(program: str, **environment: str) -> str:
    """What a fresh process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
BUSY = """
import os, signal, torch
from spacy_elmo.bilm import cell
extension = cell._extension()
gates, c, m = torch.zeros(64, 4096), torch.ones(64, 1024), torch.empty(64, 1024)
def work(threads):
    c[:, :9] = 1.0  # torch's own operators run on one thread, so small they are
    assert extension.infer(threads, None, gates, c, m)
    assert (c[:, :9] == 0.5).all()
"""


@LINUX
def test_threads_are_torchs_own(extension: ModuleType) -> None:
    # libgomp or its like is mapped once, and the pool that torch opened gets no further thread.
    program = (
        BUSY
        + """
torch.set_num_threads(2)
torch.rand(1000, 1000).exp_()
before = len(os.listdir("/proc/self/task"))
for _ in range(50):
    work(2)
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "omp" in os.path.basename(line.split()[-1])}
print(before > 1, len(os.listdir("/proc/self/task")) - before, len(libraries))
"""
    )
    assert extension.has_threads()
    assert run_python(program) == "True 0 1"


@LINUX
def test_one_thread_starts_none(extension: ModuleType) -> None:
    program = (
        BUSY
        + """
torch.set_num_threads(1)
counts = []
for threads in (1, 2):
    work(threads)
    counts.append(len(os.listdir("/proc/self/task")))
print(counts[1] - counts[0])
"""
    )
    # The second count shows that the first would have seen a thread.
    assert run_python(program) == "1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_from_a_process_with_threads_goes_on(extension: ModuleType) -> None:
    program = (
        BUSY
        + """
torch.set_num_threads(2)
work(2)
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that hangs
    work(2)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
work(2)
"""
    )
    assert run_python(program) == "7"


def test_other_threads_run_meanwhile(extension: ModuleType) -> None:
    # Rows that lie on each other: a long call that needs little memory.
    tensors = [x.expand(40_000, -1) for x in operands("infer", 1, 1024)]
    spans, ticks = [], []

    def work() -> None:
        for _ in range(5):
            start = time.perf_counter()
            extension.infer(1, CLIP, *tensors)
            spans.append((start, time.perf_counter()))

    interval = sys.getswitchinterval()
    # What this thread does while the other one waits to go on counts for nothing: keep it short.
    sys.setswitchinterval(1e-6)
    try:
        worker = threading.Thread(target=work)
        worker.start()
        while worker.is_alive():
            ticks.append(time.perf_counter())
        worker.join()
    finally:
        sys.setswitchinterval(interval)
    middles = [(start + (end - start) / 4, end - (end - start) / 4) for start, end in spans]
    assert sum(any(start < tick < end for tick in ticks) for start, end in middles) >= 3


@pytest.mark.parametrize("prepare", ["", "sys.modules['spacy_elmo.bilm._cell'] = None"])
def test_without_the_extension_torch_does_everything(prepare: str) -> None:
    program = f"""
import sys, torch
{prepare}
from spacy_elmo.bilm import cell
c, m = torch.ones(2, 3), torch.empty(2, 3)
cell.infer(torch.zeros(2, 12), c, m, None)
print(cell.compiled(), sys.modules.get("spacy_elmo.bilm._cell"), c.tolist()[0])
"""
    environment = {} if prepare else {"SPACY_ELMO_COMPILED": "0"}
    assert run_python(program, **environment) == "False None [0.5, 0.5, 0.5]"


def test_the_extension_is_loaded_at_first_use(extension: ModuleType) -> None:
    program = """
import sys
import spacy
nlp = spacy.blank("en")
nlp.add_pipe("elmo")
from spacy_elmo.bilm import cell
loaded = ["spacy_elmo.bilm._cell" in sys.modules]
print(*loaded, cell.compiled(), "spacy_elmo.bilm._cell" in sys.modules)
"""
    assert run_python(program, SPACY_ELMO_COMPILED="1") == "False True True"


def test_kernels_start_on_the_gpu_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton starts them on the current one, wherever the tensors are."""
    current, seen = [0], []

    @contextmanager
    def device(gpu: int) -> Iterator[None]:
        current.append(gpu)
        yield
        current.pop()

    def kernel(*arguments: object) -> None:
        seen.append(current[-1])

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(cell_step, "_on_gpu", lambda gates: SimpleNamespace(forward=kernel, backward=kernel))
    gates: Any = SimpleNamespace(get_device=lambda: 1)
    ones = torch.ones(1, 1)
    cell_step.forward(gates, ones, ones, ones, CLIP)
    cell_step.backward(gates, ones, ones, ones, ones, ones, CLIP)
    assert (current, seen) == ([0], [1, 1])


def test_compiled_says_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cell_step.compiled() == (cell_step._extension() is not None)
    monkeypatch.setattr(cell_step, "_extension", lambda: None)
    assert cell_step.compiled() is False


def test_there_is_code_for_what_this_processor_has(extension: ModuleType) -> None:
    names = extension.instruction_sets()
    assert names == ["baseline", "avx2", "avx512"][: len(names)]
    if platform.machine() in ("x86_64", "AMD64"):
        # torch asks the processor too.
        least = {"AVX2": 2, "AVX512": 3}.get(torch.backends.cpu.get_cpu_capability(), 1)
        assert len(names) >= least


def test_each_instruction_set_runs_code_of_its_own(extension: ModuleType) -> None:
    if len(extension.instruction_sets()) < 2:
        pytest.skip("there is code for one instruction set here")
    results = []
    for name in ("baseline", "avx2"):
        extension.use(name)
        tensors = operands("infer", 100, 100)
        extension.infer(1, CLIP, *tensors)
        results.append(tensors[1])
    # Products and sums rounded once (FMA) or twice.
    assert not torch.equal(results[0], results[1])
    assert within(results[0], results[1].double(), STEP)
