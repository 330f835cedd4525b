"""The vocabulary of the output layer: which word each row of the softmax stands for."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import PretrainingError
from ..weights.vocabulary import load_vocabulary
from .word_types import BOS_TYPE, EOS_TYPE, SPECIAL_TYPES, UNK_TYPE

if TYPE_CHECKING:
    from .corpus import EncodedCorpus

N_SPECIAL = len(SPECIAL_TYPES)


class Vocabulary:
    """Words in the order of the softmax's rows: ``<S>``, ``</S>``, ``<UNK>``, then descending frequency.

    The order matters to the sampled softmax alone, whose negatives are drawn log-uniformly by rank. Vectors do not
    depend on the vocabulary at all: the biLM spells words by character.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        if tuple(self.words[:N_SPECIAL]) != SPECIAL_TYPES:
            raise PretrainingError(
                f"The vocabulary begins with {self.words[:N_SPECIAL]}: its first words must be {list(SPECIAL_TYPES)}"
            )
        self._ids = {word: index for index, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            index, word = next((i, word) for i, word in enumerate(self.words) if self._ids[word] != i)
            raise PretrainingError(
                f"The vocabulary has {word!r} twice, in lines {index + 1} and {self._ids[word] + 1}: remove one"
            )

    def __len__(self) -> int:
        return len(self.words)

    def ids(self, types: Sequence[str]) -> np.ndarray:
        """Look words up. RETURNS: (len(types),) int64, unknown words as 2 (``<UNK>``)."""
        get = self._ids.get
        return np.fromiter((get(word, UNK_TYPE) for word in types), dtype=np.int64, count=len(types))

    def check_frequency_order(self, counts: np.ndarray) -> bool:
        """Warn unless the words are in descending frequency.

        The file alone cannot tell: give the counts of the corpus that the vocabulary was built from. Words that are
        out of order are drawn too often or too seldom as negatives, and the sampled loss looks far better than it is.

        counts: (len(self),) how often each word occurs; see `word_counts`.
        RETURNS: whether the order is right (of the words after the special three).
        """
        if len(counts) != len(self):
            raise PretrainingError(f"{len(counts)} counts for a vocabulary of {len(self)} words: give one a word")
        rising = np.flatnonzero(np.diff(np.asarray(counts)[N_SPECIAL:]) > 0) + N_SPECIAL + 1
        if not len(rising):
            return True
        first = int(rising[0])
        warnings.warn(
            f"The vocabulary is not in descending frequency: {len(rising)} words are more frequent than the word "
            f"before them, the first is {self.words[first]!r} in line {first + 1} ({counts[first]} after "
            f"{counts[first - 1]}). Sampled softmax needs this order: sort the words, or let them be built",
            stacklevel=2,
        )
        return False

    @classmethod
    def from_disk(cls, path: str | Path) -> Vocabulary:
        """Read one word a line. RAISES: WeightsError if the file is missing, broken or not such a vocabulary."""
        return cls(load_vocabulary(path))


def build_vocabulary(corpus: EncodedCorpus, max_words: int, min_count: int = 1) -> Vocabulary:
    """Take the most frequent types of a corpus, in descending frequency, ties by string.

    max_words: V, rows of the softmax, the three special words included; 0 takes all.
    min_count: leave out rarer types.
    """
    if max_words < 0 or 0 < max_words <= N_SPECIAL:
        raise PretrainingError(f"max_words is {max_words}: give more than the {N_SPECIAL} special words, or 0 for all")
    end = int(np.searchsorted(-corpus.counts[N_SPECIAL:], -min_count, side="right")) + N_SPECIAL
    # A word with a line break (tokens of others' making) could not be written; it is rare enough to be unknown.
    words = filter(_fits_a_line, islice(corpus.types, N_SPECIAL, end))
    return Vocabulary([*SPECIAL_TYPES, *islice(words, max_words - N_SPECIAL if max_words else None)])


def word_counts(corpus: EncodedCorpus, vocabulary: Vocabulary) -> np.ndarray:
    """Count each word of a vocabulary in a corpus, unknown ones as ``<UNK>``. RETURNS: (V,) int64, sums to n_words."""
    counts = np.zeros(len(vocabulary), dtype=np.int64)
    np.add.at(counts, vocabulary.ids(corpus.types), corpus.counts)
    return counts


def log_frequencies(corpus: EncodedCorpus, vocabulary: Vocabulary) -> np.ndarray:
    """ln p_w of each word of a vocabulary in a corpus, unknown ones as ``<UNK>``: the distribution of its unigrams.

    A sentence ends in a boundary, in either direction, so both marks count as often as there are sentences. One more
    for each word: what never occurs is still possible.

    RETURNS: (V,) float64; the sum of its exponentials is 1.
    """
    counts = word_counts(corpus, vocabulary) + 1
    counts[[BOS_TYPE, EOS_TYPE]] += corpus.n_sentences
    return np.asarray(np.log(counts / counts.sum()))


def oov_share(corpus: EncodedCorpus, vocabulary: Vocabulary) -> float:
    """Share of a corpus's words that a vocabulary lacks, 0 to 1. A literal ``<UNK>`` in the text is no such word."""
    unknown = vocabulary.ids(corpus.types) == UNK_TYPE
    unknown[UNK_TYPE] = False
    return float(corpus.counts[unknown].sum() / corpus.n_words)


def _fits_a_line(word: str) -> bool:
    return "\n" not in word and "\r" not in word
