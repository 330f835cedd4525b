from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import spacy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_elmo.errors import PretrainingError, WeightsError
from spacy_elmo.pretraining.corpus import EncodedCorpus, encode_corpus
from spacy_elmo.pretraining.vocabulary import Vocabulary, build_vocabulary, oov_share, word_counts
from spacy_elmo.weights.vocabulary import save_vocabulary

VOCAB = spacy.blank("en").vocab
SPECIAL = ["<S>", "</S>", "<UNK>"]


def corpus_of(folder: Path, words: list[str]) -> EncodedCorpus:
    return encode_corpus([Doc(VOCAB, words=words)], folder, key=repr(words))


def test_builder_sorts_by_frequency_then_string(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", ["rare", "b", "b", "a", "a", "most", "most", "most", "<UNK>"])
    assert build_vocabulary(corpus, 0).words == [*SPECIAL, "most", "a", "b", "rare"]
    assert build_vocabulary(corpus, 5).words == [*SPECIAL, "most", "a"]
    assert build_vocabulary(corpus, 5000, min_count=2).words == [*SPECIAL, "most", "a", "b"]
    assert build_vocabulary(corpus, 5000, min_count=9).words == SPECIAL
    for size in (-1, 1, 3):
        with pytest.raises(PretrainingError, match="max_words"):
            build_vocabulary(corpus, size)


def test_unknown_words_and_their_share(tmp_path: Path) -> None:
    train = corpus_of(tmp_path / "train", ["a", "a", "a", "b", "b", "c"])
    dev = corpus_of(tmp_path / "dev", ["c", "b", "z", "z", "a", "a", "a", "<UNK>", "<S>", "</S>"])
    vocabulary = build_vocabulary(train, 5)
    assert vocabulary.ids(["a", "z", "<S>", "</S>", "<UNK>", "b", "c"]).tolist() == [3, 2, 0, 1, 2, 4, 2]
    assert vocabulary.ids([]).dtype == vocabulary.ids(["a"]).dtype == np.int64
    assert oov_share(train, vocabulary) == pytest.approx(1 / 6)
    assert oov_share(dev, vocabulary) == pytest.approx(3 / 10)
    assert word_counts(dev, vocabulary).tolist() == [1, 1, 4, 3, 1]


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3).filter(
    lambda word: not word.isspace()
)


@given(words=st.lists(WORDS, min_size=1, max_size=40), size=st.integers(4, 20))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ids_keep_the_frequent_and_drop_the_rest(tmp_path: Path, words: list[str], size: int) -> None:
    corpus = corpus_of(tmp_path / "corpus", words)
    vocabulary = build_vocabulary(corpus, size)
    assert len(vocabulary) <= size
    ids = vocabulary.ids(corpus.types)
    for word, index in zip(corpus.types, ids, strict=True):
        assert vocabulary.words[index] == (word if word in vocabulary.words else "<UNK>")
    counts = Counter(words)
    unknown = sum(n for word, n in counts.items() if word not in vocabulary.words)
    assert oov_share(corpus, vocabulary) == pytest.approx(unknown / len(words))
    assert word_counts(corpus, vocabulary).sum() == len(words)
    save_vocabulary(vocabulary.words, tmp_path / "vocabulary.txt")
    assert Vocabulary.from_disk(tmp_path / "vocabulary.txt").words == vocabulary.words
    assert vocabulary.check_frequency_order(word_counts(corpus, vocabulary))


def test_words_of_two_lines_are_unknown_rather_than_unwritable(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", ["a\nb", "a\nb", "c", "d\r"])
    vocabulary = build_vocabulary(corpus, 0)
    assert vocabulary.words == [*SPECIAL, "c"]
    assert vocabulary.ids(corpus.types).tolist() == [0, 1, 2, 2, 3, 2]
    with pytest.raises(WeightsError, match="line break"):
        save_vocabulary([*SPECIAL, "a\nb"], tmp_path / "vocabulary.txt")
    assert not (tmp_path / "vocabulary.txt").exists()


def test_wrong_vocabularies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PretrainingError, match="first words"):
        Vocabulary(["</S>", "<S>", "<UNK>"])
    with pytest.raises(PretrainingError, match="'a' twice, in lines 4 and 6"):
        Vocabulary([*SPECIAL, "a", "b", "a"])
    with pytest.raises(WeightsError):
        Vocabulary.from_disk(tmp_path / "missing.txt")


def test_words_out_of_frequency_order_warn() -> None:
    vocabulary = Vocabulary([*SPECIAL, "the", "of", "appended"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vocabulary.check_frequency_order(np.array([0, 0, 999, 7, 7, 2]))
    with pytest.warns(UserWarning, match=r"1 words .* 'appended' in line 6 \(50 after 7\)"):
        assert not vocabulary.check_frequency_order(np.array([0, 0, 0, 9, 7, 50]))
    with pytest.raises(PretrainingError, match="2 counts"):
        vocabulary.check_frequency_order(np.array([1, 2]))


def test_spacy_tokens_give_the_types(tmp_path: Path) -> None:
    corpus = encode_corpus([spacy.blank("en").make_doc("Don't stop.\nDo")], tmp_path / "corpus", key="a")
    assert build_vocabulary(corpus, 0).words == [*SPECIAL, "Do", ".", "n't", "stop"]
