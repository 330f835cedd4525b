"""Bytes of files, packed or plain, as lines of text. No step holds a file; what is damaged is refused or noted."""

from __future__ import annotations

import atexit
import bz2
import gzip
import io
import lzma
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ..errors import CorpusError
from .notes import Damage

LongLines = Literal["cut", "skip", "raise"]

# Characters. A longer line is cut at white space; spaCy's own limit (nlp.max_length) is the same by default.
LONGEST_LINE = 1_000_000
# Bytes. A line that has to be read as a whole (JSON, CoNLL-U) may be as long as this.
LONGEST_RECORD = 1 << 26
PACKED = (".gz", ".bz2", ".xz", ".zst")
STDIN = "-"

_CUT_AT = (" ", "\t", "\xa0", "\u3000")
_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = 1024  # bytes; a pointer is shorter
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def clear_errors(path: str | Path) -> Iterator[None]:
    """Turn an OSError, met when it is looked at what lies under a path, into a CorpusError that says where and why."""
    try:
        yield
    except OSError as error:
        # Who takes the path for the text itself shall not get all of it back.
        where = f"{os.fspath(error.filename or path)!r:.500}"
        reason = error.strerror or type(error).__name__
        raise CorpusError(f"{where} cannot be looked at: {reason}: check the path and its permissions") from error


def is_readable(path: Path, damage: Damage) -> bool:
    """Whether a file can be opened and is no git-LFS pointer; otherwise it is refused or noted."""
    try:
        with path.open("rb") as file:
            head = file.read(_LFS_SIZE)
    except OSError as error:
        damage.met("files skipped: cannot be read", str(path), f"{path} cannot be read: {error.strerror}", error)
        return False
    if head.startswith(_LFS_MAGIC) and len(head) < _LFS_SIZE:
        damage.met(
            "files skipped: git-LFS pointers",
            str(path),
            f"{path} is a git-LFS pointer, not the text itself: run `git lfs pull` where it was cloned, or download it",
        )
        return False
    return True


@lru_cache(maxsize=1)
def spooled_stdin() -> Path:
    """The standard input in a temporary file, which is removed when the process ends: it can be read only once.

    RAISES: CorpusError if nothing is piped into this process, or the file cannot be written.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise CorpusError("The path is '-', the standard input, but nothing is piped into it (`cat a.txt b.txt | ...`)")
    try:
        descriptor, name = tempfile.mkstemp(prefix="standard-input-", suffix=".txt")
        atexit.register(lambda: Path(name).unlink(missing_ok=True))
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
    except OSError as error:
        raise CorpusError(f"The standard input cannot be kept in {tempfile.gettempdir()}: {error}") from error
    return Path(name)


def text_lines(path: Path, longest: int, long_lines: LongLines, damage: Damage) -> Iterator[tuple[str, bool]]:
    """Yield lines of at most `longest` characters, and whether the line ends there (or was cut).

    long_lines: what becomes of longer ones.
    """
    is_part = skipping = False  # of a longer line
    # A character has at most four bytes; with a BOM and the line's end, what does not fit is longer for sure.
    for number, raw, ends in _bounded_lines(path, 4 * longest + 5, damage):
        text = None if skipping else decoded(path, number, raw, damage)
        pieces = [] if text is None else cut(text, longest)
        if not is_part and (len(pieces) > 1 or (pieces and not ends)):
            skipping = not _takes_long(long_lines, "lines", path, number, longest, damage)
        if not skipping:
            for index, piece in enumerate(pieces, start=1):
                yield piece, ends and index == len(pieces)
        is_part = not ends
        skipping = skipping and is_part


def takes_long(text: str, longest: int, long_lines: LongLines, path: Path, number: int, damage: Damage) -> bool:
    """Whether a document that is a line of a file is read, though it may be longer than a tokenizer takes."""
    return len(text) <= longest or _takes_long(long_lines, "texts", path, number, longest, damage)


def _takes_long(long_lines: LongLines, what: str, path: Path, number: int, longest: int, damage: Damage) -> bool:
    where = f"{path}, line {number}"
    if long_lines == "raise":
        raise CorpusError(
            f"{where}: more than {longest:,} characters. Break it into lines, or set long_lines = 'cut' or 'skip'"
        )
    done = "cut at white space" if long_lines == "cut" else "skipped"
    damage.notes.add(f"{what} of more than {longest:,} characters {done}", where)
    return long_lines == "cut"


def records(path: Path, damage: Damage) -> Iterator[tuple[int, str]]:
    """Yield numbered lines, each whole."""
    parts: list[bytes] = []
    size = 0
    for number, raw, ends in _byte_lines(path, LONGEST_RECORD, damage):
        size += len(raw)
        if size <= LONGEST_RECORD:
            parts.append(raw)
        if not ends:
            continue
        if size > LONGEST_RECORD:
            damage.met(
                f"lines skipped: more than {LONGEST_RECORD:,} bytes",
                f"{path}, line {number}",
                f"{path}, line {number}: more than {LONGEST_RECORD:,} bytes. Break it into several documents",
            )
            line = None
        else:
            line = decoded(path, number, b"".join(parts), damage)
        parts, size = [], 0
        if line is not None:
            yield number, line


def decoded(path: Path, number: int, raw: bytes, damage: Damage) -> str | None:
    """The text of a line without its end; None if it is damaged and to be left out."""
    where = f"{path}, line {number}"
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        utf16 = " It looks like UTF-16." if number == 1 and raw.startswith(_UTF16) else ""
        damage.met(
            "lines skipped: not UTF-8",
            where,
            f"{where}: not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start}: {error.reason}).{utf16} Convert the "
            "file to UTF-8, for instance with iconv, remove this line, or set errors = 'skip'",
            error,
        )
        return None
    if "\0" in text:
        damage.met(
            "lines skipped: NUL characters",
            where,
            f"{where}: a NUL character at {text.index(chr(0))}, which no text has: it may be UTF-16, or no "
            "text at all. Convert the file to UTF-8, remove this line, or set errors = 'skip'",
        )
        return None
    return text


def cut(text: str, longest: int) -> list[str]:
    """Cut a text at white space into pieces of at most `longest` characters (in a word only where it must)."""
    pieces, start = [], 0
    while len(text) - start > longest:
        end = max(text.rfind(space, start, start + longest) for space in _CUT_AT) + 1
        if end <= start:
            end = start + longest
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def _bounded_lines(path: Path, n_bytes: int, damage: Damage) -> Iterator[tuple[int, bytes, bool]]:
    """Yield line numbers, lines and whether they end there; a line past `n_bytes` is cut where no character is."""
    rest = b""
    for number, raw, ends in _byte_lines(path, n_bytes, damage):
        line = rest + raw
        if ends:
            yield number, line, True
            rest = b""
            continue
        end = max(line.rfind(b" "), line.rfind(b"\t")) + 1
        if end == 0:
            end = len(line)
            while end > len(line) - 4 and line[end - 1] & 0b1100_0000 == 0b1000_0000:
                end -= 1  # back over the continuation bytes of a character that may not be whole
            end -= 1
        yield number, line[:end], False
        rest = line[end:]


def _byte_lines(path: Path, n_bytes: int, damage: Damage) -> Iterator[tuple[int, bytes, bool]]:
    """Yield line numbers, lines or parts of at most `n_bytes` of them, and whether the line ends there."""
    number = 1
    try:
        with _opened(path) as stream:
            raw = stream.readline(n_bytes)
            while raw:
                following = b"" if raw.endswith(b"\n") else stream.readline(n_bytes)
                ends = raw.endswith(b"\n") or not following
                yield number, raw, ends
                number += ends
                raw = following or stream.readline(n_bytes)
    except Exception as error:  # what is damaged raises what its packer, perhaps not imported, has for it
        if isinstance(error, (CorpusError, MemoryError)):
            raise
        where = f"{path}, after line {number - 1}"
        damage.met(
            "files whose rest is skipped: damaged",
            where,
            f"{where}: cannot be read ({error}). Check that the file is whole and what its suffix says; if it was "
            "downloaded, download it again",
            error,
        )


def _opened(path: Path) -> Any:
    """The file, unpacked: binary, with ``readline``, a context manager."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.open(path)
    if suffix == ".bz2":
        return bz2.open(path)
    if suffix == ".xz":
        return lzma.open(path)
    return _opened_zst(path) if suffix == ".zst" else path.open("rb")


def _opened_zst(path: Path) -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.open(path)
    try:
        import zstandard
    except ImportError as error:
        raise CorpusError(f'{path}: to read .zst files, pip install "spacy-elmo[zst]"') from error
    decompressor: Any = zstandard.ZstdDecompressor()
    # Its reader has no readline; a file may be several frames in a row.
    stream = decompressor.stream_reader(path.open("rb"), read_across_frames=True, closefd=True)
    return io.BufferedReader(stream, 1 << 17)
