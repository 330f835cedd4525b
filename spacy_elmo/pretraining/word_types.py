"""The word types of a corpus: on disk, one UTF-8 text and where each begins; a str is made when it is asked for."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import overload

import numpy as np

from ..bilm.characters import BOS, EOS, UNK, character_ids
from ..errors import PretrainingError, WeightsError
from ..weights.files import replacing

BOS_TYPE, EOS_TYPE, UNK_TYPE = 0, 1, 2
SPECIAL_TYPES = (BOS, EOS, UNK)

_BLOCK = 8192  # types that are held as str at once


class Types(Sequence[str]):
    """A sequence of str that holds none of them.

    text: (n_bytes,) uint8, the types in UTF-8, one after the other; on disk memory-mapped.
    starts: (n_types + 1,) int64, where each begins, and the end.
    folder: where their character rows are kept; None: nowhere.
    """

    def __init__(self, text: np.ndarray, starts: np.ndarray, folder: Path | None = None) -> None:
        self._text = text
        self._starts = starts
        self._folder = folder

    @classmethod
    def of(cls, words: Iterable[str]) -> Types:
        """Types in memory."""
        encoded = [word.encode("utf8") for word in words]
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), starts)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                return [self[i] for i in range(start, stop, step)]
            return self._decoded(start, max(start, stop))
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} types, none of number {index}")
        index %= len(self)
        return self._decoded(index, index + 1)[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _BLOCK):
            yield from self._decoded(start, min(start + _BLOCK, len(self)))

    def lengths(self, *, code_points: bool = False) -> np.ndarray:
        """Bytes, or code points, of each type, none of which is empty. RETURNS: (n_types,) int64."""
        if code_points:
            begins = (self._text & 0xC0) != 0x80  # in UTF-8 each has one byte that is not of the form 10xxxxxx
            return np.add.reduceat(begins, self._starts[:-1], dtype=np.int64)
        return np.diff(self._starts)

    def character_rows(self, max_characters_per_token: int) -> np.ndarray:
        """What a token encoder of characters reads for each type, see `bilm.characters.character_ids`.

        Computed once for a number of characters and kept beside the types, where that folder can be written to.

        max_characters_per_token: C.
        RETURNS: (n_types, C) int16, memory-mapped.
        RAISES: PretrainingError if the disk is full.
        """
        shape = (len(self), max_characters_per_token)
        if self._folder is None:
            return self._rows(shape)
        path = self._folder / characters_file(max_characters_per_token)
        try:
            if not path.is_file() or path.stat().st_size != 2 * shape[0] * shape[1]:
                with replacing(path) as new, new.open("wb") as file:
                    for rows in self._spelled(max_characters_per_token):
                        file.write(rows.tobytes())
            return mapped(path, "<i2", shape[0] * shape[1])[0].reshape(shape)
        except (OSError, WeightsError) as error:
            cause = error.__cause__ if isinstance(error, WeightsError) else error
            if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return self._rows(shape)  # a cache that somebody else keeps
            raise PretrainingError(f"the characters of the words cannot be kept: {error}") from error

    def _rows(self, shape: tuple[int, int]) -> np.ndarray:
        rows = np.empty(shape, dtype="<i2")
        start = 0
        for part in self._spelled(shape[1]):
            rows[start : start + len(part)] = part
            start += len(part)
        return rows

    def _spelled(self, max_characters_per_token: int) -> Iterator[np.ndarray]:
        for start in range(0, len(self), _BLOCK):
            yield character_ids(self[start : start + _BLOCK], max_characters_per_token).astype("<i2")

    def _decoded(self, start: int, stop: int) -> list[str]:
        starts = self._starts[start : stop + 1].tolist()
        text = self._text[starts[0] : starts[-1]].tobytes()
        first = starts[0]
        return [text[a - first : b - first].decode("utf8") for a, b in pairwise(starts)]


def characters_file(max_characters_per_token: int | str) -> str:
    """Name of the file of character rows; of a pattern for all of them with ``"*"``."""
    return f"characters-{max_characters_per_token}.bin"


def mapped(path: Path, dtype: str, n: int) -> tuple[np.ndarray, mmap.mmap]:
    """Map a file of n numbers. RETURNS: (n,) read-only, and the map. RAISES: ValueError for another size, OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size != n * np.dtype(dtype).itemsize:
            raise ValueError(f"{path.name}: {size} bytes, {n * np.dtype(dtype).itemsize} expected")
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(memory, dtype=dtype), memory


def smallest_dtype(n: int) -> str:
    """The smallest unsigned integer for numbers from 0 to n - 1, little-endian."""
    return "<u1" if n <= 1 << 8 else "<u2" if n <= 1 << 16 else "<u4"
