from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.pretraining.corpus import EncodedCorpus, encode_corpus
from spacy_elmo.pretraining.step import _type_ids
from spacy_elmo.pretraining.word_types import Types

WORD = st.one_of(
    st.sampled_from(["", "a", "a\0", "é😀", "<S>", "a\nb"]), st.text(st.characters(exclude_categories=["Cs"]))
)


@given(words=st.lists(WORD, max_size=12), start=st.integers(-15, 15), stop=st.integers(-15, 15), step=st.integers(1, 3))
@settings(deadline=None)
def test_types_are_a_sequence_of_str(words: list[str], start: int, stop: int, step: int) -> None:
    types = Types.of(words)
    assert list(types) == words
    assert len(types) == len(words)
    assert types[start:stop:step] == words[start:stop:step]
    assert [types[int(index)] for index in np.arange(len(words))] == words
    assert [types[index] for index in range(-len(words), 0)] == words
    assert types.lengths().tolist() == [len(word.encode("utf8")) for word in words]
    for outside in (len(words), -len(words) - 1):
        with pytest.raises(IndexError, match=f"there are {len(words)} types, none of number {outside}"):
            types[outside]


def test_character_rows_are_what_the_encoder_reads_and_are_kept(tmp_path: Path) -> None:
    words = ["<S>", "</S>", "<UNK>", "ein", "Wörterbuch", "😀😀😀", "x" * 60]
    corpus = encode_corpus([words], tmp_path / "corpus", key="a")
    for columns in (9, 50):
        bilm = BiLM(BiLMConfig(lstm_dim=4, projection_dim=2, filters=((1, 2),), max_characters_per_token=columns))
        rows = _type_ids(bilm, corpus.types)
        path = tmp_path / "corpus" / f"characters-{columns}.bin"
        assert rows.dtype == np.int16
        assert np.array_equal(rows, bilm.token_ids(list(corpus.types)).numpy())
        assert path.stat().st_size == 2 * columns * corpus.n_types
        assert np.array_equal(_type_ids(bilm, Types.of(corpus.types)), rows)
        written = path.stat().st_mtime_ns
        again = EncodedCorpus.open(tmp_path / "corpus")
        assert np.array_equal(again.types.character_rows(columns), rows)
        assert path.stat().st_mtime_ns == written
        damaged = path.read_bytes()[:-1]
        path.unlink()  # what is mapped stays
        path.write_bytes(damaged)
        assert np.array_equal(again.types.character_rows(columns), rows)
    # They belong to the corpus: it stays what it was.
    assert encode_corpus(iter(()), tmp_path / "corpus", key="a").n_words == 7


def test_word_tables_read_rows(tmp_path: Path) -> None:
    vocabulary = ["<S>", "</S>", "<UNK>", "b"]
    config = BiLMConfig(lstm_dim=4, projection_dim=2, filters=None, n_words=4)
    corpus = encode_corpus([["a", "b", "a"]], tmp_path / "corpus", key="a")
    assert _type_ids(BiLM(config, vocabulary=vocabulary), corpus.types).tolist() == [0, 1, 2, 2, 3]
