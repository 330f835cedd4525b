"""Layers of texts in a file, kept from step to step and from run to run: a table of SQLite's, a row a text.

A row's name is made of what the biLM reads and of all that its vectors depend on, the values of the weights included,
so that a row is right whoever wrote it. SQLite's journal and locks keep the file whole where a process is killed at any
instant and where several use it at once; a checksum a row finds what a disk has changed. Nothing that goes wrong here
reaches the caller: texts that are not found are computed.

The journal is a rollback journal and not the write-ahead log: what is written is written once, no memory is shared, so
that a network drive does as long as its locks work, and in a forked process nothing is inherited but a closed file.
Nothing waits for the disk (``synchronous = OFF``): a power cut may damage the file, which is found when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from spacy.tokens import Doc

from .. import __version__
from ..bilm import BiLM
from ..text_forms import TextForm, doc_words
from .span_getters import Offsets

# A damaged file is left for one of the next number, never written anew under its name: another process may hold it.
_FILE = re.compile(r"elmo-layers-(\d+)\.sqlite(-journal)?")
_PAGE = 16384  # bytes; measured: rows of some 40 KB are written twice as fast as with SQLite's own 4096
_LARGEST = 2**28  # bytes of a text's layers that are kept: SQLite takes up to 10**9, and copies them
_NAME_BYTES = 16
_PATIENCE = 5.0  # seconds of waiting for another process that writes
_IN_USE = 3600.0  # seconds after its last use for which a biLM keeps what it has
_NOTED = 60.0  # seconds after which a further use is noted

_TABLES = (
    "CREATE TABLE IF NOT EXISTS models (id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, used REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS layers (model INTEGER NOT NULL, name BLOB NOT NULL, checksum INTEGER NOT NULL, "
    "data BLOB NOT NULL, PRIMARY KEY (model, name))",
)
# Errors by which the system, or another process, refuses: the file itself may be whole. (They have numbers only from
# Python 3.11 on.)
_REFUSALS = ("locked", "is full", "readonly", "unable to open", "protocol", "disk I/O")


def model_name(bilm: BiLM, *settings: object) -> bytes:
    """The name of all rows of a biLM: a hash of its weights' values, of its config and tables, and of settings.

    The version of the package is in it too: another one may compute other vectors. Takes about half a second for a GB.
    """
    described = [__version__, bilm.config.to_options(), bilm.vocabulary, bilm.characters, *settings]
    digest = hashlib.sha256(json.dumps(described).encode())
    for name, tensor in sorted(bilm.state_dict().items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.digest()[:_NAME_BYTES]


def text_name(doc: Doc, spans: Offsets, text: TextForm) -> bytes:
    """The name of a Doc's row: a hash of the words that the biLM reads, and of the tokens that they stand for."""
    words, is_space = doc_words(doc, text)
    described = json.dumps([spans, words, np.flatnonzero(is_space).tolist()])
    return hashlib.sha256(described.encode()).digest()[:_NAME_BYTES]


class DiskCache:
    """Arrays by name, for one biLM, in a folder that other biLMs and other processes may use at the same time.

    folder: made when it is first used. limit_mb: bound of all that lies there, in MB (10**6 bytes). model: the name of
    the biLM (``model_name``). Where there is no more room, what other biLMs have left goes first, the one that was not
    used for the longest time before the others, but for those that were used within the last hour: two that run at the
    same time would take each other's room for ever. Then nothing more is written: to drop a text of this one for
    another of this one would help no epoch. Where the file that is opened is larger than the limit, the same goes, and
    then what this biLM has, if it was not used for an hour either.

    Whatever is wrong is told by a warning, once: the folder cannot be made or written to, the disk is full, the limit
    is reached, another process does not let go of the file, it is damaged (another is then begun in its place).
    """

    def __init__(self, folder: Path | str, limit_mb: int, model: bytes) -> None:
        self.folder = Path(folder)
        self.limit_mb = limit_mb
        self._name = model
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._path = self.folder
        self._model = -1
        self._number = 1
        self._noted = 0.0
        self._usable = self._writes = True
        self._rebuilt = False
        _caches.add(self)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file. It is opened again when it is needed."""
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    def read(self, shapes: Mapping[bytes, tuple[int, ...]], dtype: np.dtype) -> dict[bytes, np.ndarray]:
        """The arrays that are there, of those named.

        shapes: of each array by its name. RETURNS: arrays of the caller's own.
        """
        found: dict[bytes, np.ndarray] = {}

        def work(db: sqlite3.Connection) -> None:
            for name, shape in shapes.items():
                row = db.execute(
                    "SELECT checksum, data FROM layers WHERE model = ? AND name = ?", (self._model, name)
                ).fetchone()
                if row is None:
                    continue
                checksum, data = row
                size = int(np.prod(shape)) * dtype.itemsize
                if not isinstance(data, bytes) or len(data) != size or _checksum(name, data) != checksum:
                    raise sqlite3.DatabaseError("a checksum does not fit")
                found[name] = np.frombuffer(data, dtype=dtype).reshape(shape).copy()

        self._transaction("BEGIN", work)
        self._note_use()
        return found

    def write(self, arrays: Mapping[bytes, np.ndarray]) -> None:
        """Keep arrays under their names."""

        def work(db: sqlite3.Connection) -> None:
            for name, array in arrays.items():
                if array.nbytes > _LARGEST:
                    continue
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                if not self._has_room(db, len(data) + _PAGE):
                    self._stop_writing("cache_disk_mb is reached")
                    return
                db.execute(
                    "INSERT OR REPLACE INTO layers VALUES (?, ?, ?, ?)",
                    (self._model, name, _checksum(name, data), data),
                )

        if arrays and self._writes:
            self._transaction("BEGIN IMMEDIATE", work)

    def _transaction(self, begin: str, work: Callable[[sqlite3.Connection], None]) -> None:
        """Do the work, whole or not at all; what goes wrong is told."""
        with self._lock:
            if not self._usable:
                return
            try:
                db = self._db = self._db or self._open()
            except (OSError, ValueError, RuntimeError, sqlite3.Error) as error:
                # ValueError: no path, or names that are no UTF-8. RuntimeError: "~" where nobody has a home.
                self._failed(error, "opening")
                return
            try:
                db.execute(begin)
                work(db)
                db.execute("COMMIT")
            except (UnicodeDecodeError, sqlite3.Error) as error:
                self.close()  # rolls back what was not committed
                self._failed(error, "reading" if begin == "BEGIN" else "writing")
            except BaseException:  # Ctrl-C
                self.close()
                raise

    def _open(self) -> sqlite3.Connection:
        self.folder = self.folder.expanduser()
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = {name: int(found[1]) for name in os.listdir(self.folder) if (found := _FILE.fullmatch(name))}
        self._number = max([self._number, *numbers.values()])
        for name, number in numbers.items():
            if number < self._number:
                with suppress(OSError):  # Windows removes no file that is open: the next one to come does
                    (self.folder / name).unlink()
        self._path = self.folder / f"elmo-layers-{self._number}.sqlite"
        # Any thread may use it, under our lock.
        db = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            if db.execute("PRAGMA page_count").fetchone() == (0,):
                db.execute(f"PRAGMA page_size = {_PAGE}")
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            for setting in ("journal_mode = TRUNCATE", "synchronous = OFF", "cell_size_check = ON"):
                db.execute(f"PRAGMA {setting}")
            if self._writes:
                self._register(db)
            row = db.execute("SELECT id FROM models WHERE name = ?", (self._name,)).fetchone()
            self._model = -1 if row is None else row[0]
        except BaseException:
            db.close()
            raise
        return db

    def _register(self, db: sqlite3.Connection) -> None:
        """Note that this biLM is in use, and see to the limit. What cannot be written to can still be read."""
        try:
            db.execute("BEGIN IMMEDIATE")
            for table in _TABLES:
                db.execute(table)
            now = self._noted = time.time()
            before = db.execute("SELECT used FROM models WHERE name = ?", (self._name,)).fetchone()
            db.execute(
                "INSERT INTO models (name, used) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET used = ?",
                (self._name, now, now),
            )
            # The limit may have been higher when the file was written. What is in use stays: a run in progress may
            # read it, with this biLM too.
            (own,) = db.execute("SELECT id FROM models WHERE name = ?", (self._name,)).fetchone()
            too_much = self._used(db) - self.limit_mb * 10**6
            if too_much > 0:
                unused = self._others(db, own, now - _IN_USE)
                if before is not None and before[0] < now - _IN_USE:
                    unused.append(own)
                self._remove(db, too_much, unused)
            db.execute("COMMIT")
            if too_much > 0:
                # As a script: it gives rows of no columns, after the first of which a cursor would stop.
                db.executescript("PRAGMA incremental_vacuum")
        except sqlite3.OperationalError as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('models', 'layers')").fetchone()
            if not _is_refusal(error) or tables < len(_TABLES):
                raise
            self._stop_writing(str(error))

    def _note_use(self) -> None:
        """Note that this biLM is in use still, once a minute; where that cannot be, there is no writing either."""
        now = time.time()
        if not self._writes or now - self._noted < _NOTED:
            return
        self._noted = now

        def work(db: sqlite3.Connection) -> None:
            db.execute("UPDATE models SET used = ? WHERE id = ?", (now, self._model))

        self._transaction("BEGIN IMMEDIATE", work)

    def _has_room(self, db: sqlite3.Connection, size: int) -> bool:
        """Whether so many bytes find room, after what other biLMs have left was removed if there is need."""
        missing = self._used(db) + size - self.limit_mb * 10**6
        return missing <= 0 or self._remove(db, missing, self._others(db, self._model, time.time() - _IN_USE))

    @staticmethod
    def _used(db: sqlite3.Connection) -> int:
        (pages,), (free,), (size,) = (
            db.execute(f"PRAGMA {what}").fetchone() for what in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    @staticmethod
    def _others(db: sqlite3.Connection, own: int, before: float) -> list[int]:
        """The other biLMs that were not used since then, the longest unused first."""
        found = db.execute("SELECT id FROM models WHERE id != ? AND used < ? ORDER BY used", (own, before))
        return [model for (model,) in found]

    def _remove(self, db: sqlite3.Connection, size: int, models: list[int]) -> bool:
        """Remove rows of these biLMs until so many bytes are free. RETURNS: whether they are."""
        wanted = self._used(db) - size
        for model in models:
            while self._used(db) > wanted:
                removed = db.execute(
                    "DELETE FROM layers WHERE rowid IN (SELECT rowid FROM layers WHERE model = ? LIMIT 1)", (model,)
                )
                if not removed.rowcount:
                    break
        return self._used(db) <= wanted

    def _failed(self, error: Exception, what: str) -> None:
        if _is_refusal(error):
            if what == "writing":
                self._stop_writing(str(error))
            elif what == "opening" or "locked" not in str(error):
                self._usable = False
                self._tell(f"vectors are not kept in cache_dir = {str(self.folder)!r}: {error}")
            # else another process is writing: what was not found will be computed
        elif self._rebuilt:
            self._usable = False
            self._tell(f"{self._path} is damaged too ({error}): vectors are not kept on disk any more")
        else:
            self._rebuilt = True
            self._number += 1
            self._tell(f"{self._path} is damaged ({error}): another file is begun in its place")

    def _stop_writing(self, reason: str) -> None:
        if self._writes:
            self._writes = False
            self._tell(
                f"no more vectors are written to {self._path} ({reason}): those that are there are used, other texts "
                "are computed in every epoch in which memory (cache_mb) does not hold them"
            )

    @staticmethod
    def _tell(message: str) -> None:
        warnings.warn(f"elmo: {message}", stacklevel=2)


def _checksum(name: bytes, data: bytes | memoryview) -> int:
    return zlib.crc32(data, zlib.crc32(name))


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, sqlite3.OperationalError):
        return any(text in str(error) for text in _REFUSALS)
    return not isinstance(error, (UnicodeDecodeError, sqlite3.Error))


# SQLite's connections must not cross a fork: they are closed before it, and opened again by whoever needs them.
_caches: weakref.WeakSet[DiskCache] = weakref.WeakSet()
_held: list[DiskCache] = []


def _before_fork() -> None:
    for cache in list(_caches):
        cache._lock.acquire()
        cache.close()
        _held.append(cache)


def _after_fork() -> None:
    while _held:
        _held.pop()._lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
