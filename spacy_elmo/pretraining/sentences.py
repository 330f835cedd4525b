"""Where sentences begin, in pretraining's text: by rule, a function of the tokens alone."""

from __future__ import annotations

from itertools import islice

import numpy as np
from spacy.attrs import IS_PUNCT, IS_SPACE, ORTH, SENT_START  # type: ignore[import-not-found]
from spacy.pipeline import Sentencizer
from spacy.strings import hash_string  # type: ignore[attr-defined]
from spacy.tokens import Doc

_LINE_BREAKS = frozenset("\n\r\x85\u2028\u2029")
_SENTENCE_ENDS = np.sort(np.array([hash_string(c) for c in Sentencizer.default_punct_chars], dtype=np.uint64))


def sentences_of(doc: Doc) -> list[list[str]]:
    """Split a Doc into sentences of words as `encode_corpus` does; nothing is set on the Doc."""
    orths, lengths, _ = split_sentences(doc)
    strings = doc.vocab.strings
    words = iter(orths.tolist())
    return [[strings[orth] for orth in islice(words, length)] for length in lengths.tolist()]


def split_sentences(doc: Doc) -> tuple[np.ndarray, np.ndarray, int]:
    """Split a Doc into sentences of words; nothing is set on the Doc.

    A Doc with sentence boundaries of its own (any token's ``is_sent_start`` is set) keeps these. In others a sentence
    begins where spaCy's ``Sentencizer().predict`` says and after a white space token with a line break. White space
    tokens are then dropped, and sentences left without words.

    The Sentencizer's rule in one pass over arrays: among the tokens that are neither punctuation nor a sentence end
    (`.`, `!`, `?`, ...), one begins a sentence if a sentence end stands between it and the one before it.

    RETURNS: hashes of the words (n_words,) uint64, in order; lengths of the sentences (n_sentences,) int64, all >= 1;
        the number of lines that hold words (of sentences, where the Doc has its own).
    """
    if not len(doc):
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), 0
    columns = doc.to_array([ORTH, IS_SPACE, IS_PUNCT, SENT_START])
    orths = np.ascontiguousarray(columns[:, 0])
    is_space = columns[:, 1] != 0
    nearest = np.minimum(np.searchsorted(_SENTENCE_ENDS, orths), len(_SENTENCE_ENDS) - 1)
    is_end = _SENTENCE_ENDS[nearest] == orths
    plain = np.flatnonzero(~(is_end | (columns[:, 2] != 0)))
    ends_so_far = np.cumsum(is_end)[plain]
    begins = np.zeros(len(orths) + 1, dtype=np.bool_)
    begins[plain] = np.diff(ends_so_far, prepend=0) != 0
    breaks = np.zeros(len(orths) + 1, dtype=np.bool_)  # before the token
    if is_space.any():
        strings = doc.vocab.strings
        for orth in set(orths[is_space].tolist()):
            if not _LINE_BREAKS.isdisjoint(strings[orth]):
                breaks[1:] |= orths == orth
    if columns[1:, 3].any():  # 1 begins a sentence, -1 does not, 0 is not set; the first token's says nothing
        begins[:-1] = columns[:, 3] == 1
        breaks = begins
    is_word = ~is_space
    sentence = np.cumsum(begins | breaks)[:-1][is_word]
    starts = np.flatnonzero(np.diff(sentence, prepend=-1))
    n_lines = int(np.count_nonzero(np.diff(np.cumsum(breaks)[:-1][is_word], prepend=-1)))
    return orths[is_word], np.diff(starts, append=len(sentence)), n_lines
