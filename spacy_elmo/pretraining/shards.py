"""Shards: a corpus in pieces, each encoded by itself with word types of its own, and how they become one corpus.

The corpus does not depend on where it was cut: words are told apart by spaCy's hash of the string, and numbered by
frequency once all shards are there.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import srsly
from spacy.attrs import ORTH  # type: ignore[import-not-found]
from spacy.strings import hash_string  # type: ignore[attr-defined]
from spacy.tokens import Doc

from ..errors import CorpusError
from .sentences import split_sentences
from .texts import Text, Tokenizing
from .word_types import SPECIAL_TYPES, smallest_dtype

# Shards whose types are joined at once, and types that are written at once.
_JOINED = 16
_BLOCK = 1 << 16
_BYTES = 1 << 20  # read at once
# What a file that is no whole zip file raises depends on where it breaks.
_BROKEN = (OSError, ValueError, TypeError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False, kw_only=True)
class Shard:
    """Some documents in a row.

    source: (32,) uint8, digest of what was encoded, see `digest_of`.
    hashes: (n_types,) uint64, ascending: spaCy's hashes of the words that occur.
    counts: (n_types,) int64, how often.
    text: (n_bytes,) uint8, these words in UTF-8, one after the other.
    text_lengths: (n_types,) uint32, bytes of each.
    ids: (n_words,) in the smallest unsigned integer: the words, as positions in `hashes`.
    sentence_lengths: (n_sentences,) uint32, words of each sentence, all >= 1.
    document_lengths: (n_documents,) uint32, sentences of each document, all >= 1.
    n_lines: () int64, lines that hold words.
    """

    source: np.ndarray
    hashes: np.ndarray
    counts: np.ndarray
    text: np.ndarray
    text_lengths: np.ndarray
    ids: np.ndarray
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray
    n_lines: np.ndarray

    @classmethod
    def load(cls, path: Path, source: bytes) -> Shard | None:
        """The shard in a file, its checksums compared; None if it is missing, damaged, or of another `source`."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                shard = cls(**arrays)
        except _BROKEN:
            return None
        return shard if shard.source.tobytes() == source else None

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        new = path.with_name(f"{path.stem}-{os.getpid()}.tmp")
        with new.open("wb") as file:
            np.savez(file, **vars(self))
        os.replace(new, path)

    def words(self) -> list[str]:
        """The word of each type."""
        text, ends = self.text.tobytes(), np.cumsum(self.text_lengths, dtype=np.int64).tolist()
        return [text[start:end].decode("utf8") for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def digest_of(texts: Sequence[Text], key: str) -> bytes:
    """What tells these documents, to be encoded as `key` says, from others."""
    digest = hashlib.sha256(key.encode("utf8"))
    for text in texts:
        data = text.to_array([ORTH]).tobytes() if isinstance(text, Doc) else srsly.msgpack_dumps(text)
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def encode_shard(texts: Sequence[Text], path: Path, *, source: bytes, tokenizing: Tokenizing) -> int:
    """Encode documents into a file; those without words vanish.

    source: their `digest_of`.
    RETURNS: the number of words. RAISES: CorpusError if the tokenizer fails, OSError if the disk is full.
    """
    word_of: dict[int, str] = {}
    orths, sentence_lengths, document_lengths = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], []
    n_lines = 0
    for doc in tokenizing.docs(texts):
        some, lengths, more_lines = split_sentences(doc)
        if not len(lengths):
            continue
        strings = doc.vocab.strings
        for orth in set(some.tolist()).difference(word_of):
            word_of[orth] = strings[orth]
        orths.append(some)
        sentence_lengths.append(lengths)
        document_lengths.append(len(lengths))
        n_lines += more_lines
    hashes, ids, counts = np.unique(np.concatenate(orths), return_inverse=True, return_counts=True)
    encoded = [word_of[orth].encode("utf8") for orth in hashes.tolist()]
    shard = Shard(
        source=np.frombuffer(source, dtype=np.uint8),
        hashes=hashes,
        counts=counts.astype(np.int64),
        text=np.frombuffer(b"".join(encoded), dtype=np.uint8),
        text_lengths=np.array(list(map(len, encoded)), dtype=np.uint32),
        ids=ids.astype(smallest_dtype(len(hashes))),
        sentence_lengths=np.concatenate(sentence_lengths).astype(np.uint32),
        document_lengths=np.array(document_lengths, dtype=np.uint32),
        n_lines=np.array(n_lines),
    )
    shard.save(path)
    return len(ids)


def merge_shards(shards: Mapping[Path, bytes], folder: Path) -> dict[str, Any]:
    """Make one corpus of shards in order: writes the files of `EncodedCorpus`, but for ``meta.json``.

    shards: the files in order, and the digests of what they hold.
    Memory: about 85 bytes a type; no Python object of one stays.
    RETURNS: the numbers in ``meta.json``, and sha256 of the files. RAISES: CorpusError if there are no words or a
        shard is damaged.
    """
    hashes, counts = _joined(shards)
    n_words = int(counts.sum())
    if not n_words:
        raise CorpusError("The corpus holds no words: check that its files are not empty")
    new_number = _write_types(shards, folder, hashes, counts)
    dtype = smallest_dtype(len(hashes))
    n_lines = n_sentences = n_documents = position = 0
    with (
        (folder / "ids.bin").open("wb") as ids_file,
        (folder / "sentence_starts.bin").open("wb") as sentences_file,
        (folder / "sentence_steps.bin").open("wb") as steps_file,
        (folder / "document_starts.bin").open("wb") as documents_file,
    ):
        for begun in (sentences_file, steps_file, documents_file):
            begun.write(bytes(8))
        for shard in _loaded(shards):
            numbers = new_number[np.searchsorted(hashes, shard.hashes)].astype(dtype)
            ids_file.write(numbers[shard.ids].tobytes())
            starts = position + np.cumsum(shard.sentence_lengths, dtype="<i8")
            sentences_file.write(starts.tobytes())
            steps_file.write((starts + n_sentences + 1 + np.arange(len(starts))).astype("<i8").tobytes())
            documents_file.write((n_sentences + np.cumsum(shard.document_lengths, dtype="<i8")).tobytes())
            position += len(shard.ids)
            n_lines += int(shard.n_lines)
            n_sentences += len(shard.sentence_lengths)
            n_documents += len(shard.document_lengths)
    digest = hashlib.sha256()
    for name in ("types.bin", "type_starts.bin", "ids.bin", "sentence_starts.bin", "document_starts.bin"):
        with (folder / name).open("rb") as file:
            while chunk := file.read(_BYTES):
                digest.update(chunk)
    return {
        "n_documents": n_documents,
        "n_lines": n_lines,
        "n_sentences": n_sentences,
        "n_words": n_words,
        "n_types": len(hashes),
        "sha256": digest.hexdigest(),
    }


def _loaded(shards: Mapping[Path, bytes]) -> Iterator[Shard]:
    for path, source in shards.items():
        shard = Shard.load(path, source)
        if shard is None:
            raise CorpusError(f"{path} was damaged after it was written: run again, it is then encoded anew")
        yield shard


def _joined(shards: Mapping[Path, bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The types of all shards, the special ones too. RETURNS: hashes (n_types,) uint64, ascending, and counts."""
    hashes = np.sort(np.array([hash_string(word) for word in SPECIAL_TYPES], dtype=np.uint64))
    counts = np.zeros(len(hashes), dtype=np.int64)
    loaded = _loaded(shards)
    while some := list(islice(loaded, _JOINED)):
        hashes = np.concatenate([hashes, *(shard.hashes for shard in some)])
        counts = np.concatenate([counts, *(shard.counts for shard in some)])
        order = np.argsort(hashes, kind="stable")
        hashes, counts = hashes[order], counts[order]
        begins = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]))  # uint64 wraps: only equal ones give 0
        hashes, counts = hashes[begins], np.add.reduceat(counts, begins)
    return hashes, counts


def _write_types(shards: Mapping[Path, bytes], folder: Path, hashes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Write the types and their counts in the corpus's order: the special ones, then descending count, ties by string.

    RETURNS: (n_types,) uint32, the number of the type of each hash.
    """
    words = np.empty(len(hashes), dtype=np.dtypes.StringDType())
    unseen = np.ones(len(hashes), dtype=np.bool_)
    for shard in _loaded(shards):
        where = np.searchsorted(hashes, shard.hashes)
        new = np.flatnonzero(unseen[where])
        if len(new):
            of_shard = shard.words()
            words[where[new]] = [of_shard[i] for i in new.tolist()]
            unseen[where[new]] = False
    special = np.searchsorted(hashes, np.array([hash_string(word) for word in SPECIAL_TYPES], dtype=np.uint64))
    words[special] = list(SPECIAL_TYPES)
    rank = -counts
    rank[special] = np.iinfo(np.int64).min + np.arange(len(special))
    order = np.argsort(words, kind="stable")
    order = order[np.argsort(rank[order], kind="stable")]
    (folder / "counts.bin").write_bytes(counts[order].astype("<i8").tobytes())
    end = 0
    with (folder / "types.bin").open("wb") as text_file, (folder / "type_starts.bin").open("wb") as starts_file:
        starts_file.write(bytes(8))
        for first in range(0, len(order), _BLOCK):
            encoded = [word.encode("utf8") for word in words[order[first : first + _BLOCK]].tolist()]
            text_file.write(b"".join(encoded))
            ends = end + np.cumsum(list(map(len, encoded)), dtype="<i8")
            starts_file.write(ends.tobytes())
            end = int(ends[-1])
    new_number = np.empty(len(order), dtype=np.uint32)
    new_number[order] = np.arange(len(order), dtype=np.uint32)
    return new_number
