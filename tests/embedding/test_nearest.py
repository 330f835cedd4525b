"""Contextual nearest neighbours: those of the plain computation over all occurrences, in bounded steps."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.embedding import Neighbors, neighbors
from spacy_elmo.errors import CorpusError, ElmoError, WeightsError
from spacy_elmo.layers.bilm_model import random_bilm

LINES = [
    "the bank of the river was muddy",
    "a bank lent us money",
    "",
    "Bank holidays are rare",
    "nobody swims at this bank , for a bank is no river",
    "the bank of the river was muddy",  # again
    "bank",
]
BILM = random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4], [2, 4]], char_dim=4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf8")
    return path


def found(path: Any, word: str = "bank", **options: Any) -> list[Neighbors]:
    return neighbors(path, BILM, word, **{"pretokenized": True, **options})


def plain(lines: list[str], word: str, n: int, layer: int, any_word: bool) -> list[list[float]]:
    """Cosines of the n nearest of each occurrence, in sentences of other words, of all at once."""
    layers = [one[layer].numpy().astype(np.float64) for one in BILM.encode([line.split() for line in lines])]
    rows = [
        (one[position] / np.linalg.norm(one[position]), token, (tuple(line.split()), position))
        for one, line in zip(layers, lines, strict=True)
        for position, token in enumerate(line.split())
    ]
    results = []
    for vector, token, key in rows:
        if token == word:
            others = {k: float(vector @ v) for v, t, k in rows if k[0] != key[0] and (any_word or t == word)}
            results.append(sorted(others.values(), reverse=True)[:n])
    return results


@settings(deadline=None, max_examples=25)
@given(
    lines=st.lists(st.lists(st.sampled_from(["bank", "a", "Ann", "x1", "."]), max_size=6).map(" ".join), max_size=9),
    n=st.integers(1, 4),
    layer=st.integers(0, 2),
    any_word=st.booleans(),
    batch_words=st.integers(1, 12),
)
def test_equal_to_the_plain_computation(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], n: int, layer: int, any_word: bool, batch_words: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
    right = plain(lines, "bank", n, layer, any_word)
    options: dict[str, Any] = {"n": n, "layer": layer, "any_word": any_word, "batch_words": batch_words}
    if not right:
        with pytest.raises(ElmoError, match="'bank' does not occur in the text"):
            found(path, **options)
        return
    results = found(path, first=100, **options)
    assert [result.number for result in results] == list(range(1, len(right) + 1))
    for result, similarities in zip(results, right, strict=True):
        assert [near.similarity for near in result.nearest] == pytest.approx(similarities, abs=1e-5)
        for near in result.nearest:
            words = lines[(near.occurrence.line or 0) - 1].split()
            assert words[near.occurrence.position] == near.occurrence.word
            assert any_word or near.occurrence.word == "bank"


def test_where_and_in_which_context(path: Path) -> None:
    results = found(path, context=2)
    # The fifth occurrence stands in the first one's sentence again: it is asked about, but is no neighbour of it. Nor
    # are the third and the fourth, of one sentence, each other's.
    assert [str(result.occurrence) for result in results] == [
        "the [bank] of the …",
        "a [bank] lent us …",
        "… at this [bank] , for …",
        "… for a [bank] is no …",
        "the [bank] of the …",
        "[bank]",
    ]
    assert [result.occurrence.line for result in results] == [1, 2, 5, 5, 6, 7]
    assert {result.occurrence.file for result in results} == {str(path)}
    assert [len(result.nearest) for result in results] == [4, 4, 3, 3, 4, 4]
    assert sorted(near.occurrence.line or 0 for near in results[0].nearest) == [2, 5, 5, 7]
    assert sorted(near.occurrence.line or 0 for near in results[1].nearest) == [1, 5, 5, 7]
    assert results[0].nearest == results[4].nearest


def test_all_of_a_sentence_of_the_same_words_is_left_out(tmp_path: Path) -> None:
    """Other places in the very sentence, written once more, came before all others."""
    path = tmp_path / "lines.txt"
    path.write_text("bank by bank\nbank by bank\na bank failed\na dog ran\n", encoding="utf8")
    for options in ({}, {"any_word": True}, {"sentence": "bank by bank"}):
        asked, *_ = found(path, **options)
        lines = {near.occurrence.line for near in asked.nearest}
        assert lines == ({3, 4} if options.get("any_word") else {3})
    *_, last = found(path)
    # Several in another sentence stay, those of its copy do not count again.
    assert {(near.occurrence.line, near.occurrence.position) for near in last.nearest} == {(1, 0), (1, 2)}
    assert len(last.nearest) == 2


def test_which_occurrences(path: Path) -> None:
    every = found(path)
    assert found(path, first=2) == every[:2]
    assert found(path, occurrences=[6, 2, 2]) == [every[1], every[5]]
    with pytest.raises(ElmoError, match="'bank' occurs 6 times: there is no occurrence 7"):
        found(path, occurrences=[1, 7])
    assert len(found(path, ignore_case=True)) == 7
    assert [result.occurrence.word for result in found(path, "BANK", ignore_case=True, occurrences=[3])] == ["Bank"]
    with pytest.raises(ElmoError, match="'BANK' does not occur"):
        found(path, "BANK")


def test_a_sentence_of_ones_own(path: Path) -> None:
    (asked,) = found(path, sentence="a bank lent us money", n=3)
    assert (asked.number, asked.occurrence.file, asked.occurrence.line) == (None, None, None)
    assert str(asked.occurrence) == "a [bank] lent us money"
    # The same sentence in the text has nothing to tell.
    (_, right, *_) = found(path, n=3)
    assert [near.occurrence for near in asked.nearest] == [near.occurrence for near in right.nearest]
    assert len(found(path, sentence="bank bank")) == 2
    # Another word of the text may be near it, and the word need not be in the text.
    (other,) = found(path, "shore", sentence="the shore of the river", any_word=True, n=2)
    assert len(other.nearest) == 2
    (nothing,) = found(path, "shore", sentence="the shore")
    assert nothing.nearest == []
    with pytest.raises(ElmoError, match=r"'bank' does not occur in the sentence \(a river\)"):
        found(path, sentence="a river")


def test_several_files_and_a_limit(path: Path, tmp_path: Path) -> None:
    packed = tmp_path / "more.txt.gz"
    with gzip.open(packed, "wt", encoding="utf8") as file:
        file.write("a bank lent me money\n")
    (first, *_) = found([path, packed], occurrences=[2], n=1)
    assert (first.nearest[0].occurrence.file, first.nearest[0].occurrence.line) == (str(packed), 1)
    limited = found([path, packed], limit=2)
    assert [len(result.nearest) for result in limited] == [1, 1]


def test_layers_and_the_tokenizer(path: Path, tmp_path: Path) -> None:
    top = found(path)
    assert found(path, layer=2) == top
    assert found(path, layer=0) != top
    # Of the token encoder all occurrences of a word are one.
    assert all(near.similarity == pytest.approx(1, abs=1e-6) for near in found(path, layer=0)[0].nearest)
    assert found(path, layer="mean") != top
    text = tmp_path / "words.txt"
    text.write_text("(The bank) can't lend.\nA BANK can't.\n", encoding="utf8")
    assert str(found(text, "n't", pretokenized=False)[0].occurrence) == "( The bank ) ca [n't] lend ."
    # What the biLM reads is in small letters; what is found is as it was written.
    (lower, _) = found(text, "bank", pretokenized=False, text="lower", layer=0, ignore_case=True)
    assert lower.nearest[0].occurrence.word == "BANK"
    assert lower.nearest[0].similarity == pytest.approx(1, abs=1e-6)


def test_a_frequent_part_of_words_takes_bounded_steps(tmp_path: Path) -> None:
    # Each line has the letters, few have the word.
    path = tmp_path / "banks.txt"
    path.write_text("banks banks banks\n" * 200 + "a bank\nthe bank\n", encoding="utf8")
    results = found(path, batch_words=4)
    assert [result.occurrence.line for result in results] == [201, 202]
    assert [near.occurrence.line for near in results[0].nearest] == [202]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word": "two words"}, "word is one word, not 'two words'"),
        ({"word": ""}, "word is one word"),
        ({"layer": 3}, "0 to 2, not 3"),
        ({"layer": "all"}, "vectors of all layers are not compared"),
        ({"n": 0}, "n is a number from 1"),
        ({"first": -1}, "first is a number from 1"),
        ({"occurrences": [0]}, "an occurrence is a number from 1"),
        ({"limit": 0}, "limit is a number from 1"),
        ({"state": "carry"}, "state is zero or warm, not 'carry'"),
        ({"precision": "int8"}, "int8"),
        ({"lang": "qq", "pretokenized": False}, "no tokenizer for the language 'qq'"),
    ],
)
def test_settings_that_make_no_sense(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        found(path, **options)


def test_files_that_are_none(path: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="cannot be read"):
        found(tmp_path / "none.txt")
    with pytest.raises(CorpusError, match="no file of text is given"):
        found([])
    with pytest.raises(WeightsError, match="no such file"):
        neighbors(path, tmp_path / "none", "bank")
