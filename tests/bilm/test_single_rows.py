"""A row by itself: the extension's loop over all its steps, against the cell's formula in float64."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm import cell as cell_step
from spacy_elmo.bilm import stacks as stacks_module
from spacy_elmo.bilm.model import BiLM

from .twins import make_bilm

Clips = tuple[float | None, float | None]
CLIPS: list[Clips] = [(None, None), (0.6, None), (None, 0.5), (0.6, 0.5)]
# (H, P): rows of odd sizes, one that two threads share, and no projection.
SIZES = [(7, 5), (33, 16), (300, 70), (40, 40)]
SENTENCES = [["a"], ["The", "cat", "sat"], [f"w{i % 50}" for i in range(600)]]


@pytest.fixture
def extension() -> Iterator[ModuleType]:
    found = cell_step._extension()
    if found is None:
        pytest.skip("spacy_elmo.bilm._cell was not built, or SPACY_ELMO_COMPILED=0")
    threads = torch.get_num_threads()
    yield found
    found.use(found.instruction_sets()[-1])
    torch.set_num_threads(threads)


class Row:
    """Operands of a row of T steps."""

    def __init__(self, steps: int, size: int, width: int, dtype: torch.dtype, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        drawn = [
            torch.randn(shape, generator=generator) * scale
            for shape, scale in (
                ((steps, 4 * size + 3), 1.0),
                ((width, 4 * size + 5), 1.5 * width**-0.5),
                ((size, width), 3.0 * size**-0.5),
                ((1, width), 0.3),
                ((1, size), 0.3),
            )
        ]
        # Views into wider matrices: only columns need to lie side by side.
        self.inputs, self.recurrent = drawn[0][:, : 4 * size], drawn[1][:, 5:].to(dtype)
        self.projection = None if size == width else drawn[2].to(dtype)
        self.hidden, self.cell = drawn[3], drawn[4]
        self.outputs = torch.full((steps, width + 2), 7.0)[:, :width]

    def run(self, clips: Clips) -> bool:
        tensors = (self.inputs, self.recurrent, self.projection, self.hidden, self.cell, self.outputs)
        return cell_step.run_row(*tensors, clips)

    def expected(self, clips: Clips) -> tuple[Tensor, Tensor]:
        """Outputs and the last cell, in float64."""
        h, c = self.hidden.double(), self.cell.double()
        outputs = []
        for step in self.inputs.double():
            i, j, f, o = (step + h @ self.recurrent.double()).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * j.tanh()
            c = c if clips[0] is None else c.clamp(-clips[0], clips[0])
            h = o.sigmoid() * c.tanh()
            h = h if self.projection is None else h @ self.projection.double()
            h = h if clips[1] is None else h.clamp(-clips[1], clips[1])
            outputs.append(h)
        return torch.cat(outputs) if outputs else h[:0], c


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(
    steps=st.integers(1, 9),
    sizes=st.sampled_from(SIZES),
    clips=st.sampled_from(CLIPS),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=20)
def test_all_steps_of_a_row(
    threads: int, dtype: torch.dtype, steps: int, sizes: tuple[int, int], clips: Clips, seed: int
) -> None:
    found = cell_step._extension()
    if found is None:
        pytest.skip("spacy_elmo.bilm._cell was not built, or SPACY_ELMO_COMPILED=0")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for name in found.instruction_sets():
            found.use(name)
            row = Row(steps, *sizes, dtype, seed)
            # Without a projection nothing is clipped after it: LSTMLayer's proj_clip is None then.
            clips = (clips[0], None) if row.projection is None else clips
            outputs, cell = row.expected(clips)
            assert row.run(clips)
            torch.testing.assert_close(row.outputs.double(), outputs, rtol=0, atol=1e-5)
            torch.testing.assert_close(row.cell.double(), cell, rtol=0, atol=1e-5)
            assert torch.equal(row.hidden[0], row.outputs[-1])
    finally:
        torch.set_num_threads(before)


def test_clips_were_hit() -> None:
    outputs, cell = Row(9, 300, 70, torch.float32).expected((0.6, 0.5))
    assert (cell.abs() == 0.6).any()
    assert (outputs.abs() == 0.5).any()


def refused(row: Row) -> None:
    kept = row.outputs.clone(), row.hidden.clone(), row.cell.clone()
    assert not row.run((None, None))
    assert all(torch.equal(a, b) for a, b in zip((row.outputs, row.hidden, row.cell), kept, strict=True))


def test_what_it_cannot_run_is_left_alone(extension: ModuleType) -> None:
    for name, change in {
        "inputs": lambda t: t.double(),
        "recurrent": lambda t: t.t().contiguous().t(),
        "projection": lambda t: t.bfloat16(),
        "hidden": lambda t: t[:, :-1],
        "cell": lambda t: t.repeat(2, 1),
        "outputs": lambda t: t[1:],
    }.items():
        row = Row(4, 33, 16, torch.float32)
        setattr(row, name, change(getattr(row, name)))
        refused(row)
    row = Row(4, 33, 16, torch.float32)
    row.projection = None  # then H and P would have to be the same
    refused(row)


def test_nan_goes_through(extension: ModuleType) -> None:
    row = Row(3, 33, 16, torch.float32)
    row.inputs[1, 2] = float("nan")
    assert row.run((3.0, 3.0))
    assert row.outputs[0].isfinite().all()
    assert row.outputs[1].isnan().all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"lstm_dim": 5}, {"n_layers": 3, "use_skip_connections": False}])
def test_a_sentence_alone_is_as_without_the_extension(
    extension: ModuleType, monkeypatch: pytest.MonkeyPatch, precision: str, options: dict[str, Any]
) -> None:
    bilm = make_bilm(3, **options)
    with_it = [bilm.encode([sentence], precision=precision)[0] for sentence in SENTENCES]  # type: ignore[arg-type]
    monkeypatch.setattr(cell_step, "_extension", lambda: None)
    for sentence, layers in zip(SENTENCES, with_it, strict=True):
        (expected,) = bilm.encode([sentence], precision=precision)  # type: ignore[arg-type]
        tolerance = 1e-5 if precision == "float32" else 0.15
        torch.testing.assert_close(layers, expected, rtol=0, atol=tolerance)


def test_large_rounded_matrices_are_not_kept_twice() -> None:
    bilm = make_bilm(1)
    assert stacks_module.CPUStacks(bilm, "bfloat16").directions[0][0].alone is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacks_module, "SMALL_MATRIX", 10)
        assert stacks_module.CPUStacks(bilm, "bfloat16").directions[0][0].alone is None
        exact = stacks_module.CPUStacks(bilm, "float32").directions[0][0].alone
    kernel = next(bilm.forward_lstm.layers[0].parameters())
    assert exact is not None
    assert exact[0].untyped_storage().data_ptr() == kernel.untyped_storage().data_ptr()


def test_from_several_threads_at_once(extension: ModuleType) -> None:
    bilm = BiLM(make_bilm(1).config).initialize(1)
    expected = [bilm.encode([sentence])[0] for sentence in SENTENCES]
    torch.set_num_threads(2)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(5):
            for sentence, layers in zip(SENTENCES, expected, strict=True):
                if not torch.allclose(bilm.encode([sentence])[0], layers, rtol=0, atol=1e-5):
                    wrong.append(len(sentence))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_runs_on_one_thread(extension: ModuleType) -> None:
    torch.set_num_threads(2)
    row = Row(4, 300, 70, torch.float32)
    assert row.run((3.0, 3.0))
    again, wanted = Row(4, 300, 70, torch.float32), row.outputs.numpy()
    child = os.fork()
    if child == 0:
        # Nothing of torch's that could want its threads, which a child does not have.
        done = again.run((3.0, 3.0)) and np.allclose(again.outputs.numpy(), wanted, rtol=0, atol=1e-5)
        os._exit(0 if done else 1)
    assert os.waitpid(child, 0)[1] == 0
