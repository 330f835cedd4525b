from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spacy_elmo.bilm import words as words_module
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.words import WordVectors
from spacy_elmo.errors import ElmoError

from .twins import make_bilm, make_word_bilm

WORDS = st.lists(st.text(max_size=4) | st.sampled_from(["the", "The", "<S>", "x" * 300]), unique=True, max_size=12)


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    return make_bilm(1)


def expected(bilm: BiLM, words: list[str]) -> Tensor:
    with torch.no_grad():
        return bilm.token_encoder(bilm.token_ids(words))


@pytest.mark.parametrize(
    "options",
    [{}, {"activation": "tanh"}, {"n_highway": 0}, {"n_highway": 2}, {"projection_dim": 10, "lstm_dim": 10}],
    ids=["relu", "tanh", "no highway", "two highways", "no projection"],
)
def test_the_packed_encoder_is_the_encoder(options: dict[str, Any]) -> None:
    bilm = make_bilm(2, **options)
    words = ["<S>", "</S>", "", "a", "cats", "日本語", "x" * 60]
    torch.testing.assert_close(
        WordVectors(bilm, "float32").table(bilm, words, 0), expected(bilm, words), rtol=0, atol=1e-6
    )


def test_bfloat16_is_near() -> None:
    bilm = make_bilm(2, filters=((1, 16), (2, 16), (3, 32)), projection_dim=16, lstm_dim=32)
    words = [f"w{i}" for i in range(40)]
    found = WordVectors(bilm, "bfloat16").table(bilm, words, 0)
    assert found.dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(found, expected(bilm, words))
    assert 0.999 < cosine.min() < 1.0


@given(calls=st.lists(WORDS.filter(bool), max_size=6), limit=st.sampled_from([0, 1, 3, 10, 1000]))
@settings(deadline=None, max_examples=40)
def test_what_was_asked_before_changes_nothing(bilm: BiLM, calls: list[list[str]], limit: int) -> None:
    vectors = WordVectors(bilm, "float32")
    for words in calls:
        torch.testing.assert_close(vectors.table(bilm, words, limit), expected(bilm, words), rtol=0, atol=3e-6)
        assert len(vectors._rows) <= limit
        assert len(vectors._vectors) <= max(limit, 0)
        assert max(map(len, vectors._rows), default=0) <= words_module.LONGEST_REMEMBERED


class Counting(WordVectors):
    """Counts the types that pass the encoder."""

    def __init__(self, bilm: BiLM) -> None:
        super().__init__(bilm, "float32")
        self.encoded: list[int] = []
        encode = self._encode

        def counted(ids: Tensor) -> Tensor:
            self.encoded.append(len(ids))
            return encode(ids)

        self._encode = counted


def test_a_word_passes_the_encoder_once(bilm: BiLM) -> None:
    vectors = Counting(bilm)
    vectors.table(bilm, ["a", "b"], 100)
    vectors.table(bilm, ["b", "c", "a"], 100)
    vectors.table(bilm, ["c", "a"], 100)
    assert vectors.encoded == [2, 1]
    vectors.forget()
    vectors.table(bilm, ["c", "a"], 100)
    assert vectors.encoded == [2, 1, 2]


def test_without_a_limit_to_keep_none_is_kept(bilm: BiLM) -> None:
    vectors = Counting(bilm)
    for _ in range(2):
        vectors.table(bilm, ["a", "b"], 0)
    assert vectors.encoded == [2, 2]


def test_when_full_it_starts_anew(bilm: BiLM) -> None:
    vectors = Counting(bilm)
    vectors.table(bilm, ["a", "b"], 3)
    vectors.table(bilm, ["a", "c", "d"], 3)  # two more than there is room for
    vectors.table(bilm, ["c", "d"], 3)
    assert vectors.encoded == [2, 2]
    vectors.table(bilm, ["a"], 3)
    assert vectors.encoded == [2, 2, 1]


def test_the_cache_is_the_bilms_and_goes_with_its_weights() -> None:
    bilm = make_bilm(3)
    bilm.encode([["a", "b"]])
    words = bilm.runtime().packed["float32"].words
    assert set(words._rows) == {"<S>", "</S>", "a", "b"}
    bilm.forget_words()
    assert not words._rows
    bilm.encode([["a"]])
    version = bilm.version
    with torch.no_grad():
        next(bilm.parameters()).add_(1.0)
    assert not bilm.runtime().packed
    assert bilm.version != version
    bilm.encode([["a"]])
    bilm.invalidate()
    assert not bilm.runtime().packed


def test_a_limit_below_zero_is_refused(bilm: BiLM) -> None:
    with pytest.raises(ElmoError, match="cache_words is at least 0, not -1"):
        bilm.encode([["a"]], cache_words=-1)


def test_a_word_table_needs_no_memory() -> None:
    bilm = make_word_bilm(4)
    vectors = WordVectors(bilm, "float32")
    assert torch.equal(vectors.table(bilm, ["the", "cat"], 100), expected(bilm, ["the", "cat"]))
    assert not vectors._rows


def test_threads_share_it(bilm: BiLM) -> None:
    vectors = Counting(bilm)
    calls = [[f"w{(7 * i + k) % 23}" for k in range(9)] for i in range(60)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda words: vectors.table(bilm, words, 20), calls))
    for words, table in zip(calls, found, strict=True):
        torch.testing.assert_close(table, expected(bilm, words), rtol=0, atol=3e-6)
