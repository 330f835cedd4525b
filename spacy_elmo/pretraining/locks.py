"""Lock files: one process at a time, and the operating system lets go when a process ends, however it ends."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_PAUSE = 0.2  # seconds between two tries


@contextmanager
def locked(path: Path, *, wait: str | None = None) -> Iterator[None]:
    """Hold a lock file while the block lasts; it is removed afterwards.

    What a killed process leaves is a file that nobody holds: the next one takes it.

    wait: what to print (to stderr, once) before waiting for another process that holds it; None: do not wait.
    Raises BlockingIOError if another process holds it and ``wait`` is None; OSError if it cannot be made. Warns where
    the file system has no locks: the block runs all the same.
    """
    file = _acquired(path, wait)
    try:
        yield
    finally:
        # While it is held, so that nobody's file but ours is removed. Windows removes no open file: it stays.
        with suppress(OSError):
            path.unlink()
        file.close()


def _acquired(path: Path, wait: str | None) -> IO[bytes]:
    while True:
        file = path.open("ab")
        try:
            supported = _lock(file.fileno())
        except BlockingIOError:
            file.close()
            if wait is None:
                raise
            if wait:
                print(wait, file=sys.stderr, flush=True)
                wait = ""
            time.sleep(_PAUSE)
            continue
        if os.fstat(file.fileno()).st_nlink:
            if not supported:
                warnings.warn(
                    f"the file system of {path.parent} has no locks: nothing keeps apart processes that write there, "
                    "so start one at a time",
                    stacklevel=2,
                )
            return file
        file.close()  # the one that held it removed it between our opening and our locking


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from error
        return True

else:
    import fcntl

    def _lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return False  # a file system without locks: better to run than never to run there
        return True
