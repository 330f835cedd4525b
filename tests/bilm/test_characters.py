from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spacy_elmo.bilm.characters import N_CHARACTERS, character_ids

BOW, EOW, PAD = 258, 259, 260

# With lone surrogates, which Hypothesis leaves out of its text unless they are asked for.
CHARACTERS = st.characters() | st.integers(0xD800, 0xDFFF).map(chr) | st.sampled_from("aé漢😀")
TEXTS = st.text(CHARACTERS, max_size=70) | st.sampled_from(["<S>", "</S>", "<UNK>", "<s>", "<S> ", ""])


def spelled(word: str, columns: int) -> list[int]:
    """One word, character by character, as the format says it."""
    if word == "<S>":
        content = [256]
    elif word == "</S>":
        content = [257]
    else:
        content = []
        for character in word:
            if 0xD800 <= ord(character) <= 0xDFFF:
                continue
            content.extend(character.encode("utf-8"))
        content = content[: columns - 2]
    row = [BOW, *content, EOW]
    while len(row) < columns:
        row.append(PAD)
    return row


def row(word: str, columns: int) -> list[int]:
    (found,) = character_ids([word], columns).tolist()
    return found


@pytest.mark.parametrize(
    ("word", "start"),
    [
        ("The", [BOW, 84, 104, 101, EOW, PAD]),
        (".", [BOW, 46, EOW, PAD]),
        ("Āt", [BOW, 196, 128, 116, EOW, PAD]),
        ("", [BOW, EOW, PAD]),
        (" ", [BOW, 32, EOW, PAD]),
        ("\x00", [BOW, 0, EOW, PAD]),
        ("<S>", [BOW, 256, EOW, PAD]),
        ("</S>", [BOW, 257, EOW, PAD]),
        ("<UNK>", [BOW, 60, 85, 78, 75, 62, EOW, PAD]),
        ("<s>", [BOW, 60, 115, 62, EOW, PAD]),
    ],
)
def test_rows_of_the_format(word: str, start: list[int]) -> None:
    assert row(word, 50) == start + [PAD] * (50 - len(start))


def test_a_long_word_is_cut_by_byte() -> None:
    assert row("abcé", 6) == [BOW, 97, 98, 99, 195, EOW]
    assert row("漢", 4) == [BOW, 230, 188, EOW]
    assert row("x" * 49, 50) == [BOW, *[120] * 48, EOW]
    assert row("x" * 48, 50) == [BOW, *[120] * 48, EOW]
    assert row("x" * 47, 50) == [BOW, *[120] * 47, EOW, PAD]


@pytest.mark.parametrize("columns", [3, 4, 50])
def test_the_boundaries_fit_into_the_smallest_row(columns: int) -> None:
    assert row("<S>", columns)[:3] == [BOW, 256, EOW]
    assert row("</S>", columns)[:3] == [BOW, 257, EOW]


def test_lone_surrogates_vanish() -> None:
    assert row("\ud800", 5) == row("", 5)
    assert row("a\udfffb", 5) == row("ab", 5)
    # Those among the first C - 2 characters make room for what follows them.
    assert row("\ud800\ud800abcdef", 6) == row("abcdef", 6) == [BOW, 97, 98, 99, 100, EOW]
    assert row("a\ud800" * 100, 50) == [BOW, *[97] * 48, EOW]
    assert row("\ud800" * 100 + "é", 6) == [BOW, 195, 169, EOW, PAD, PAD]
    # A word that is a boundary only once they are gone is spelled.
    assert row("<S>\ud800", 8) == [BOW, 60, 83, 62, EOW, PAD, PAD, PAD]


@given(words=st.lists(TEXTS, max_size=8), columns=st.integers(3, 60))
@example(words=["\ud800" * 48 + "é", "é" * 24, "a" + "é" * 24], columns=50)
@settings(deadline=None, max_examples=150)
def test_all_words_at_once_are_spelled_as_each_alone(words: list[str], columns: int) -> None:
    found = character_ids(words, columns)
    assert found.shape == (len(words), columns)
    assert found.dtype == np.int64
    assert found.tolist() == [spelled(word, columns) for word in words]


@given(word=TEXTS, columns=st.integers(3, 60))
@settings(deadline=None, max_examples=60)
def test_a_row_is_marks_content_and_padding(word: str, columns: int) -> None:
    ids = character_ids([word], columns)[0]
    assert ids.min() >= 0
    assert ids.max() < N_CHARACTERS
    end = int(np.flatnonzero(ids == EOW)[0])
    assert ids[0] == BOW
    assert (ids[1:end] < BOW).all()
    assert (ids[end + 1 :] == PAD).all()


@pytest.mark.parametrize("words", [[], ()])
def test_no_words(words: Sequence[str]) -> None:
    found = character_ids(words, 50)
    assert found.shape == (0, 50)
    assert found.dtype == np.int64


def test_words_may_be_any_sequence() -> None:
    np.testing.assert_array_equal(character_ids(("The", "cat"), 9), character_ids(["The", "cat"], 9))


def test_only_the_head_of_a_huge_word_is_encoded() -> None:
    word = "é" * 50_000
    character_ids([word], 50)
    tracemalloc.start()
    ids = character_ids([word], 50)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert ids.tolist() == [[BOW, *[195, 169] * 24, EOW]]
    assert peak < 30_000  # the whole word is 100,000 bytes
