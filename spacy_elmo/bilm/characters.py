"""Words to character ids: what a word is spelled with, between a begin and an end mark, padded to a fixed length.

bilm-tf spells bytes of UTF-8. Ids are its *unshifted* ones everywhere in this package: bytes are 0 to 255, then five
marks. The public inference code shifts them by one to make room for a padding token; we never feed padding to the
encoder. ELMoForManyLangs spells Unicode code points by a table that comes with the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

BOS = "<S>"
EOS = "</S>"
UNK = "<UNK>"

BOS_CHARACTER = 256
EOS_CHARACTER = 257
BEGIN_WORD = 258
END_WORD = 259
PAD_CHARACTER = 260
N_CHARACTERS = 261


class Marks(NamedTuple):
    """The words that stand for a sentence's begin and end, and for what is in no table."""

    begin: str
    end: str
    unknown: str


BILM_TF_MARKS = Marks(BOS, EOS, UNK)
MANY_LANGS_MARKS = Marks("<bos>", "<eos>", "<oov>")
# What every character table of ELMoForManyLangs holds beside its characters.
CHARACTER_MARKS = ("<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>")


def character_ids(words: Sequence[str], max_characters_per_token: int) -> np.ndarray:
    """Spell words as character ids.

    A word is its UTF-8 bytes, cut to C - 2 of them (by byte: the cut may split a character), between a begin and
    an end mark. What UTF-8 cannot encode (lone surrogates) vanishes. ``<S>`` and ``</S>`` give the two boundary rows.

    words: n words.
    max_characters_per_token: C.
    RETURNS: (n, C) int64, padded with ``PAD_CHARACTER``.
    """
    room = max_characters_per_token - 2
    spelled = [_content(word, room) for word in words]
    ids = np.full((len(spelled), max_characters_per_token), PAD_CHARACTER, dtype=np.int64)
    if not spelled:
        return ids
    lengths = np.fromiter(map(len, spelled), dtype=np.int64, count=len(spelled))
    # All bytes at once: the position of each is its word's row and its place in the word.
    flat = np.frombuffer(b"".join(spelled), dtype=np.uint8)
    rows = np.repeat(np.arange(len(spelled)), lengths)
    columns = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids[rows, columns + 1] = flat
    ids[:, 0] = BEGIN_WORD
    ids[np.arange(len(spelled)), lengths + 1] = END_WORD
    for row, word in enumerate(words):
        if word in (BOS, EOS):
            ids[row] = PAD_CHARACTER
            ids[row, :3] = (BEGIN_WORD, BOS_CHARACTER if word == BOS else EOS_CHARACTER, END_WORD)
    return ids


def _content(word: str, room: int) -> bytes:
    """The bytes of a word that are read. Only a word's head is encoded, so that a huge token costs nothing."""
    head = word[:room].encode("utf8", "ignore")
    if len(head) < room < len(word):
        head = word.encode("utf8", "ignore")  # surrogates vanished from the head: what follows moves up
    return head[:room]


def code_point_ids(words: Sequence[str], rows: Mapping[str, int], max_characters_per_token: int) -> np.ndarray:
    """Spell words as ELMoForManyLangs does.

    A word is its first C - 2 code points (one that is in no row: ``<oov>``) between two marks, padded with ``<pad>``.
    The begin mark is the row of ``<eow>`` and the end mark that of ``<bow>``: swapped in that program, in training
    too, so the weights want it so. ``<bos>`` and ``<eos>`` as words are spelled by their own rows.

    words: n words. rows: of each character and of ``CHARACTER_MARKS``, by their text.
    max_characters_per_token: C.
    RETURNS: (n, C) int64.
    """
    room = max_characters_per_token - 2
    begin, end, unknown = rows["<eow>"], rows["<bow>"], rows["<oov>"]
    ids = np.full((len(words), max_characters_per_token), rows["<pad>"], dtype=np.int64)
    for row, word in enumerate(words):
        boundary = word in MANY_LANGS_MARKS[:2]
        content = [rows[word]] if boundary else [rows.get(character, unknown) for character in word[:room]]
        ids[row, : len(content) + 2] = (begin, *content, end)
    return ids
