"""Readers of raw text files: a callable ``nlp -> Iterator[Doc]``, one Doc a document. No step holds a file's text."""

from __future__ import annotations

import bz2
import glob
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import spacy
from spacy.attrs import IS_SPACE  # type: ignore[import-not-found]
from spacy.language import Language
from spacy.tokens import Doc, DocBin

from ..errors import CorpusError

# Characters. A document ends at the first line end past this size, so that a file without blank lines streams.
DOCUMENT_SIZE = 100_000
# Characters. A longer line is cut at white space; spaCy's own limit (nlp.max_length) is the same by default.
LONGEST_LINE = 1_000_000

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_SUFFIXES = (".txt", ".jsonl", *(kind + packed for kind in (".txt", ".jsonl") for packed in _OPENERS), ".spacy")
_CUT_AT = (" ", "\t", "\xa0", "\u3000")
_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = 1024  # bytes; a pointer is shorter


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
        RAISES: CorpusError if nothing is found; while iterating, if a file cannot be read (with file and line), or no
            file holds any text.
        """
        docs = _read_files(self.files(), nlp)
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


def sentence_lines(path: str | Path) -> Iterator[list[str]]:
    """Read text that is tokenised already: a sentence a line, its words between white space, as bilm-tf reads it.

    path: as of `raw_text`, of ``.txt`` files only. Blank lines are left out: they are sentences of no words.
    RAISES: CorpusError if nothing is found, or a file cannot be read.
    """
    empty = True
    for file in _find_files(path):
        if _kind(file) != ".txt":
            raise CorpusError(f"{file} is no .txt file, plain or compressed: only these have a sentence a line")
        _check_lfs_pointer(file)
        for number, raw in _byte_lines(file, -1):
            words = _decode(file, number, raw).split()
            if words:
                empty = False
                yield words
    if empty:
        raise CorpusError(f"There is no text in {path}: empty, or white space only")


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


def _read_files(paths: list[Path], nlp: Language) -> Iterator[Doc]:
    empty = True
    for path in paths:
        for doc in _read_file(path, nlp):
            empty = empty and (not len(doc) or doc.text.isspace())
            yield doc
    if empty:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        raise CorpusError(f"There is no text in {paths[0]}{more}: empty, or white space only")


def _read_file(path: Path, nlp: Language) -> Iterator[Doc]:
    _check_lfs_pointer(path)
    kind = _kind(path)
    if kind == ".spacy":
        yield from _read_docbin(path, nlp)
    elif kind == ".jsonl":
        yield from _read_jsonl(path, nlp)
    else:
        yield from _read_txt(path, nlp)


def _check_lfs_pointer(path: Path) -> None:
    try:
        with path.open("rb") as file:
            head = file.read(_LFS_SIZE)
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}") from error
    if head.startswith(_LFS_MAGIC) and len(head) < _LFS_SIZE:
        raise CorpusError(
            f"{path} is a git-LFS pointer, not the text itself: run `git lfs pull` where it was cloned, or download it"
        )


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
