from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm import encode
from spacy_elmo.bilm.encode import batches_by_length, unique_words
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.errors import ElmoError

from ..reference.numpy_bilm import NumpyBiLM
from .twins import VOCABULARY, make_bilm, make_word_bilm, numpy_twin

TOLERANCE = 1e-5
WINDOWS = [1, 3, 7, 512]
SENTENCES: list[list[str]] = [
    ["The", "cat", "sat", "on", "the", "mat", "."],
    [],
    ["", "a", "", "Z"],
    ["no"] * 11,
    ["<S>", "said", "</S>", "<UNK>"],
    ["naïve", "日本語", "x" * 60, "\ud800"],
    ["one"],
]
WORDS = st.text(max_size=4) | st.sampled_from(["The", "cat", "no", "x" * 60, "<S>"])
ANY_SENTENCES = st.lists(st.lists(WORDS, max_size=9), max_size=8)
CONFIGS: dict[str, dict[str, Any]] = {
    "two layers": {},
    "one layer": {"n_layers": 1},
    "three layers without skips": {"n_layers": 3, "use_skip_connections": False},
    "no recurrent projection": {"lstm_dim": 5},
    "no clips": {"cell_clip": None, "proj_clip": None},
}


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    return make_bilm(1)


def assert_layers(found: list[Tensor], expected: list[Any], tolerance: float = TOLERANCE) -> None:
    assert len(found) == len(expected)
    for tensor, reference in zip(found, expected, strict=True):
        assert tuple(tensor.shape) == tuple(reference.shape)
        np.testing.assert_allclose(tensor.double().numpy(), np.asarray(reference, float), rtol=0, atol=tolerance)


@pytest.mark.parametrize("max_length", WINDOWS)
@pytest.mark.parametrize("name", list(CONFIGS))
def test_reference(name: str, max_length: int) -> None:
    bilm = make_bilm(2, **CONFIGS[name])
    twin = numpy_twin(bilm)
    expected = twin.encode(SENTENCES)
    assert (twin.clip_hits["cell"] > 0) == (bilm.config.cell_clip is not None)
    assert (twin.clip_hits["proj"] > 0) == (bilm.config.proj_clip is not None and bilm.config.has_projection)
    found = bilm.encode(SENTENCES, max_length=max_length)
    assert all(layers.dtype == torch.float32 for layers in found)
    assert_layers(found, expected)
    assert_layers(bilm.double().encode(SENTENCES, max_length=max_length), expected, 1e-12)


@given(sentences=ANY_SENTENCES)
@settings(deadline=None, max_examples=25)
def test_reference_on_any_sentences(bilm: BiLM, sentences: list[list[str]]) -> None:
    assert_layers(bilm.encode(sentences), numpy_twin(bilm).encode(sentences))


@given(sentences=ANY_SENTENCES, data=st.data(), size=st.integers(1, 9), state=st.sampled_from(["zero", "warm"]))
@settings(deadline=None, max_examples=25)
def test_neighbours_order_and_batch_size_do_not_matter(
    sentences: list[list[str]], data: st.DataObject, size: int, state: Any
) -> None:
    bilm = warm_bilm()
    expected = [bilm.encode([sentence], state)[0] for sentence in sentences]
    assert_layers(bilm.encode(sentences, state), expected)
    order = data.draw(st.permutations(range(len(sentences))))
    found: list[Tensor] = []
    for begin in range(0, len(order), size):
        found += bilm.encode([sentences[i] for i in order[begin : begin + size]], state)
    assert_layers(found, [expected[i] for i in order])


def test_more_sentences_than_run_together(bilm: BiLM) -> None:
    draw = np.random.default_rng(0)
    many = [[f"w{draw.integers(40)}" for _ in range(draw.integers(0, 6))] for _ in range(2 * encode.ROWS_PER_BATCH + 9)]
    found = bilm.encode(many)
    for index in [*range(0, len(many), 20), len(many) - 1]:
        assert_layers([found[index]], bilm.encode([many[index]]))


def test_a_call_gives_the_same_bits_again(bilm: BiLM) -> None:
    for first, second in zip(bilm.encode(SENTENCES), bilm.encode(SENTENCES), strict=True):
        assert torch.equal(first, second)


def test_duplicates_get_the_same_vectors_in_memory_of_their_own(bilm: BiLM) -> None:
    sentence = ["The", "cat", "."]
    found = bilm.encode([sentence, ["other"], list(sentence), sentence])
    assert_layers([found[2], found[3]], [found[0], found[0]])
    found[0].zero_()
    assert found[2].abs().max() > 0


def test_the_callers_lists_are_left_alone(bilm: BiLM) -> None:
    sentences = [list(sentence) for sentence in SENTENCES]
    bilm.encode(sentences)
    assert sentences == SENTENCES


def test_sentences_may_be_any_sequences(bilm: BiLM) -> None:
    assert_layers(bilm.encode(tuple(tuple(s) for s in SENTENCES)), bilm.encode(SENTENCES))


EMPTY: list[list[list[str]]] = [[[]], [[], []], [[], ["a"], []]]


def test_empty_sentences(bilm: BiLM) -> None:
    for state in ("zero", "carry"):
        assert bilm.encode([], state) == []
        for sentences in EMPTY:
            found = bilm.encode(sentences, state)
            assert [tuple(layers.shape) for layers in found] == [(3, len(sentence), 10) for sentence in sentences]
            assert all(layers.dtype == torch.float32 for layers in found)
    bilm.reset_state()


def test_an_empty_word_is_a_word(bilm: BiLM) -> None:
    (found,) = bilm.encode([["", ""]])
    assert found.shape == (3, 2, 10)
    assert found.abs().max() > 0


def test_layer_0_is_the_token_vector_twice(bilm: BiLM) -> None:
    words = ["The", "cat", "日本語"]
    (layers,) = bilm.encode([words])
    with torch.no_grad():
        tokens = bilm.token_encoder(bilm.token_ids(words))
    torch.testing.assert_close(layers[0], torch.cat([tokens, tokens], dim=1), rtol=0, atol=1e-6)


# Windows


@given(sentences=ANY_SENTENCES, max_length=st.integers(1, 12), steps=st.sampled_from([1, 8, 1024]))
@settings(deadline=None, max_examples=25)
def test_windows_change_nothing(bilm: BiLM, sentences: list[list[str]], max_length: int, steps: int) -> None:
    expected = bilm.encode(sentences)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bilm.runtime().packed["float32"].stacks, "steps", steps)
        assert_layers(bilm.encode(sentences, max_length=max_length), expected)


@pytest.mark.parametrize(("max_length", "held"), [(1, 1024), (3, 1024), (512, 1024), (512, 12), (2, 12), (512, 1)])
def test_no_more_steps_run_at_once_than_was_asked_for(
    bilm: BiLM, monkeypatch: pytest.MonkeyPatch, max_length: int, held: int
) -> None:
    bilm.encode(SENTENCES)
    stacks = bilm.runtime().packed["float32"].stacks
    windows: list[list[int]] = []
    run = stacks.run

    def watched(table: Tensor, types: Tensor, batch_sizes: list[int], *state: Tensor) -> list[Tensor]:
        windows.append(batch_sizes)
        return run(table, types, batch_sizes, *state)

    monkeypatch.setattr(stacks, "steps", held)
    monkeypatch.setattr(stacks, "run", watched)
    bilm.encode(SENTENCES, max_length=max_length)
    longest = max(map(len, SENTENCES)) + 2
    assert max(map(len, windows)) == max(1, min(max_length, longest, held // windows[0][0]))
    assert all(sum(sizes) <= held or len(sizes) == 1 for sizes in windows)


def test_windows_of_a_long_sentence() -> None:
    bilm = make_bilm(3)
    long = [f"w{i % 37}" for i in range(700)]
    expected = numpy_twin(bilm).encode([long])
    for max_length in (7, 512, 100_000):
        assert_layers(bilm.encode([long, ["short", "one"]], max_length=max_length)[:1], expected)


@pytest.mark.parametrize("max_length", WINDOWS)
def test_windows_of_carried_calls(max_length: int) -> None:
    bilm = make_bilm(4)
    batches = [SENTENCES[:3], SENTENCES[3:], SENTENCES[1:3]]
    expected = numpy_twin(bilm).encode_carried(batches)
    for batch, layers in zip(batches, expected, strict=True):
        assert_layers(bilm.encode(batch, "carry", max_length=max_length), layers)


# out


@pytest.mark.parametrize("sentences", [SENTENCES, SENTENCES[:1], SENTENCES[1:2], SENTENCES[:2]])
@pytest.mark.parametrize("state", ["zero", "carry"])
def test_results_are_written_into_views_of_any_strides(bilm: BiLM, sentences: list[list[str]], state: Any) -> None:
    bilm.reset_state()
    expected = bilm.encode(sentences, state)
    bilm.reset_state()
    n = sum(map(len, sentences))
    # As a Doc stores them: tokens first, and between columns and rows that belong to somebody else.
    buffer = torch.full((n + 2, 3, 14), 7.0)
    views, begin = [], 1
    for sentence in sentences:
        views.append(buffer[begin : begin + len(sentence), :, 2:12].transpose(0, 1))
        begin += len(sentence)
    assert not any(view.is_contiguous() for view in views if view.numel())
    found = bilm.encode(sentences, state, out=views)
    assert all(result is view for result, view in zip(found, views, strict=True))
    assert_layers(views, expected, 0.0)
    outside = torch.ones(buffer.shape, dtype=torch.bool)
    outside[1 : n + 1, :, 2:12] = False
    assert (buffer[outside] == 7.0).all()
    bilm.reset_state()


def test_results_are_written_in_windows(bilm: BiLM) -> None:
    for sentences in (SENTENCES, SENTENCES[:1]):
        expected = bilm.encode(sentences)
        out = [torch.full((10, len(sentence), 3), float("nan")).permute(2, 1, 0) for sentence in sentences]
        bilm.encode(sentences, out=out, max_length=2)
        assert_layers(out, expected)


# Modes


@pytest.mark.parametrize("requires_grad", [True, False])
def test_no_gradients_whatever_the_mode(requires_grad: bool) -> None:
    bilm = make_bilm(5).requires_grad_(requires_grad)
    with torch.enable_grad():
        found = bilm.encode(SENTENCES) + bilm.encode(SENTENCES, "carry")
    assert not any(layers.requires_grad for layers in found)
    assert all(parameter.grad is None for parameter in bilm.parameters())
    assert torch.is_grad_enabled()


def test_training_mode_makes_no_difference() -> None:
    bilm = make_bilm(6)
    evaluated = bilm.eval().encode(SENTENCES)
    before = torch.get_rng_state()
    for first, second in zip(evaluated, bilm.train().encode(SENTENCES), strict=True):
        assert torch.equal(first, second)
    assert bilm.training  # and the mode is left as it was
    assert torch.equal(torch.get_rng_state(), before)


def test_the_weights_are_left_alone() -> None:
    bilm = warm_bilm()
    before = {name: tensor.clone() for name, tensor in bilm.state_dict().items()}
    for state in ("zero", "warm", "carry"):
        bilm.encode(SENTENCES, state, max_length=3)
    for name, tensor in bilm.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_changed_weights_take_effect_at_once() -> None:
    bilm = make_bilm(7)
    bilm.encode(SENTENCES)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.mul_(0.5)
    assert_layers(bilm.encode(SENTENCES), numpy_twin(bilm).encode(SENTENCES))


# Where the LSTMs start


def warm_bilm(seed: int = 8, **options: Any) -> BiLM:
    """A biLM with a start state of its own."""
    bilm = make_bilm(seed, state="warm", **options)
    generator = torch.Generator().manual_seed(seed)
    for name, buffer in bilm.named_buffers():
        assert name.startswith("start_")
        buffer.normal_(0.0, 0.4, generator=generator)
    return bilm


def warm_layers(bilm: BiLM, sentence: list[str]) -> np.ndarray:
    """The reference from the biLM's own start state."""
    twin: NumpyBiLM = numpy_twin(bilm)
    values = {name: buffer.double().numpy() for name, buffer in bilm.named_buffers()}
    for direction, name in enumerate(("forward", "backward")):
        for layer in range(bilm.config.n_layers):
            twin.state[direction, layer, 0] = (
                values[f"start_{name}_cell"][layer],
                values[f"start_{name}_hidden"][layer],
            )
    return twin.layers(sentence)


@pytest.mark.parametrize("max_length", [2, 512])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_warm_start(name: str, max_length: int) -> None:
    bilm = warm_bilm(**CONFIGS[name])
    filled = [sentence for sentence in SENTENCES if sentence]
    expected = [warm_layers(bilm, sentence) for sentence in filled]
    assert_layers(bilm.encode(filled, "warm", max_length=max_length), expected)


def test_the_policy_of_the_weights_is_the_default() -> None:
    warm, zero = warm_bilm(8), make_bilm(8)
    calls: list[tuple[BiLM, Any, Any]] = [(warm, "warm", "zero"), (zero, "zero", None)]
    for bilm, policy, other in calls:
        found = bilm.encode(SENTENCES)
        for first, second in zip(found, bilm.encode(SENTENCES, policy), strict=True):
            assert torch.equal(first, second)
        if other:
            assert (found[0] - bilm.encode(SENTENCES, other)[0]).abs().max() > 1e-2
    assert_layers(warm.encode(SENTENCES, "zero"), numpy_twin(warm).encode(SENTENCES))


def test_a_start_state_of_zeros_is_a_zero_start() -> None:
    bilm = make_bilm(9, state="warm")
    for first, second in zip(bilm.encode(SENTENCES, "warm"), bilm.encode(SENTENCES, "zero"), strict=True):
        assert torch.equal(first, second)


def test_warm_without_a_start_state_is_an_error(bilm: BiLM) -> None:
    with pytest.raises(ElmoError, match=r"no start state.*'warm'.*'zero'"):
        bilm.encode(SENTENCES, "warm")


# Carried state


@pytest.mark.parametrize("name", list(CONFIGS))
def test_carried_state_row_by_row_over_batches_of_changing_size(name: str) -> None:
    bilm = make_bilm(10, **CONFIGS[name])
    sizes = [3, 3, 1, 4, 2, 6, 1, 4]
    order = [(5 * i) % 7 for i in range(sum(sizes))]
    rows = iter(order)
    batches = [[SENTENCES[next(rows)] for _ in range(size)] for size in sizes]
    assert any(not sentence for batch in batches for sentence in batch)
    expected = numpy_twin(bilm).encode_carried(batches)
    for _ in range(2):  # the second time after a reset
        for batch, layers in zip(batches, expected, strict=True):
            assert_layers(bilm.encode(batch, "carry"), layers)
        bilm.reset_state()


@given(batches=st.lists(st.lists(st.lists(WORDS, max_size=4), max_size=4), max_size=4))
@settings(deadline=None, max_examples=20)
def test_carried_state_of_any_batches(bilm: BiLM, batches: list[list[list[str]]]) -> None:
    bilm.reset_state()
    for batch, layers in zip(batches, numpy_twin(bilm).encode_carried(batches), strict=True):
        assert_layers(bilm.encode(batch, "carry"), layers)
    bilm.reset_state()


def test_carried_state_makes_a_difference_and_a_reset_ends_it() -> None:
    bilm = make_bilm(11)
    first = bilm.encode(SENTENCES, "carry")
    second = bilm.encode(SENTENCES, "carry")
    assert (first[0] - second[0]).abs().max() > 1e-2
    bilm.reset_state()
    for before, after in zip(first, bilm.encode(SENTENCES, "carry"), strict=True):
        assert torch.equal(before, after)


def test_an_empty_sentence_moves_the_carried_state() -> None:
    bilm = make_bilm(12)
    expected = numpy_twin(bilm).encode_carried([[[]], [["a", "b"]]])[1]
    bilm.encode([[]], "carry")
    assert_layers(bilm.encode([["a", "b"]], "carry"), expected)
    assert (expected[0] - numpy_twin(bilm).encode([["a", "b"]])[0]).max() > 1e-2


def test_other_calls_neither_use_nor_move_the_carried_state() -> None:
    bilm = warm_bilm(13)
    expected = numpy_twin(bilm).encode_carried([SENTENCES, SENTENCES])
    assert_layers(bilm.encode(SENTENCES, "carry"), expected[0])  # from zero, whatever the weights' policy
    assert_layers(bilm.encode(SENTENCES, "zero"), numpy_twin(bilm).encode(SENTENCES))
    bilm.encode(SENTENCES, "warm")
    assert_layers(bilm.encode(SENTENCES, "carry"), expected[1])


def test_more_carried_rows_than_run_together() -> None:
    bilm = make_bilm(14)
    many = [[f"w{i % 11}"] * (i % 3) for i in range(encode.ROWS_PER_BATCH + 20)]
    expected = numpy_twin(bilm).encode_carried([many, many[::-1]])
    for batch, layers in zip((many, many[::-1]), expected, strict=True):
        assert_layers(bilm.encode(batch, "carry"), layers)


# Threads


def test_eight_threads_get_what_one_gets() -> None:
    bilm = warm_bilm(15)
    calls: list[tuple[list[list[str]], Any, int]] = [
        (SENTENCES[i % 3 :] * 3, ("zero", "warm")[i % 2], (512, 3)[i // 4]) for i in range(8)
    ]
    expected = [bilm.encode(sentences, state, max_length=length) for sentences, state, length in calls]
    together = threading.Barrier(8)

    def work(call: tuple[list[list[str]], Any, int]) -> list[list[Tensor]]:
        sentences, state, length = call
        together.wait()
        return [bilm.encode(sentences, state, max_length=length) for _ in range(4)]

    with ThreadPoolExecutor(8) as pool:
        for found, layers in zip(pool.map(work, calls), expected, strict=True):
            for one in found:
                assert all(torch.equal(a, b) for a, b in zip(one, layers, strict=True))


def test_carried_calls_from_eight_threads_run_one_at_a_time() -> None:
    bilm = make_bilm(16)
    sentences = [["a", "b"], ["c"], []]
    serial = [bilm.encode(sentences, "carry")[0] for _ in range(24)]
    bilm.reset_state()
    together = threading.Barrier(8)

    def work(_: int) -> list[Tensor]:
        together.wait()
        return [bilm.encode(sentences, "carry")[0] for _ in range(3)]

    with ThreadPoolExecutor(8) as pool:
        found = [layers for results in pool.map(work, range(8)) for layers in results]
    assert len({layers.numpy().tobytes() for layers in serial}) > 3
    # Every call continues exactly one other.
    assert sorted(layers.numpy().tobytes() for layers in found) == sorted(layers.numpy().tobytes() for layers in serial)


# Word tables


def test_word_table_with_unknown_words() -> None:
    bilm = make_word_bilm(17)
    sentences = [["the", "dog", "."], ["cat"], [], ["unheard", "of", "日本語", ""]]
    assert any(word not in VOCABULARY for sentence in sentences for word in sentence)
    expected = numpy_twin(bilm).encode(sentences)
    assert_layers(bilm.encode(sentences), expected)
    assert_layers(bilm.encode(sentences, max_length=2), expected)
    known = [[word if word in VOCABULARY else "<UNK>" for word in sentence] for sentence in sentences]
    assert_layers(bilm.encode(known), expected)


def test_word_table_without_a_row_for_unknown_words() -> None:
    bilm = make_word_bilm(18, vocabulary=["cat", "</S>", "the", "<S>"])
    assert bilm.encode([["the", "cat"]])[0].shape == (3, 2, 10)
    with pytest.raises(ElmoError, match=r"'dog'.*<UNK>"):
        bilm.encode([["the", "dog"]])


# What is wrong with a call


@pytest.mark.parametrize("state", ["cold", "", "Zero", 0, True])
def test_an_unknown_policy_is_named(bilm: BiLM, state: Any) -> None:
    with pytest.raises(ElmoError, match=f"state.*{state!r}"):
        bilm.encode(SENTENCES, state)


@pytest.mark.parametrize("max_length", [0, -1])
def test_a_window_has_at_least_one_step(bilm: BiLM, max_length: int) -> None:
    with pytest.raises(ElmoError, match=f"max_length.*{max_length}"):
        bilm.encode(SENTENCES, max_length=max_length)


@pytest.mark.parametrize("sentences", ["The cat sat .", ["The cat sat ."], [["The"], "cat"], ""])
def test_strings_are_not_sentences(bilm: BiLM, sentences: Any) -> None:
    with pytest.raises(ElmoError, match="lists of words"):
        bilm.encode(sentences)


# The pieces


def test_words_are_numbered_by_first_appearance_behind_the_boundaries() -> None:
    words, rows = unique_words([["b", "a", "b"], [], ["</S>", "a"]])
    assert words == ["<S>", "</S>", "b", "a"]
    assert [row.tolist() for row in rows] == [[0, 2, 3, 2, 1], [0, 1], [0, 1, 3, 1]]


@given(
    lengths=st.lists(st.integers(0, 30), max_size=40), rows=st.integers(1, 7), words=st.integers(1, 60), data=st.data()
)
@settings(deadline=None, max_examples=60)
def test_batches_hold_every_row_once_and_are_bounded(
    lengths: list[int], rows: int, words: int, data: st.DataObject
) -> None:
    indices = [i for i in range(len(lengths)) if data.draw(st.booleans())]
    batches = list(batches_by_length(indices, lengths, rows, words))
    assert sorted(index for batch in batches for index in batch) == indices
    descending = [lengths[index] for batch in batches for index in batch]
    assert descending == sorted(descending, reverse=True)
    for batch in batches:
        assert 1 <= len(batch) <= rows
        assert len(batch) == 1 or lengths[batch[0]] * len(batch) <= words
