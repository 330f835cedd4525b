from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm import token_encoder
from spacy_elmo.bilm.characters import PAD_CHARACTER
from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.token_encoder import CharacterEncoder, WordEncoder

from .twins import VOCABULARY, make_bilm, make_word_bilm, numpy_twin

LONG = "x" * 60  # fills all columns
TRICKY = ["The", "", "a", "<S>", "</S>", "<UNK>", "naïve", "日本語", "abcdefghi", "abcdefghij", LONG, "\ud800"]
SHAPES: dict[str, dict[str, Any]] = {
    "small": {},
    "fifty columns": {"max_characters_per_token": 50},
    "tanh": {"activation": "tanh", "n_highway": 2},
    "no highway": {"n_highway": 0},
    "no projection": {"filters": ((1, 2), (3, 3))},
    "a filter as wide as the row": {"filters": ((12, 4), (1, 2))},
    "filters not in order of width": {"filters": ((5, 2), (1, 3), (2, 4))},
    "one filter, three columns": {"filters": ((2, 3),), "max_characters_per_token": 3},
}


def encoded(bilm: BiLM, words: list[str]) -> Tensor:
    with torch.no_grad():
        found: Tensor = bilm.token_encoder(bilm.token_ids(words))
    return found


@pytest.mark.parametrize("shape", list(SHAPES))
def test_reference_in_float64(shape: str) -> None:
    bilm = make_bilm(1, **SHAPES[shape])
    expected = numpy_twin(bilm).token_vectors(TRICKY)
    np.testing.assert_allclose(encoded(bilm.double(), TRICKY).numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", list(SHAPES))
def test_reference_in_float32(shape: str) -> None:
    bilm = make_bilm(2, **SHAPES[shape])
    expected = numpy_twin(bilm).token_vectors(TRICKY)
    np.testing.assert_allclose(encoded(bilm, TRICKY).double().numpy(), expected, rtol=0, atol=5e-6)


def test_windows_of_padding_take_part() -> None:
    # They win the maximum for short words, so an encoder that masks or drops them gives other numbers.
    bilm = make_bilm(1, max_characters_per_token=50).double()
    before = encoded(bilm, ["a", "The"])
    with torch.no_grad():
        assert isinstance(bilm.token_encoder, CharacterEncoder)
        bilm.token_encoder.char_embed[PAD_CHARACTER] = 0.0
    assert (encoded(bilm, ["a", "The"]) - before).abs().max() > 1e-2


WORDS = st.lists(st.text(max_size=20) | st.sampled_from(TRICKY), min_size=1, max_size=6)


@given(words=WORDS, activation=st.sampled_from(["relu", "tanh"]))
@settings(deadline=None, max_examples=25)
def test_a_word_has_the_same_vector_alone_and_beside_a_long_one(words: list[str], activation: str) -> None:
    bilm = make_bilm(3, max_characters_per_token=50, activation=activation)
    for tolerance in (1e-6, 1e-12):
        together = encoded(bilm, [*words, LONG])
        alone = torch.cat([encoded(bilm, [word]) for word in [*words, LONG]])
        torch.testing.assert_close(together, alone, rtol=tolerance, atol=tolerance)
        bilm = bilm.double()


@pytest.mark.parametrize("length", range(0, 13))
def test_every_length_is_trimmed_exactly(length: int) -> None:
    bilm = make_bilm(4, max_characters_per_token=12, filters=((1, 3), (5, 4))).double()
    with torch.no_grad():
        assert isinstance(bilm.token_encoder, CharacterEncoder)
        # A window of nothing but padding wins wherever there is one, so a column too few shows.
        bilm.token_encoder.char_embed[:PAD_CHARACTER].abs_().neg_()
        bilm.token_encoder.char_embed[PAD_CHARACTER] = 1.0
        for weight in bilm.token_encoder.conv_weights:
            weight.abs_()
    word = "e" * length
    alone = encoded(bilm, [word])
    torch.testing.assert_close(alone, encoded(bilm, [word, LONG])[:1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(alone.numpy(), numpy_twin(bilm).token_vectors([word]), rtol=0, atol=1e-12)


def test_no_words() -> None:
    for bilm in (make_bilm(), make_bilm(filters=((1, 2), (3, 3))), make_word_bilm()):
        found = encoded(bilm, [])
        assert found.shape == (0, 5)
        assert found.dtype == torch.float32


def many_words() -> list[str]:
    """Types of all lengths, in no order of length."""
    draw = np.random.default_rng(0)
    return ["".join(chr(97 + int(c)) for c in draw.integers(0, 26, int(draw.integers(0, 14)))) for _ in range(600)]


def test_more_types_than_a_chunk_holds_keep_their_order() -> None:
    words = many_words()
    assert len(words) > 2 * token_encoder.TYPES_PER_CHUNK["cpu"]
    bilm = make_bilm(5).double()
    found = encoded(bilm, words)
    for index in [0, 1, 255, 256, 257, 511, 512, 599]:
        torch.testing.assert_close(
            found[index : index + 1], encoded(bilm, words[index : index + 1]), rtol=0, atol=1e-12
        )
    np.testing.assert_allclose(found[:40].numpy(), numpy_twin(bilm).token_vectors(words[:40]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 7, 12, 10_000])
def test_the_size_of_a_chunk_changes_nothing(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    bilm = make_bilm(5).double()
    expected = encoded(bilm, TRICKY)
    monkeypatch.setitem(token_encoder.TYPES_PER_CHUNK, "cpu", size)
    torch.testing.assert_close(encoded(bilm, TRICKY), expected, rtol=0, atol=1e-12)


def test_a_row_of_ids_may_lie_anywhere_in_memory() -> None:
    bilm = make_bilm(6)
    ids = bilm.token_ids(TRICKY)
    expected = bilm.token_encoder(ids)
    torch.testing.assert_close(bilm.token_encoder(ids.t().contiguous().t()), expected, rtol=0, atol=0)
    wide = torch.full((len(TRICKY), 24), 7)
    wide[:, ::2] = ids
    torch.testing.assert_close(bilm.token_encoder(wide[:, ::2]), expected, rtol=0, atol=0)


def gradients(bilm: BiLM, words: list[str], upstream: Tensor) -> dict[str, Tensor]:
    bilm.zero_grad()
    bilm.token_encoder(bilm.token_ids(words)).backward(upstream)
    return {name: p.grad.clone() for name, p in bilm.token_encoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_reach_every_parameter_and_are_right(activation: str) -> None:
    bilm = make_bilm(7, activation=activation, n_highway=2).double()
    words = ["The", "", "naïve", "abcdefghij", "The"]
    upstream = torch.randn(len(words), 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = gradients(bilm, words, upstream)
    assert found.keys() == dict(bilm.token_encoder.named_parameters()).keys()
    ids = bilm.token_ids(words)
    for name, parameter in bilm.token_encoder.named_parameters():
        assert found[name].abs().max() > 0, name
        # Along a random direction: one difference quotient a parameter instead of one an element.
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        values = []
        with torch.no_grad():
            for step in (1e-6, -2e-6, 1e-6):
                parameter.add_(step * direction)
                values.append(float((bilm.token_encoder(ids) * upstream).sum()))
        expected = (values[0] - values[1]) / 2e-6
        assert float((found[name] * direction).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-7), name


def test_gradients_of_a_trimmed_word_are_those_of_the_whole_row() -> None:
    bilm = make_bilm(8, max_characters_per_token=50).double()
    upstream = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    trimmed = gradients(bilm, ["The", "a"], upstream)
    beside = gradients(bilm, ["The", "a", LONG], torch.cat([upstream, torch.zeros(1, 5, dtype=torch.float64)]))
    for name, expected in trimmed.items():
        torch.testing.assert_close(beside[name], expected, rtol=0, atol=1e-12)


def test_only_characters_that_were_read_get_a_gradient() -> None:
    bilm = make_bilm(9)
    found = gradients(bilm, ["ab"], torch.ones(1, 5))["char_embed"].abs().sum(dim=1)
    assert set(torch.nonzero(found).flatten().tolist()) <= {97, 98, 258, 259, 260}
    assert found[97] + found[98] > 0


def test_a_word_table_gives_rows_and_takes_gradients() -> None:
    bilm = make_word_bilm()
    assert isinstance(bilm.token_encoder, WordEncoder)
    words = ["cat", "the", "cat", "日本語"]
    found = bilm.token_encoder(bilm.token_ids(words))
    rows = [VOCABULARY.index(word) for word in words]
    torch.testing.assert_close(found, bilm.token_encoder.embedding[rows], rtol=0, atol=0)
    found.sum().backward()
    gradient = bilm.token_encoder.embedding.grad
    assert gradient is not None
    assert gradient[:, 0].tolist() == [float(rows.count(row)) for row in range(len(VOCABULARY))]


def test_the_projection_is_left_out_where_the_sizes_agree() -> None:
    encoder = CharacterEncoder(BiLMConfig(lstm_dim=7, projection_dim=5, filters=((1, 2), (3, 3))))
    assert encoder.W_proj is None
    assert encoder.b_proj is None
    assert not any("proj" in name for name in encoder.state_dict())


def test_in_training_there_are_few_shapes_and_the_same_vectors_and_gradients() -> None:
    bilm = make_bilm(5).double()
    encoder = bilm.token_encoder
    assert isinstance(encoder, CharacterEncoder)
    ids = bilm.token_ids(many_words())
    shapes: list[tuple[int, int]] = []
    results = []
    for few_shapes in (False, True):
        shapes.clear()

        def encode(some: Tensor) -> Tensor:
            shapes.append((some.shape[0], some.shape[1]))
            return encoder._encode(some)

        bilm.zero_grad()
        found = token_encoder.encode_by_length(ids, encoder.widest, encode, few_shapes=few_shapes)
        found.square().sum().backward()
        results.append([found.detach(), *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert [types for types, _ in shapes] == [256, 256, 128]
    assert all(columns % 4 == 0 for _, columns in shapes)
