"""The token encoder of ELMoForManyLangs: its tables of code points and words, and what becomes of them."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm import token_encoder
from spacy_elmo.bilm.characters import code_point_ids
from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.token_encoder import CharacterEncoder, WordEncoder
from spacy_elmo.bilm.words import WordVectors
from spacy_elmo.errors import ElmoError

MARKS = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
CHARACTERS = ["e", "<bow>", "t", "🦆", "<oov>", "h", "<eow>", "<eos>", "\u3000", "<pad>", "<bos>", "日"]
ROWS = {character: row for row, character in enumerate(CHARACTERS)}
VOCABULARY = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "tttttttt", "日"]

SIZES: dict[str, Any] = {"lstm_dim": 7, "projection_dim": 5, "cell_clip": 1.0, "proj_clip": 0.7}
CNN: dict[str, Any] = {"filters": ((1, 3), (2, 4), (4, 3)), "char_dim": 3, "n_highway": 2}
CONFIGS: dict[str, BiLMConfig] = {
    "both": BiLMConfig(
        **SIZES, **CNN, max_characters_per_token=10, n_characters=len(CHARACTERS), word_dim=6, n_words=len(VOCABULARY)
    ),
    "characters": BiLMConfig(**SIZES, **CNN, max_characters_per_token=10, n_characters=len(CHARACTERS)),
    "words": BiLMConfig(**SIZES, filters=None, max_characters_per_token=10, word_dim=6, n_words=len(VOCABULARY)),
}
TRICKY = ["the", "", "t", "日", "🦆e", "x", "t" * 8, "t" * 9, "the" * 30, "<bos>", "<eos>", "<oov>", "<S>", "\ud800"]


def make(kind: str, seed: int = 0, **changes: Any) -> BiLM:
    config = dataclasses.replace(CONFIGS[kind], **changes)
    bilm = BiLM(
        config,
        vocabulary=VOCABULARY if config.n_words else None,
        characters=CHARACTERS if config.n_characters else None,
    )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return bilm


@pytest.fixture(params=list(CONFIGS))
def bilm(request: pytest.FixtureRequest) -> BiLM:
    return make(request.param)


def encoded(bilm: BiLM, words: list[str]) -> Tensor:
    with torch.no_grad():
        found: Tensor = bilm.token_encoder(bilm.token_ids(words))
    return found


# The config


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_options_are_the_config(config: BiLMConfig) -> None:
    options = json.loads(json.dumps(config.to_options()))
    assert BiLMConfig.from_options(options) == config
    assert config.is_many_langs
    # Nobody shall take it for bilm-tf's.
    assert not {"char_cnn", "n_tokens_vocab"} & options.keys()


def test_sizes_of_the_parts() -> None:
    both, characters, words = CONFIGS.values()
    assert (both.n_features, characters.n_features, words.n_features) == (16, 10, 6)
    assert all(config.has_char_projection and config.has_projection for config in CONFIGS.values())
    for projection_dim in (7, 10):  # of 10 features, of an LSTM of 7 cells
        config = dataclasses.replace(characters, projection_dim=projection_dim)
        assert config.has_char_projection
        assert config.has_projection
    assert not BiLMConfig(**SIZES, **CNN).is_many_langs


def test_what_a_word_table_does_not_read_is_no_difference() -> None:
    words = CONFIGS["words"]
    assert dataclasses.replace(words, char_dim=3, n_highway=2, activation="tanh") == words
    assert dataclasses.replace(words, max_characters_per_token=11) != words


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_characters": None}, "word_dim beside character filters needs code points: set n_characters"),
        ({"word_dim": None}, "n_words is for word-table input"),
        ({"n_words": None}, "word_dim is the size of word vectors: set n_words"),
        ({"filters": None}, "n_characters is for a biLM that reads characters"),
        ({"filters": None, "n_characters": None, "n_words": None}, "set n_words, the rows of its word table"),
        ({"n_characters": 0}, "n_characters is a whole number of at least 1, not 0"),
        ({"n_characters": True}, "n_characters is a whole number of at least 1, not True"),
        ({"word_dim": -1}, "word_dim is a whole number of at least 1, not -1"),
        ({"word_dim": "6"}, "word_dim is a whole number of at least 1, not '6'"),
        ({"n_words": 2**70}, "n_words is a whole number of at most"),
    ],
)
def test_fields_that_do_not_fit_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        dataclasses.replace(CONFIGS["both"], **changes)


def test_options_that_are_incomplete() -> None:
    options = CONFIGS["both"].to_options()
    for name in list(options["many_langs"]):
        broken = copy.deepcopy(options)
        del broken["many_langs"][name]
        with pytest.raises(ElmoError, match=f"lack '{name}' in many_langs"):
            BiLMConfig.from_options(broken)
    with pytest.raises(ElmoError, match="no section 'many_langs'"):
        BiLMConfig.from_options({**options, "many_langs": None})
    options["many_langs"] |= {"n_characters": None, "n_words": None, "word_dim": None}
    with pytest.raises(ElmoError, match="sets neither n_characters nor word_dim"):
        BiLMConfig.from_options(options)


# Spelling


def test_a_word_is_its_code_points_between_swapped_marks() -> None:
    found = code_point_ids(["the", "", "🦆x", "<bos>", "<eos>", "<pad>", "\u3000日"], ROWS, 7)
    begin, end, pad, unknown = ROWS["<eow>"], ROWS["<bow>"], ROWS["<pad>"], ROWS["<oov>"]
    assert found.dtype == np.int64
    assert found.tolist() == [
        [begin, ROWS["t"], ROWS["h"], ROWS["e"], end, pad, pad],
        [begin, end, pad, pad, pad, pad, pad],
        [begin, ROWS["🦆"], unknown, end, pad, pad, pad],
        [begin, ROWS["<bos>"], end, pad, pad, pad, pad],
        [begin, ROWS["<eos>"], end, pad, pad, pad, pad],
        [begin, *[unknown] * 5, end],
        [begin, ROWS["\u3000"], ROWS["日"], end, pad, pad, pad],
    ]


def test_forty_eight_code_points_of_a_word_are_read() -> None:
    ids = code_point_ids(["🦆" * 47, "🦆" * 48, "🦆" * 49, "t" * 500], ROWS, 50)
    assert [(row == ROWS["🦆"]).sum() for row in ids] == [47, 48, 48, 0]
    assert [int(np.argmax(row == ROWS["<bow>"])) for row in ids] == [48, 49, 49, 49]
    assert (ids[1] == ids[2]).all()
    assert len(code_point_ids([], ROWS, 50)) == 0


def test_the_cut_word_is_looked_up() -> None:
    for kind in ("both", "words"):
        bilm = make(kind)
        rows = bilm.token_ids(["t" * 7, "t" * 8, "t" * 9, "<bos>", "日", "the"])
        rows = rows if kind == "words" else rows[:, 0]
        assert rows.tolist() == [0, 5, 5, 1, 6, 4]


def test_a_word_that_stands_twice_has_its_last_row() -> None:
    characters = [*CHARACTERS[:-1], "t"]
    bilm = BiLM(CONFIGS["characters"], characters=characters)
    assert bilm.token_ids(["t"])[0, 1] == len(CHARACTERS) - 1


def test_tables_that_do_not_fit_the_config() -> None:
    both = CONFIGS["both"]
    with pytest.raises(ElmoError, match="needs the vocabulary of its table"):
        BiLM(both, characters=CHARACTERS)
    with pytest.raises(ElmoError, match="needs the characters of its table"):
        BiLM(both, vocabulary=VOCABULARY)
    with pytest.raises(ElmoError, match="6 words and the word table 7 rows"):
        BiLM(both, vocabulary=VOCABULARY[:-1], characters=CHARACTERS)
    with pytest.raises(ElmoError, match="11 characters and 12 rows"):
        BiLM(both, vocabulary=VOCABULARY, characters=CHARACTERS[:-1])
    with pytest.raises(ElmoError, match="lacks <eos> and <oov>"):
        BiLM(both, vocabulary=["a", "<bos>", "b", "<pad>", "the", "ttt", "日"], characters=CHARACTERS)
    for mark in MARKS:
        with pytest.raises(ElmoError, match=f"lack {mark}"):
            BiLM(both, vocabulary=VOCABULARY, characters=[c if c != mark else "x" for c in CHARACTERS])
    with pytest.raises(ElmoError, match="no word table, so no vocabulary"):
        BiLM(CONFIGS["characters"], vocabulary=VOCABULARY, characters=CHARACTERS)
    for config, vocabulary in ((CONFIGS["words"], VOCABULARY), (BiLMConfig(**SIZES, **CNN), None)):
        with pytest.raises(ElmoError, match="only a biLM that reads code points"):
            BiLM(config, vocabulary=vocabulary, characters=CHARACTERS)


def test_words_are_strings(bilm: BiLM) -> None:
    with pytest.raises(ElmoError, match="words are str, not int"):
        bilm.token_ids(["the", 3])  # type: ignore[list-item]


# Token vectors


def test_parameters() -> None:
    shapes = {
        kind: {name: tuple(p.shape) for name, p in make(kind).token_encoder.named_parameters()} for kind in CONFIGS
    }
    cnn = {
        "char_embed": (12, 3),
        "conv_weights.0": (1, 3, 3),
        "conv_weights.1": (2, 3, 4),
        "conv_weights.2": (4, 3, 3),
        "conv_biases.0": (3,),
        "conv_biases.1": (4,),
        "conv_biases.2": (3,),
        **{f"highways.{k}.W_{part}": (10, 10) for k in range(2) for part in ("carry", "transform")},
        **{f"highways.{k}.b_{part}": (10,) for k in range(2) for part in ("carry", "transform")},
        "b_proj": (5,),
    }
    assert shapes["both"] == {**cnn, "word_embed": (7, 6), "W_proj": (16, 5)}
    assert shapes["characters"] == {**cnn, "W_proj": (10, 5)}
    assert shapes["words"] == {"embedding": (7, 6), "W_proj": (6, 5), "b_proj": (5,)}


def test_the_word_vector_stands_before_the_character_features() -> None:
    bilm = make("both").double()
    encoder = bilm.token_encoder
    assert isinstance(encoder, CharacterEncoder)
    assert encoder.W_proj is not None
    assert encoder.b_proj is not None
    assert encoder.word_embed is not None
    with torch.no_grad():
        before = encoded(bilm, ["the", "日"])
        encoder.W_proj[6:] = 0.0  # what is left is the word vector alone
        found = encoded(bilm, ["the", "日", "nowhere"])
        expected = encoder.word_embed[[4, 6, 0]] @ encoder.W_proj[:6] + encoder.b_proj
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert (before - found[:2]).abs().max() > 0.1


@pytest.mark.parametrize("options", [{}, {"activation": "tanh"}, {"n_highway": 0}], ids=str)
@pytest.mark.parametrize("kind", CONFIGS)
def test_inference_on_packed_weights_is_the_module(kind: str, options: dict[str, Any]) -> None:
    bilm = make(kind, **options)
    found = WordVectors(bilm, "float32").table(bilm, TRICKY, 0)
    torch.testing.assert_close(found, encoded(bilm, TRICKY), rtol=0, atol=1e-6)


def test_words_are_remembered_as_bilm_tf_s_are(bilm: BiLM) -> None:
    vectors = WordVectors(bilm, "float32")
    for words in (["the", "t"], ["t", "日", "the"]):
        torch.testing.assert_close(vectors.table(bilm, words, 100), encoded(bilm, words), rtol=0, atol=1e-6)
    assert set(vectors._rows) == (set() if isinstance(bilm.token_encoder, WordEncoder) else {"the", "t", "日"})


def test_bfloat16_is_near(bilm: BiLM) -> None:
    sentences = [["the", "日", "🦆e", "nowhere"], ["t"]]
    exact, rounded = bilm.encode(sentences), bilm.encode(sentences, precision="bfloat16")
    for one, other in zip(exact, rounded, strict=True):
        assert other.dtype == torch.float32
        assert 0.98 < torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0) < 1.0


@given(words=st.lists(st.text(max_size=14) | st.sampled_from(TRICKY), min_size=1, max_size=6))
@settings(deadline=None, max_examples=25)
def test_a_word_has_the_same_vector_alone_and_beside_a_long_one(words: list[str]) -> None:
    bilm = make("both").double()
    together = encoded(bilm, [*words, "x" * 60])
    alone = torch.cat([encoded(bilm, [word]) for word in [*words, "x" * 60]])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", range(0, 11))
def test_every_length_is_trimmed_exactly(length: int) -> None:
    bilm = make("both").double()
    encoder = bilm.token_encoder
    assert isinstance(encoder, CharacterEncoder)
    with torch.no_grad():
        # A window of nothing but padding wins wherever there is one, so a column too few shows.
        encoder.char_embed.abs_().neg_()
        encoder.char_embed[ROWS["<pad>"]] = 1.0
        for weight in encoder.conv_weights:
            weight.abs_()
    word = "t" * length
    torch.testing.assert_close(encoded(bilm, [word]), encoded(bilm, [word, "x" * 60])[:1], rtol=0, atol=1e-12)


def test_more_types_than_a_chunk_holds_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    bilm = make("both").double()
    expected = encoded(bilm, TRICKY)
    monkeypatch.setitem(token_encoder.TYPES_PER_CHUNK, "cpu", 3)
    torch.testing.assert_close(encoded(bilm, TRICKY), expected, rtol=0, atol=1e-12)


def test_no_words(bilm: BiLM) -> None:
    assert encoded(bilm, []).shape == (0, 5)
    assert [layers.shape for layers in bilm.encode([[], []])] == [(3, 0, 10)] * 2


def test_gradients_reach_every_parameter_and_are_right(bilm: BiLM) -> None:
    bilm.double()
    words = ["the", "", "🦆e", "t" * 20, "the", "nowhere"]
    upstream = torch.randn(len(words), 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = bilm.token_ids(words)
    bilm.token_encoder(ids).backward(upstream)
    for name, parameter in bilm.token_encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
        # Along a random direction: one difference quotient a parameter instead of one an element.
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        values = []
        with torch.no_grad():
            for step in (1e-6, -2e-6, 1e-6):
                parameter.add_(step * direction)
                values.append(float((bilm.token_encoder(ids) * upstream).sum()))
        expected = (values[0] - values[1]) / 2e-6
        assert float((parameter.grad * direction).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-7), name


# The whole biLM


def test_sentences_stand_between_this_family_s_marks(bilm: BiLM) -> None:
    # What stands at a sentence's ends is the row of <bos> and of <eos>: without them the vectors are others.
    before = bilm.encode([["the"]])[0].clone()
    encoder = bilm.token_encoder
    table = encoder.char_embed if isinstance(encoder, CharacterEncoder) else encoder.embedding
    rows = ROWS if isinstance(encoder, CharacterEncoder) else {word: row for row, word in enumerate(VOCABULARY)}
    for mark, half in (("<bos>", slice(0, 5)), ("<eos>", slice(5, 10))):
        with torch.no_grad():
            table[rows[mark]] += 1.0
        bilm.invalidate()
        after = bilm.encode([["the"]])[0].clone()
        assert torch.equal(after[0], before[0])
        assert (after[1:, :, half] - before[1:, :, half]).abs().max() > 1e-3
        other = slice(5 - half.start, 15 - half.stop)
        assert torch.equal(after[1:, :, other], before[1:, :, other])
        before = after


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("projection_dim", [5, 7, 9])
def test_training_and_inference_agree(kind: str, projection_dim: int) -> None:
    bilm = make(kind, projection_dim=projection_dim)
    sentences = [["the", "日", "nowhere"], [], ["t" * 20], ["", "🦆"]]
    for trained, inferred in zip(bilm(sentences), bilm.encode(sentences), strict=True):
        torch.testing.assert_close(trained.detach(), inferred, rtol=0, atol=2e-6)


def test_copies_are_whole(bilm: BiLM) -> None:
    expected = bilm.encode([["the", "日"]])[0]
    for other in (copy.deepcopy(bilm), pickle.loads(pickle.dumps(bilm))):
        assert torch.equal(other.encode([["the", "日"]])[0], expected)
        assert (other.vocabulary, other.characters) == (bilm.vocabulary, bilm.characters)


def test_weights_can_be_drawn(bilm: BiLM) -> None:
    first = bilm.initialize(1).encode([["the", "日"]])[0]
    assert first.isfinite().all()
    assert first[0].std() > 1e-3
    assert torch.equal(bilm.initialize(1).encode([["the", "日"]])[0], first)
    assert not torch.equal(bilm.initialize(2).encode([["the", "日"]])[0], first)
