from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm import stacks as stacks_module
from spacy_elmo.bilm.matmul import ROWS, Matmul
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.stacks import CPUStacks, make_stacks

from .twins import make_bilm, make_word_bilm

SIZES = [(7, 5), (5, 5)]  # with and without a projection
CLIPS = [(None, None), (0.6, None), (None, 0.5), (0.6, 0.5)]
LENGTHS = st.lists(st.integers(1, 8), min_size=1, max_size=6).map(lambda lengths: sorted(lengths, reverse=True))


def bilm_of(size: tuple[int, int], clips: tuple[float | None, float | None], **options: Any) -> BiLM:
    return make_word_bilm(
        3, lstm_dim=size[0], projection_dim=size[1], cell_clip=clips[0], proj_clip=clips[1], **options
    ).double()


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sizes_of(lengths: list[int]) -> list[int]:
    """How many rows, in descending order of length, reach each step."""
    return [sum(length > step for length in lengths) for step in range(lengths[0])]


def packed(rows: list[Tensor], lengths: list[int]) -> Tensor:
    return torch.stack([rows[row][step] for step, active in enumerate(sizes_of(lengths)) for row in range(active)])


def check(bilm: BiLM, lengths: list[int], n_types: int) -> None:
    """Rows that run together, as each alone through the differentiable stacks."""
    table = normal(n_types, bilm.config.projection_dim, seed=1)
    generator = torch.Generator().manual_seed(2)
    rows = [[torch.randint(n_types, (n,), generator=generator) for n in lengths] for _ in range(2)]
    layers, count = bilm.config.n_layers, len(lengths)
    hidden = normal(2, layers, count, bilm.config.projection_dim, seed=3) * 0.3
    cell = normal(2, layers, count, bilm.config.lstm_dim, seed=4) * 0.3
    first = hidden.clone(), cell.clone()
    types = torch.stack([packed(rows[direction], lengths) for direction in range(2)])
    before = table.clone()
    sizes = sizes_of(lengths)
    with torch.no_grad():
        found = make_stacks(bilm, "float32").run(table, types, sizes, hidden, cell)
    assert torch.equal(table, before)
    assert [layer.shape for layer in found] == [(2, sum(lengths), bilm.config.projection_dim)] * layers
    for direction, stack in enumerate((bilm.forward_lstm, bilm.backward_lstm)):
        for row, index in enumerate(rows[direction]):
            with torch.no_grad():
                start = [tensor[direction, :, row : row + 1] for tensor in first]
                expected, last_hidden, last_cell = stack(table[index][:, None], *start)
            places = [sum(sizes[:step]) + row for step in range(len(index))]
            for layer, reference in zip(found, expected, strict=True):
                torch.testing.assert_close(layer[direction][places], reference[:, 0], rtol=0, atol=1e-12)
            # The state of a row that ended is the one after its last step, whatever the others did since.
            torch.testing.assert_close(hidden[direction, :, row], last_hidden[:, 0], rtol=0, atol=1e-12)
            torch.testing.assert_close(cell[direction, :, row], last_cell[:, 0], rtol=0, atol=1e-12)


@given(lengths=LENGTHS, size=st.sampled_from(SIZES), clips=st.sampled_from(CLIPS), n_layers=st.integers(1, 3))
@settings(deadline=None, max_examples=30)
def test_rows_that_end_one_after_another_run_as_each_alone(
    lengths: list[int], size: tuple[int, int], clips: tuple[float | None, float | None], n_layers: int
) -> None:
    check(bilm_of(size, clips, n_layers=n_layers), lengths, n_types=9)


@pytest.mark.parametrize("n_types", [3, 1000])  # products once a type, and once a step
@pytest.mark.parametrize("rows_per_product", [1, 4, 7, 256])
def test_however_the_input_products_are_cut(
    monkeypatch: pytest.MonkeyPatch, n_types: int, rows_per_product: int
) -> None:
    monkeypatch.setattr(stacks_module, "ROWS_PER_PRODUCT", rows_per_product)
    check(bilm_of((7, 5), (0.6, 0.5)), [9, 6, 6, 2, 1], n_types)


def test_without_skip_connections() -> None:
    check(bilm_of((7, 5), (0.6, 0.5), use_skip_connections=False, n_layers=3), [4, 3], 9)


def test_products_are_made_once_a_type_where_words_repeat() -> None:
    table = normal(400, 4, seed=0)
    types = torch.tensor([3, 5] * 200)
    inputs, index = stacks_module._first_inputs(table, types, share=True)
    assert torch.equal(inputs[:2], table[[3, 5]])
    assert index is not None
    assert torch.equal(inputs[index[:400]], table[types])
    distinct = torch.arange(399)
    inputs, index = stacks_module._first_inputs(table, distinct, share=True)
    assert torch.equal(inputs[:399], table[distinct])
    assert index is None


def test_products_have_few_numbers_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[int] = set()
    multiply, add = Matmul.__call__, Matmul.add

    def watched(product: Matmul, x: Tensor) -> Tensor:
        seen.add(len(x))
        return multiply(product, x)

    def watched_sum(product: Matmul, other: Tensor, x: Tensor) -> Tensor:
        seen.add(len(x))
        return add(product, other, x)

    monkeypatch.setattr(Matmul, "__call__", watched)
    monkeypatch.setattr(Matmul, "add", watched_sum)
    draw = random.Random(0)
    bilm = make_bilm(1)
    for _ in range(60):
        bilm.encode(
            [[f"w{draw.randrange(999)}" for _ in range(draw.randrange(30))] for _ in range(draw.randrange(140))]
        )
    allowed = set(ROWS)
    assert len(allowed) < 40
    assert seen <= allowed
    assert len(seen) > 20


def test_a_row_that_has_ended_keeps_its_state_to_the_bit() -> None:
    bilm = bilm_of((7, 5), (0.6, 0.5))
    table, stacks = normal(6, 5, seed=0), CPUStacks(bilm, "float32")
    hidden, cell = torch.zeros(2, 2, 3, 5).double(), torch.zeros(2, 2, 3, 7).double()
    stacks.run(table, torch.arange(6).repeat(2, 1), [3, 3], hidden, cell)
    frozen = hidden.clone(), cell.clone()
    stacks.run(table, torch.arange(3).repeat(2, 1), [1, 1, 1], hidden, cell)
    for tensor, copy in zip((hidden, cell), frozen, strict=True):
        assert torch.equal(tensor[:, :, 1:], copy[:, :, 1:])
        assert not torch.equal(tensor[:, :, :1], copy[:, :, :1])


def test_the_gates_of_a_window_have_a_bound() -> None:
    small, large = bilm_of((7, 5), (None, None)), make_word_bilm(lstm_dim=4096, projection_dim=4)
    assert CPUStacks(small, "float32").steps == 8192
    assert CPUStacks(large, "float32").steps * 4 * 4096 * 4 == stacks_module.GATE_BYTES
