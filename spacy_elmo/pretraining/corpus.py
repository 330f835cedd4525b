"""Docs to an encoded corpus on disk: sentences by rule, and word ids that are memory-mapped.

`encode_corpus` streams what a reader gives into a folder of plain arrays. No step holds the text: memory grows with
the number of word *types* only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import spacy
import srsly
from spacy.attrs import IS_PUNCT, IS_SPACE, ORTH, SENT_START  # type: ignore[import-not-found]
from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.strings import StringStore, hash_string  # type: ignore[attr-defined]
from spacy.tokens import Doc

from ..bilm.characters import BOS, EOS, UNK
from ..errors import CorpusError, PretrainingError
from .locks import locked

BOS_TYPE, EOS_TYPE, UNK_TYPE = 0, 1, 2
SPECIAL_TYPES = (BOS, EOS, UNK)

_LINE_BREAKS = frozenset("\n\r\x85\u2028\u2029")
_SENTENCE_ENDS = np.sort(np.array([hash_string(c) for c in Sentencizer.default_punct_chars], dtype=np.uint64))

# Of the folder's layout and of the rules that fill it: another number is another key, hence another corpus.
_FORMAT = 1
_FILES = ("meta.json", "types.json", "counts.bin", "ids.bin", "sentence_starts.bin", "document_starts.bin")
# meta.json alone says little: pipelines have one too.
_TELLING_FILES = frozenset(_FILES[1:])
_FLUSH_WORDS = 1 << 16
_CHUNK = 1 << 20


def corpus_key(reader: Callable[[Language], Iterator[Doc]], nlp: Language, *, settings: Any = None) -> str:
    """Identify what encoding `reader` with `nlp` will give, for `encode_corpus`.

    reader: its ``fingerprint()`` is asked where it has one (RawText: names, sizes and times of the files).
    nlp: language, tokenizer (of a saved pipeline: its rules too) and spaCy's version count.
    settings: anything else that counts, as JSON data; for a reader without ``fingerprint`` its config block.
    RETURNS: a hex digest.
    """
    fingerprint = getattr(reader, "fingerprint", None)
    about_reader = fingerprint() if fingerprint is not None else type(reader).__qualname__
    about_nlp = [spacy.__version__, nlp.lang, nlp.config["nlp"]["tokenizer"]]
    if nlp.path is not None:
        about_nlp.append(_digest(nlp.to_bytes(exclude=["vocab", "meta.json", "config.cfg", *nlp.component_names])))
    return _digest(json.dumps([_FORMAT, about_nlp, about_reader, settings], sort_keys=True).encode("utf8"))


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


@dataclass(frozen=True, eq=False)
class EncodedCorpus:
    """A corpus as arrays on disk.

    types: the word types. The first three are ``<S>``, ``</S>`` and ``<UNK>`` (literal ones in the text, if any);
        then descending frequency, ties by string.
    counts: (n_types,) int64, how often each type occurs.
    ids: (n_words,) int32, memory-mapped: the type of each word of each sentence, one after the other.
    sentence_starts: (n_sentences + 1,) int64, memory-mapped: where in `ids` each sentence begins, and the end.
    document_starts: (n_documents + 1,) int64, memory-mapped: which sentence each document begins with, and the end.
    meta: key, n_documents, n_lines (lines with words), n_sentences, n_words, n_types, sha256 of types, ids and starts.
    """

    folder: Path
    types: list[str]
    counts: np.ndarray
    ids: np.ndarray
    sentence_starts: np.ndarray
    document_starts: np.ndarray
    meta: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> EncodedCorpus:
        """Open a finished folder. RAISES: CorpusError if it is missing, of another format or incomplete."""
        folder = Path(folder)
        try:
            meta = srsly.read_json(folder / "meta.json")
            if meta["format"] != _FORMAT:
                raise ValueError(f"format {meta['format']}, not {_FORMAT}")
            types = json.loads((folder / "types.json").read_bytes())
            corpus = cls(
                folder=folder,
                types=types,
                counts=np.fromfile(folder / "counts.bin", dtype="<i8"),
                ids=_map(folder / "ids.bin", "<i4", meta["n_words"]),
                sentence_starts=_map(folder / "sentence_starts.bin", "<i8", meta["n_sentences"] + 1),
                document_starts=_map(folder / "document_starts.bin", "<i8", meta["n_documents"] + 1),
                meta=meta,
            )
            if not len(types) == len(corpus.counts) == meta["n_types"]:
                raise ValueError(f"{len(types)} types, {len(corpus.counts)} counts, {meta['n_types']} expected")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorpusError(
                f"'{folder}' is not a whole encoded corpus ({error!r}): remove the folder and encode it again"
            ) from error
        return corpus

    @property
    def n_types(self) -> int:
        """Number of types, the three special ones included."""
        return len(self.types)

    @property
    def n_words(self) -> int:
        """Number of words."""
        return len(self.ids)

    @property
    def n_sentences(self) -> int:
        """Number of sentences."""
        return len(self.sentence_starts) - 1

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return len(self.document_starts) - 1

    def sentences(self) -> Iterator[list[str]]:
        """Yield the words of each sentence, in the order of the text."""
        for start, end in zip(self.sentence_starts[:-1], self.sentence_starts[1:], strict=True):
            yield [self.types[index] for index in self.ids[start:end].tolist()]

    def truncated_words(self, max_characters_per_token: int) -> int:
        """Count the words of more bytes than the C - 2 that the token encoder reads."""
        room = max_characters_per_token - 2
        return sum(int(n) for word, n in zip(self.types, self.counts, strict=True) if len(word.encode("utf8")) > room)


def encode_corpus(
    docs: Iterable[Doc], folder: str | Path, *, key: str, progress: Callable[[int], object] | None = None
) -> EncodedCorpus:
    """Encode documents into a folder, or open what is there.

    A finished folder of the same key is opened and `docs` left untouched; one of another key is replaced. The new
    corpus is built in ``<folder>.partial`` and renamed when it is whole. Processes that want the same folder take
    turns: one encodes, the others wait and open what it made. Foreign files in the folder are left there.

    docs: documents; sentences are found by `split_sentences`. Read once, never held.
    folder: where the corpus lies.
    key: identifies source and settings, see `corpus_key`.
    progress: called with the number of further words now and then (``tqdm.update``).
    RAISES: CorpusError if there are no words, or the folder holds something else; PretrainingError if the folder
        cannot be written.
    """
    folder = Path(folder)
    partial, lock = (folder.with_name(folder.name + suffix) for suffix in (".partial", ".lock"))
    try:
        corpus = _opened(folder, key)
        if corpus is not None:
            return corpus
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, wait=f"Waiting for another process that encodes the same text into {folder}"):
            corpus = _opened(folder, key)  # what that process made
            if corpus is not None:
                return corpus
            _remove(partial)  # what a killed process left
            partial.mkdir()
            try:
                _write(docs, partial, key, progress)
                _replace(folder, partial)
            finally:
                _remove(partial)
            return EncodedCorpus.open(folder)
    except OSError as error:
        raise PretrainingError(f"cannot encode text into {folder}: {error}") from error


def _opened(folder: Path, key: str) -> EncodedCorpus | None:
    """The corpus in a folder, if it is whole and of this key. CorpusError for a folder that holds no corpus at all."""
    if not folder.exists():
        return None
    # Hidden files are no one's work (.DS_Store).
    names = {file.name for file in folder.iterdir() if not file.name.startswith(".")} if folder.is_dir() else {""}
    if names and names.isdisjoint(_TELLING_FILES):
        raise CorpusError(f"'{folder}' is there and not an encoded corpus: give another folder, or remove it")
    try:
        corpus = EncodedCorpus.open(folder)
    except CorpusError:
        return None  # not whole: built anew
    return corpus if corpus.meta.get("key") == key else None


def _replace(folder: Path, new: Path) -> None:
    """Put a new corpus in the place of an old one, with the foreign files that lie there."""
    if folder.exists():
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
        for foreign in folder.iterdir():
            os.replace(foreign, new / foreign.name)
        folder.rmdir()
    os.replace(new, folder)


class _TypeTable(dict[int, int]):
    """Word hash -> number of the type, in order of appearance; a new hash is looked up as a string once."""

    def __init__(self) -> None:
        super().__init__((hash_string(word), number) for number, word in enumerate(SPECIAL_TYPES))
        self.words = list(SPECIAL_TYPES)
        self.strings = StringStore()

    def __missing__(self, orth: int) -> int:
        number = self[orth] = len(self.words)
        self.words.append(self.strings[orth])
        return number


def _write(docs: Iterable[Doc], folder: Path, key: str, progress: Callable[[int], object] | None) -> None:
    table = _TypeTable()
    number_of = table.__getitem__  # calls __missing__; one C call a word in the map below
    counts = np.zeros(0, dtype=np.int64)
    pending: list[np.ndarray] = []
    n_words = n_lines = n_sentences = n_documents = n_pending = 0
    seen = folder / "seen.bin"
    with (
        open(seen, "wb") as ids_file,
        open(folder / "sentence_starts.bin", "wb") as sentences_file,
        open(folder / "document_starts.bin", "wb") as documents_file,
    ):

        def flush() -> None:
            nonlocal counts, n_pending
            ids = np.concatenate(pending) if pending else np.zeros(0, dtype="<i4")
            ids_file.write(ids.tobytes())
            more = np.bincount(ids, minlength=len(table.words))
            more[: len(counts)] += counts
            counts = more
            pending.clear()
            if progress is not None:
                progress(n_pending)
            n_pending = 0

        sentences_file.write(_int64(0))
        documents_file.write(_int64(0))
        for doc in docs:
            orths, lengths, more_lines = split_sentences(doc)
            if not len(lengths):
                continue
            table.strings = doc.vocab.strings
            pending.append(np.fromiter(map(number_of, orths.tolist()), dtype="<i4", count=len(orths)))
            sentences_file.write((n_words + np.cumsum(lengths)).astype("<i8").tobytes())
            n_words += len(orths)
            n_lines += more_lines
            n_sentences += len(lengths)
            n_documents += 1
            documents_file.write(_int64(n_sentences))
            n_pending += len(orths)
            if n_pending >= _FLUSH_WORDS:
                flush()
        flush()
    if not n_words:
        raise CorpusError("The corpus holds no words: check that its files are not empty")

    words = table.words
    order = [0, 1, 2, *sorted(range(3, len(words)), key=lambda number: (-counts[number], words[number]))]
    (folder / "types.json").write_text(json.dumps([words[number] for number in order]), encoding="ascii")
    (folder / "counts.bin").write_bytes(counts[order].astype("<i8").tobytes())
    new_number = np.empty(len(order), dtype="<i4")
    new_number[order] = np.arange(len(order), dtype="<i4")
    with open(seen, "rb") as old, open(folder / "ids.bin", "wb") as new:
        while chunk := old.read(4 * _CHUNK):
            new.write(new_number[np.frombuffer(chunk, dtype="<i4")].tobytes())
    seen.unlink()

    digest = hashlib.sha256()
    for name in ("types.json", "ids.bin", "sentence_starts.bin", "document_starts.bin"):
        with open(folder / name, "rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    meta = {
        "format": _FORMAT,
        "key": key,
        "n_documents": n_documents,
        "n_lines": n_lines,
        "n_sentences": n_sentences,
        "n_words": n_words,
        "n_types": len(words),
        "sha256": digest.hexdigest(),
    }
    srsly.write_json(folder / "meta.json", meta)


def _int64(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def _map(path: Path, dtype: str, n: int) -> np.ndarray:
    mapped = np.memmap(path, dtype=dtype, mode="r")
    if len(mapped) != n:
        raise ValueError(f"{path.name}: {len(mapped)} values, {n} expected")
    return mapped


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
