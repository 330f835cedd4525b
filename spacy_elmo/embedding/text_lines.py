"""Text files, a sentence a line. Every line counts: the number of a line is the name of its vectors."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..errors import CorpusError

# Characters of a line at most: what spaCy's tokenizers take (nlp.max_length), and what memory must hold at once.
LONGEST_LINE = 1_000_000

_OPENERS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_LFS_MAGIC = b"version https://git-lfs.github.com/spec/"


class Line(NamedTuple):
    """A line of text without its end. number: in its file, from 1."""

    path: Path
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}"


class TextLines:
    """The lines of files in UTF-8, plain or packed (``.gz``, ``.bz2``, ``.xz``), one file after another.

    Raises CorpusError for files that are missing, folders, pipes, devices or git-LFS pointers, at once; while lines are
    read, naming the line, for what is no UTF-8, has a NUL in it (a binary file, or UTF-16) or more than a million
    characters.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        if not paths:
            raise CorpusError("no file of text is given")
        self.paths = list(paths)
        # What the files are now, without reading them: path, size and time of change of each.
        self.fingerprint: list[list[Any]] = []
        for path in self.paths:
            try:
                status = path.stat()
                if stat.S_ISDIR(status.st_mode):
                    raise CorpusError(f"{path} is a folder: give the files of text themselves")
                if not stat.S_ISREG(status.st_mode):  # before it is opened: that would wait for who writes to a pipe
                    raise CorpusError(
                        f"{path} is a pipe or a device, which can be read only once, and a run that goes on reads its "
                        "text again: write the text to a file and give that"
                    )
                with path.open("rb") as file:
                    head = file.read(1024)
            except (OSError, ValueError) as error:
                if isinstance(error, CorpusError):
                    raise
                raise CorpusError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
            if head.startswith(_LFS_MAGIC) and len(head) < 1024:
                raise CorpusError(
                    f"{path} is a git-LFS pointer, not the text itself: run `git lfs pull` where it was cloned"
                )
            self.fingerprint.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
        self._read = hashlib.sha256()
        self._done = 0
        self._raw: IO[bytes] | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self.fingerprint)

    @property
    def position(self) -> int:
        """Bytes read so far, as they lie on the disk."""
        return self._done + (0 if self._raw is None else self._raw.tell())

    @property
    def digest(self) -> str:
        """Of all lines read so far: tells another text from this one, whatever its size and time of change."""
        return self._read.hexdigest()

    def __iter__(self) -> Iterator[Line]:
        for path, (_, size, _) in zip(self.paths, self.fingerprint, strict=True):
            yield from self._lines(path)
            self._raw = None
            self._done += size

    def _lines(self, path: Path) -> Iterator[Line]:
        number = 1
        try:
            with path.open("rb") as self._raw, _OPENERS.get(path.suffix.lower(), _as_it_is)(self._raw) as stream:
                while raw := stream.readline(4 * LONGEST_LINE + 3):
                    self._read.update(raw)
                    yield Line(path, number, _decoded(path, number, raw))
                    number += 1
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise CorpusError(
                f"{path}, line {number}: cannot be read ({error}). Check that the file is whole, and its suffix"
            ) from error


def _as_it_is(raw: Any) -> Any:
    return raw


def _decoded(path: Path, number: int, raw: bytes) -> str:
    where = f"{path}, line {number}"
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        # One byte too many may have cut a character: then the length is what is wrong.
        if len(raw) <= 4 * LONGEST_LINE:
            raise CorpusError(
                f"{where}: not UTF-8 (byte 0x{raw[error.start]:02x} at {error.start}: {error.reason}). Convert the "
                "file to UTF-8, for instance with iconv, or mend this line"
            ) from error
        text = "\0" * len(raw)
    if len(text) > LONGEST_LINE:
        raise CorpusError(
            f"{where}: longer than {LONGEST_LINE:,} characters. A line is a sentence: put line ends into this text"
        )
    if "\0" in text:
        raise CorpusError(f"{where}: has a NUL character in it: not a file of text, or not in UTF-8")
    return text
