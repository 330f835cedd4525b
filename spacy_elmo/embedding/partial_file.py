"""A file that is made in steps, each of which is done whole or not at all, wherever the process is killed.

Beside OUT lie OUT.partial, which grows, and OUT.journal: JSON and its CRC-32, a line a step, the first one the
settings. A step

1. appends to the partial file at once: bytes past those of the last step count for nothing yet;
2. keeps in memory what it writes over bytes of earlier steps (HDF5 does so with its tables of names);
3. is done when its line stands in the journal: the file's new size, and those overwrites;
4. then writes the overwrites to the file.

Opened again, the last line's overwrites are written (once more), and the file is cut to that line's size. The line is
what databases call a redo log; data reach the disk before it does (fsync), so that a power cut is no other case.
"""

from __future__ import annotations

import base64
import io
import json
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import ElmoError

# What a journal begins with: nothing else is taken for one, and overwritten.
_BEGINNING = b'{"journal of":"spacy-elmo embed",'
_DIFFERENCES = 4  # between settings, that are told at most
_ANEW = "--no-resume, resume=False"  # for who gives the command, and who calls the function


class PartialFile(io.RawIOBase):
    """A binary file to read, write and seek in, and the journal of its steps.

    output: the file to make. settings: what it is made from, JSON; a journal of other settings is refused.
    resume: go on with what lies there; False: begin anew. overwrite: an existing output may be replaced.
    in_place: whether the partial file becomes the output as it is; else another, ``product``, is made from it.

    Writing never fails: the first error (a full disk) is kept, and raised by ``commit``. The libraries that write here
    take errors badly: HDF5 may end the process.

    Attributes: records, words (int): of all steps. last (dict): the journal's line of the last step. notes (list): what
    each step noted. final (bool): the product is whole.
    Raises ElmoError, naming the file, for whatever is wrong with the files.
    """

    def __init__(
        self, output: Path, settings: dict[str, Any], *, resume: bool, overwrite: bool, in_place: bool = True
    ) -> None:
        super().__init__()
        self.output = output
        self.overwrite = overwrite
        self.path, self.journal_path, product = names_beside(output)
        self.product = self.path if in_place else product
        self.records = self.words = 0
        self.last: dict[str, Any] = {}
        self.notes: list[Any] = []
        self.final = False
        self._file: io.FileIO | None = None
        self._journal: io.FileIO | None = None
        self._at = self._size = self._committed = 0
        self._overwrites: list[tuple[int, bytes]] = []
        self._error: OSError | None = None
        try:
            self._open(json.loads(json.dumps(settings)), resume)
        except BaseException as error:
            if self._journal is not None and not os.fstat(self._journal.fileno()).st_size:
                with suppress(OSError):
                    self._remove_journal()
            self.release()
            if isinstance(error, OSError):
                raise self._failure(error) from error
            raise

    # ------------------------------------------------------------------------------------------------ opening, ending

    def _open(self, settings: dict[str, Any], resume: bool) -> None:
        made = _is_file(self.output)
        begun_before = _is_file(self.journal_path)
        if made and not self.overwrite and not begun_before:
            raise self._exists()
        for path in (self.path, self.product):
            if _is_file(path) and resume and not begun_before:
                raise ElmoError(f"{path} lies there without its journal: begin anew ({_ANEW}), or remove it")
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self._journal = open(self.journal_path, "ab", buffering=0)  # noqa: SIM115 - locked as long as this is open
        if not _locked(self._journal) or not self._journal_is_there():
            self._journal.close()
            self._journal = None
            raise ElmoError(f"{self.output} is being written by another process")
        with open(self.journal_path, "rb") as file:
            head = file.read(len(_BEGINNING))
        if not _BEGINNING.startswith(head):  # shorter: cut off
            raise ElmoError(
                f"{self.journal_path} is no journal of such a file: move it, or give the vectors another name"
            )
        begun = self._read_journal(settings) if resume else 0
        if self.final and not self.product.exists():
            if self.output.exists():
                return  # killed between the last two steps: the file has its name already
            begun = self.records = self.words = 0
            self.final = False
        if self.output.exists() and not self.overwrite:
            raise self._exists()
        if self.final:
            return
        self._journal.truncate(begun)
        self._file = io.FileIO(os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+")
        if not begun:
            self.last, self.notes = {}, []
            self._file.truncate(0)
            self._note({"journal of": "spacy-elmo embed", "settings": settings})
            return
        self._size = self._committed = self.last.get("size", 0)
        if os.fstat(self._file.fileno()).st_size < self._size:
            raise ElmoError(f"{self.path} is shorter than its journal says: begin anew ({_ANEW})")
        for at, data in self.last.get("overwrites", []):
            self._write_at(at, base64.b64decode(data))
        self._file.truncate(self._size)

    def _read_journal(self, settings: dict[str, Any]) -> int:
        """Take over what the journal says. RETURNS: its size in bytes, without a line that was cut off."""
        size = 0
        with open(self.journal_path, "rb") as file:
            lines = list(file)
        for number, line in enumerate(lines):
            if not line.endswith(b"\n"):
                break
            try:
                text, sum_of_it = line[:-1].rsplit(b" ", 1)
                if int(sum_of_it, 16) != zlib.crc32(text):
                    raise ValueError("another sum")
                entry = json.loads(text)
                if number == 0:
                    self._check_settings(entry["settings"], settings)
                elif "final" in entry:
                    self.final = True
                else:
                    self.records, self.words = int(entry["records"]), int(entry["words"])
                    self.last = entry
                    if entry["note"] is not None:
                        self.notes.append(entry["note"])
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                if isinstance(error, ElmoError):
                    raise
                raise ElmoError(f"{self.journal_path}, line {number + 1}: damaged. Begin anew ({_ANEW})") from error
            size += len(line)
        return size

    def _check_settings(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        if before != now:
            differences = list(_differences(before, now))
            what = "; ".join(differences[:_DIFFERENCES]) + ("; …" if len(differences) > _DIFFERENCES else "")
            raise ElmoError(
                f"{self.path} was begun with other settings ({what}): give the same ones to go on, or begin anew "
                f"({_ANEW})"
            )

    def publish(self) -> None:
        """Give the product the output's name, and remove the rest. Raises ElmoError where that cannot be done."""
        try:
            if self._error is not None:
                raise self._error
            if not self.final:
                with open(self.product, "rb+") as file:
                    os.fsync(file.fileno())
                self._note({"final": True})
                self.final = True
            self._close_file()
            if self.product.exists():
                if self.output.exists() and not self.overwrite:
                    raise self._exists()
                os.replace(self.product, self.output)
            self.path.unlink(missing_ok=True)
            self._remove_journal()
        except OSError as error:
            raise self._failure(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files. Where no step was done, nothing is left."""
        if self._file is not None and not self.records and not self.final:
            self._close_file()
            with suppress(OSError):
                self.path.unlink()
                self._remove_journal()
        self.release()

    def release(self) -> None:
        """Close the files, as they are."""
        self._close_file()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _journal_is_there(self) -> bool:
        """Whether the journal that was locked is the one of its name: another process may just have removed it."""
        assert self._journal is not None
        try:
            return os.path.samestat(os.fstat(self._journal.fileno()), os.stat(self.journal_path))
        except FileNotFoundError:
            return False

    def _remove_journal(self) -> None:
        """Remove it while it is locked, so that nobody's but ours is; Windows removes no open file."""
        if os.name == "nt":
            self.release()
            with suppress(PermissionError):  # another process has it now
                self.journal_path.unlink(missing_ok=True)
        else:
            self.journal_path.unlink(missing_ok=True)
            self.release()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---------------------------------------------------------------------------------------------------------- steps

    def commit(self, *, records: int, words: int, note: Any = None, **more: Any) -> None:
        """End a step. records, words: that came with it. note: kept from every step; more: of the last one.

        Raises ElmoError if something could not be written: the step is then undone, in the file as it is opened next.
        """
        assert self._file is not None
        try:
            if self._error is not None:
                raise self._error
            overwrites = self._differences()
            os.fsync(self._file.fileno())
            self.records += records
            self.words += words
            self.last = {
                "records": self.records,
                "words": self.words,
                "size": self._size,
                "overwrites": [[at, base64.b64encode(data).decode()] for at, data in overwrites],
                "note": note,
                **more,
            }
            self._note(self.last)
            for at, data in overwrites:
                self._write_at(at, data)
            self._file.truncate(self._size)
        except OSError as error:
            raise self._failure(error) from error
        self._overwrites = []
        self._committed = self._size

    def _differences(self) -> list[tuple[int, bytes]]:
        """The overwrites, cut to what differs from the file: of a long table of names, one place does."""
        assert self._file is not None
        found = []
        for at, data in self._overwrites:
            data = data[: max(0, self._size - at)]
            new = np.frombuffer(self._read(at, len(data)), dtype=np.uint8)
            self._file.seek(at)
            old = np.frombuffer(self._file.read(len(data)).ljust(len(data), b"\0"), dtype=np.uint8)
            changed = np.flatnonzero(new != old)
            if len(changed):
                first, last = int(changed[0]), int(changed[-1]) + 1
                found.append((at + first, new[first:last].tobytes()))
        return found

    def _note(self, entry: dict[str, Any]) -> None:
        assert self._journal is not None
        rest = json.dumps(entry, separators=(",", ":")).encode()
        rest += b" %08x\n" % zlib.crc32(rest)
        while rest:
            rest = rest[self._journal.write(rest) or 0 :]
        os.fsync(self._journal.fileno())

    def _write_at(self, at: int, data: bytes | memoryview) -> None:
        assert self._file is not None
        self._file.seek(at)
        rest = memoryview(data)
        while len(rest):  # a disk that gets full takes a part first
            rest = rest[self._file.write(rest) or 0 :]

    def _exists(self) -> ElmoError:
        return ElmoError(f"{self.output} exists: give another name, or replace it (--force, overwrite=True)")

    def _failure(self, error: OSError) -> ElmoError:
        name = error.filename if isinstance(error.filename, (str, Path)) else self.output
        return ElmoError(f"{name}: cannot be written: {error.strerror or error}")

    # --------------------------------------------------------------------------------------------------------- a file

    def readable(self) -> bool:
        """It is."""
        return True

    def writable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next byte is read or written."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, as in any file."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read what was written, in this step too."""
        view = memoryview(buffer).cast("B")
        data = self._read(self._at, max(0, min(len(view), self._size - self._at)))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _read(self, at: int, length: int) -> bytes:
        data = bytearray(length)
        if self._file is not None:
            self._file.seek(at)
            view = memoryview(data)
            while len(view) and (got := self._file.readinto(view)):
                view = view[got:]
        for start, over in self._overwrites:
            first, last = max(start, at), min(start + len(over), at + length)
            if first < last:
                data[first - at : last - at] = over[first - start : last - start]
        return bytes(data)

    def write(self, data: Any) -> int:
        """Write; errors come with ``commit``."""
        view = memoryview(data).cast("B")
        over = max(0, min(len(view), self._committed - self._at))
        if over:
            self._overwrites.append((self._at, bytes(view[:over])))
        if over < len(view) and self._file is not None and self._error is None:
            try:
                self._write_at(self._at + over, view[over:])
            except OSError as error:
                self._error = error
        self._at += len(view)
        if not len(view):
            return 0
        self._size = max(self._size, self._at)
        return len(view)

    def flush(self) -> None:
        """Nothing waits here; and a library that closes what is closed already shall not fail."""

    def truncate(self, size: int | None = None) -> int:
        """Set the size. What an earlier step wrote stays on the disk until this one is done."""
        size = self._at if size is None else size
        if size < min(self._size, self._committed):
            # Should it grow again, there are zeros, as in any file.
            self._overwrites.append((size, bytes(self._committed - size)))
        self._size = size
        if self._file is not None and self._error is None:
            try:
                self._file.truncate(max(self._size, self._committed))
            except OSError as error:
                self._error = error
        return self._size


def names_beside(output: Path) -> list[Path]:
    """Of the partial file, of the journal, and of a product that is made apart."""
    return [output.with_name(output.name + suffix) for suffix in (".partial", ".journal", ".new")]


def _is_file(path: Path) -> bool:
    """Whether there is a file of that name. Raises ElmoError where there is something else, or no file can be."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False
    except ValueError as error:  # a NUL in it, or what is no text
        raise ElmoError(f"{str(path)!r}: no file can have this name") from error
    if stat.S_ISDIR(mode):
        raise ElmoError(f"{path} is a folder: give the name of a file")
    if not stat.S_ISREG(mode):
        raise ElmoError(f"{path} is a pipe or a device: give the name of a file")
    return True


def _differences(before: Any, now: Any, name: str = "") -> Iterator[str]:
    """What differs between settings, each with its name."""
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(before, dict) and isinstance(now, dict):
        pairs = [(key, before.get(key), now.get(key)) for key in {**before, **now}]
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = list(zip(range(len(now)), before, now, strict=True))
    elif before != now:
        yield f"{name} was {before!r:.200}, is {now!r:.200}"
    for key, one, other in pairs:
        yield from _differences(one, other, f"{name}.{key}" if name else str(key))


def _locked(file: io.FileIO) -> bool:
    """Lock a file until it is closed. RETURNS: whether nobody else has."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        file.seek(2**40)  # past all that is read: there, others cannot read what is locked
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
