"""Raw text to an encoded corpus on disk: readers of text files, sentences by rule, word ids that are memory-mapped.

A reader is a registered function that gives a callable ``nlp -> Iterator[Doc]``, one Doc a document; `encode_corpus`
streams what it gives into a folder of plain arrays. No step holds the text: memory grows with the number of word
*types* only.
"""

from __future__ import annotations

import bz2
import glob
import gzip
import hashlib
import json
import lzma
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import spacy
import srsly
from spacy.attrs import IS_PUNCT, IS_SPACE, ORTH  # type: ignore[import-not-found]
from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.strings import StringStore, hash_string  # type: ignore[attr-defined]
from spacy.tokens import Doc, DocBin

from ..bilm.characters import BOS, EOS, UNK
from ..errors import CorpusError

BOS_TYPE, EOS_TYPE, UNK_TYPE = 0, 1, 2
SPECIAL_TYPES = (BOS, EOS, UNK)

# Characters. A document ends at the first line end past this size, so that a file without blank lines streams.
DOCUMENT_SIZE = 100_000
# Characters. A longer line is cut at white space; spaCy's own limit (nlp.max_length) is the same by default.
LONGEST_LINE = 1_000_000

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_SUFFIXES = (".txt", ".jsonl", *(kind + packed for kind in (".txt", ".jsonl") for packed in _OPENERS), ".spacy")
_CUT_AT = (" ", "\t", "\xa0", "\u3000")
_LINE_BREAKS = frozenset("\n\r\x85\u2028\u2029")
_SENTENCE_ENDS = np.sort(np.array([hash_string(c) for c in Sentencizer.default_punct_chars], dtype=np.uint64))

# Of the folder's layout and of the rules that fill it: another number is another key, hence another corpus.
_FORMAT = 1
_FILES = ("meta.json", "types.json", "counts.bin", "ids.bin", "sentence_starts.bin", "document_starts.bin")
_FLUSH_WORDS = 1 << 16
_CHUNK = 1 << 20


# ---------------------------------------------------------------------------------------------------------- readers


@spacy.registry.readers("spacy-elmo.RawText.v1")
def raw_text(path: str | Path | None, *, limit_words: int = 0) -> RawText:
    """Build a reader of text files.

    path: a file, a folder (searched recursively for the known suffixes) or a glob pattern (``**`` goes into folders).
        Several files are read in sorted order. Known are ``.txt`` and ``.jsonl``, plain or followed by ``.gz``,
        ``.bz2`` or ``.xz``, and ``.spacy``; see `RawText`.
    limit_words: stop after so many words (white space not counted); 0 reads everything.
    RETURNS: a callable ``nlp -> Iterator[Doc]``.
    """
    return RawText(path, limit_words=limit_words)


class RawText:
    """Documents of text files, tokenised by ``nlp.make_doc``.

    - ``.txt``: UTF-8, a paragraph or sentence a line; a blank line ends a document, and so does the first line end
      past 100,000 characters. A line of more than a million characters (or ``nlp.max_length``) is cut at white space.
    - ``.jsonl``: a document a line, ``{"text": "..."}`` or ``{"tokens": ["...", ...]}``; tokens are kept as they are.
    - ``.spacy``: spaCy's DocBin; tokens are kept as they are. Such a file is loaded whole.
    """

    def __init__(self, path: str | Path | None, *, limit_words: int = 0) -> None:
        if limit_words < 0:
            raise CorpusError(f"limit_words is {limit_words}: give the number of words to read, or 0 for all")
        self.path = path
        self.limit_words = limit_words

    def __call__(self, nlp: Language) -> Iterator[Doc]:
        """Read the files.

        nlp: its tokenizer and vocab are used, no component is run.
        RETURNS: an iterator of Docs, one a document. Files are looked up at once, read as the iterator goes.
        RAISES: CorpusError if nothing is found; while iterating, if a file cannot be read (with file and line).
        """
        docs = (doc for path in self.files() for doc in _read_file(path, nlp))
        return limited(docs, self.limit_words) if self.limit_words else docs

    def files(self) -> list[Path]:
        """Find the files that are read, sorted. RAISES: CorpusError if there is none or one of unknown kind."""
        return _find_files(self.path)

    def fingerprint(self) -> str:
        """Identify the files as they are now (names, sizes, times of change), without reading them."""
        files = [[file.as_posix(), (status := file.stat()).st_size, status.st_mtime_ns] for file in self.files()]
        return json.dumps(["RawText", self.limit_words, files])


def limited(docs: Iterable[Doc], n_words: int) -> Iterator[Doc]:
    """Yield Docs until they hold `n_words` tokens that are not white space; the last Doc is cut there."""
    for doc in docs:
        is_word = doc.to_array([IS_SPACE]).ravel() == 0
        n_found = int(np.count_nonzero(is_word))
        if n_found >= n_words:
            yield doc if n_found == n_words else doc[: int(np.flatnonzero(is_word)[n_words - 1]) + 1].as_doc()
            return
        n_words -= n_found
        yield doc


def corpus_key(reader: Callable[[Language], Iterator[Doc]], nlp: Language, *, settings: Any = None) -> str:
    """Identify what encoding `reader` with `nlp` will give, for `encode_corpus`.

    reader: its ``fingerprint()`` is asked where it has one (RawText: names, sizes and times of the files).
    nlp: language, tokenizer and spaCy's version count.
    settings: anything else that counts, as JSON data; for a reader without ``fingerprint`` its config block.
    RETURNS: a hex digest.
    """
    fingerprint = getattr(reader, "fingerprint", None)
    about_reader = fingerprint() if fingerprint is not None else type(reader).__qualname__
    about_nlp = [spacy.__version__, nlp.lang, nlp.config["nlp"]["tokenizer"]]
    return _digest(json.dumps([_FORMAT, about_nlp, about_reader, settings], sort_keys=True).encode("utf8"))


def _find_files(path: str | Path | None) -> list[Path]:
    if path is None or not str(path):
        raise CorpusError("No path of raw text is given: set 'path' of spacy-elmo.RawText.v1 to a file, folder or glob")
    given = Path(path).expanduser()
    kinds = ", ".join(_SUFFIXES)
    if given.is_dir():
        found = [file for file in given.rglob("*") if file.is_file() and _kind(file) is not None]
        if not found:
            raise CorpusError(f"The folder '{given}' holds no raw text: put files of these kinds there: {kinds}")
    elif given.is_file():
        found = [given]
    elif glob.has_magic(str(given)):
        found = [file for name in glob.glob(str(given), recursive=True) if (file := Path(name)).is_file()]
        if not found:
            raise CorpusError(f"The pattern '{given}' matches no file: check it (working folder: {Path.cwd()})")
    else:
        raise CorpusError(f"There is no file or folder '{given}': check the path (working folder: {Path.cwd()})")
    for file in found:
        if _kind(file) is None:
            raise CorpusError(f"'{file}' is of no kind that can be read: rename or convert it to one of {kinds}")
    return sorted(found, key=lambda file: file.as_posix())


def _kind(path: Path) -> str | None:
    name = path.name.lower()
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return "." + suffix.split(".")[1]
    return None


def _read_file(path: Path, nlp: Language) -> Iterator[Doc]:
    kind = _kind(path)
    if kind == ".spacy":
        yield from _read_docbin(path, nlp)
    elif kind == ".jsonl":
        yield from _read_jsonl(path, nlp)
    else:
        yield from _read_txt(path, nlp)


def _read_txt(path: Path, nlp: Language) -> Iterator[Doc]:
    longest = min(LONGEST_LINE, nlp.max_length)
    enough = min(DOCUMENT_SIZE, longest)
    paragraphs: list[str] = []
    size = 0  # of the paragraphs and the line breaks between them
    for line, ends in _text_lines(path, longest):
        blank = not line or line.isspace()
        if paragraphs and (blank or size + len(line) > longest):
            yield nlp.make_doc("\n".join(paragraphs))
            paragraphs, size = [], 0
        if blank:
            continue
        paragraphs.append(line)
        size += len(line) + 1
        if size > enough or not ends:
            yield nlp.make_doc("\n".join(paragraphs))
            paragraphs, size = [], 0
    if paragraphs:
        yield nlp.make_doc("\n".join(paragraphs))


def _read_jsonl(path: Path, nlp: Language) -> Iterator[Doc]:
    longest = min(LONGEST_LINE, nlp.max_length)
    for number, raw in _byte_lines(path, -1):
        line = _decode(path, number, raw)
        if not line or line.isspace():
            continue
        try:
            entry = json.loads(line)
            if "\\u" in line:  # JSON can spell half a surrogate pair, which no tokenizer takes
                json.dumps(entry, ensure_ascii=False).encode("utf8")
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{path}, line {number}: not valid JSON ({error}). Mend or remove this line") from error
        if not isinstance(entry, dict):
            entry = {}
        text, tokens = entry.get("text"), entry.get("tokens")
        if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
            yield Doc(nlp.vocab, words=[token for token in tokens if token])
        elif isinstance(text, str) and tokens is None:
            for piece in _cut(text, longest):
                yield nlp.make_doc(piece)
        else:
            raise CorpusError(
                f'{path}, line {number}: neither {{"text": "..."}} nor {{"tokens": ["...", ...]}}. '
                "Give each document as a JSON object with one of them"
            )


def _read_docbin(path: Path, nlp: Language) -> Iterator[Doc]:
    # What a broken file raises depends on where it breaks (zlib, msgpack, numpy, spaCy): all of it means the same.
    try:
        docs = DocBin().from_disk(path).get_docs(nlp.vocab)
    except Exception as error:
        raise _broken_docbin(path, error) from error
    while True:
        try:
            doc = next(docs, None)
        except Exception as error:
            raise _broken_docbin(path, error) from error
        if doc is None:
            return
        yield doc


def _broken_docbin(path: Path, error: Exception) -> CorpusError:
    return CorpusError(f"{path}: not a readable .spacy file ({error!r}). Write it again with spaCy's DocBin.to_disk")


def _text_lines(path: Path, longest: int) -> Iterator[tuple[str, bool]]:
    """Yield lines of at most `longest` characters and whether the line ends there (or was cut)."""
    for number, raw, ends in _bounded_lines(path, 4 * longest):
        pieces = _cut(_decode(path, number, raw), longest)
        for index, piece in enumerate(pieces, start=1):
            yield piece, ends and index == len(pieces)


def _bounded_lines(path: Path, n_bytes: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yield line numbers, lines and whether they end there; a line past `n_bytes` comes in several parts."""
    rest, number = b"", 1
    for _, raw in _byte_lines(path, n_bytes):
        line = rest + raw
        if raw.endswith(b"\n") or len(raw) < n_bytes:
            yield number, line, True
            rest, number = b"", number + 1
            continue
        cut = max(line.rfind(b" "), line.rfind(b"\t")) + 1
        if cut == 0:
            cut = len(line)
            while cut > len(line) - 4 and line[cut - 1] & 0b1100_0000 == 0b1000_0000:
                cut -= 1  # back over the continuation bytes of a character that may not be whole
            cut -= 1
        yield number, line[:cut], False
        rest = line[cut:]
    if rest:
        yield number, rest, True


def _byte_lines(path: Path, n_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield numbered lines, or parts of at most `n_bytes` of them (-1: no limit; only then are the numbers lines)."""
    number = 0
    try:
        with _OPENERS.get(path.suffix.lower(), open)(path, "rb") as stream:
            while raw := _readline(stream, n_bytes):
                number += 1
                yield number, raw
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise CorpusError(
            f"{path}, after line {number}: cannot be read ({error}). Check that the file is whole and what its "
            "suffix says; if it was downloaded, download it again"
        ) from error


def _readline(stream: IO[bytes], n_bytes: int) -> bytes:
    return stream.readline(n_bytes)


def _decode(path: Path, number: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{path}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start}: {error.reason}). "
            "Convert the file to UTF-8, for instance with iconv, or remove this line"
        ) from error


def _cut(text: str, longest: int) -> list[str]:
    """Cut a text at white space into pieces of at most `longest` characters (in a word only where it must)."""
    pieces, start = [], 0
    while len(text) - start > longest:
        cut = max(text.rfind(space, start, start + longest) for space in _CUT_AT) + 1
        if cut <= start:
            cut = start + longest
        pieces.append(text[start:cut])
        start = cut
    return [*pieces, text[start:]]


# -------------------------------------------------------------------------------------------------------- sentences


def sentences_of(doc: Doc) -> list[list[str]]:
    """Split a Doc into sentences of words as `encode_corpus` does; nothing is set on the Doc."""
    orths, lengths, _ = split_sentences(doc)
    strings = doc.vocab.strings
    words = iter(orths.tolist())
    return [[strings[orth] for orth in islice(words, length)] for length in lengths.tolist()]


def split_sentences(doc: Doc) -> tuple[np.ndarray, np.ndarray, int]:
    """Split a Doc into sentences of words; nothing is set on the Doc.

    A sentence begins where spaCy's ``Sentencizer().predict`` says and after a white space token with a line break.
    White space tokens are then dropped, and sentences left without words.

    The Sentencizer's rule in one pass over arrays: among the tokens that are neither punctuation nor a sentence end
    (`.`, `!`, `?`, ...), one begins a sentence if a sentence end stands between it and the one before it.

    RETURNS: hashes of the words (n_words,) uint64, in order; lengths of the sentences (n_sentences,) int64, all >= 1;
        the number of lines that hold words.
    """
    if not len(doc):
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64), 0
    columns = doc.to_array([ORTH, IS_SPACE, IS_PUNCT])
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
    is_word = ~is_space
    sentence = np.cumsum(begins | breaks)[:-1][is_word]
    starts = np.flatnonzero(np.diff(sentence, prepend=-1))
    n_lines = int(np.count_nonzero(np.diff(np.cumsum(breaks)[:-1][is_word], prepend=-1)))
    return orths[is_word], np.diff(starts, append=len(sentence)), n_lines


# --------------------------------------------------------------------------------------------------- encoded corpus


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
    corpus is built in ``<folder>.partial`` and renamed when it is whole; a ``.partial`` found there is thrown away, so
    one process at a time may build a folder.

    docs: documents; sentences are found by `split_sentences`. Read once, never held.
    folder: where the corpus lies.
    key: identifies source and settings, see `corpus_key`.
    progress: called with the number of further words now and then (``tqdm.update``).
    RAISES: CorpusError if there are no words, or the folder holds something else.
    """
    folder = Path(folder)
    if folder.exists():
        if not folder.is_dir() or not {file.name for file in folder.iterdir()} <= set(_FILES):
            raise CorpusError(f"'{folder}' is there and not an encoded corpus: give another folder, or remove it")
        try:
            corpus = EncodedCorpus.open(folder)
        except CorpusError:
            pass  # not whole: built anew
        else:
            if corpus.meta["key"] == key:
                return corpus
            del corpus  # closes its maps: Windows removes no open file
    partial = folder.with_name(folder.name + ".partial")
    _remove(partial)
    partial.mkdir(parents=True)
    try:
        _write(docs, partial, key, progress)
        _remove(folder)
        os.replace(partial, folder)
    finally:
        _remove(partial)
    return EncodedCorpus.open(folder)


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
