"""Words to character ids: bytes of UTF-8 between a begin and an end mark, padded to a fixed length.

Ids are bilm-tf's *unshifted* ones everywhere in this package: bytes are 0 to 255, then five marks. The public
inference code shifts them by one to make room for a padding token; we never feed padding to the encoder.
"""

from __future__ import annotations

from collections.abc import Sequence

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
