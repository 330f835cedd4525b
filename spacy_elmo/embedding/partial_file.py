"""A file that is made in steps, each of which is done whole or not at all, wherever the process is killed.

Beside OUT lie OUT.partial, which grows, and OUT.journal: JSON, a line a step, the first one the settings. A step

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
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import ElmoError


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
        self.path = output.with_name(output.name + ".partial")
        self.journal_path = output.with_name(output.name + ".journal")
        self.product = self.path if in_place else output.with_name(output.name + ".new")
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
        except OSError as error:
            self.release()
            raise self._failure(error) from error
        except BaseException:
            self.release()
            raise

    # ------------------------------------------------------------------------------------------------ opening, ending

    def _open(self, settings: dict[str, Any], resume: bool) -> None:
        if self.output.is_dir():
            raise ElmoError(f"{self.output} is a folder: give the name of a file")
        begun_before = self.journal_path.exists()
        if self.output.exists() and not self.overwrite and not begun_before:
            raise self._exists()
        if resume and self.path.exists() and not begun_before:
            raise ElmoError(f"{self.path} lies there without its journal: begin anew (--no-resume), or remove it")
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self._journal = open(self.journal_path, "ab", buffering=0)  # noqa: SIM115 - locked as long as this is open
        if not _locked(self._journal) or not self.journal_path.exists():  # gone: its process has just ended
            raise ElmoError(f"{self.output} is being written by another process")
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
            self._note({"settings": settings})
            return
        self._size = self._committed = self.last.get("size", 0)
        if os.fstat(self._file.fileno()).st_size < self._size:
            raise ElmoError(f"{self.path} is shorter than its journal says: begin anew (--no-resume)")
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
                entry = json.loads(line)
                if number == 0:
                    self._check_settings(entry["settings"], settings)
                elif "final" in entry:
                    self.final = True
                else:
                    self.records, self.words = int(entry["records"]), int(entry["words"])
                    self.last = entry
                    if entry["note"] is not None:
                        self.notes.append(entry["note"])
            except (ValueError, TypeError, KeyError) as error:
                if isinstance(error, ElmoError):
                    raise
                raise ElmoError(f"{self.journal_path}, line {number + 1}: damaged. Begin anew (--no-resume)") from error
            size += len(line)
        return size

    def _check_settings(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        if before != now:
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            what = "; ".join(f"{name} was {before.get(name)!r:.60}, is {now.get(name)!r:.60}" for name in names)
            raise ElmoError(
                f"{self.path} was begun with other settings ({what}): give the same ones to go on, or begin anew "
                "(--no-resume)"
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
            self.release()
            self.journal_path.unlink(missing_ok=True)
        except OSError as error:
            raise self._failure(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the files. Where no step was done, nothing is left."""
        opened = self._file is not None
        self.release()
        if opened and not self.records and not self.final:
            for path in (self.path, self.journal_path):
                with suppress(OSError):
                    path.unlink()

    def release(self) -> None:
        """Close the files, as they are."""
        self._close_file()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

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
        rest = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
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
        return ElmoError(f"{self.output} exists: it is replaced only where that is asked for (--force)")

    def _failure(self, error: OSError) -> ElmoError:
        name = error.filename if isinstance(error.filename, str) else str(self.output)
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
