"""Which sentences and documents stand in a text twice, or in another one too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_MOST_HASHES = 1 << 21


class Hashes:
    """Hashes of sentences or documents, a sample of them (by hash, so that all copies are in it or none) if many."""

    def __init__(self, n: int) -> None:
        self.every = np.uint64(-(-max(n, 1) // _MOST_HASHES))
        self._kept: list[np.ndarray] = []
        self._unique = np.zeros(0, dtype=np.uint64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._found = np.zeros(0, dtype=np.bool_)

    def add(self, hashes: np.ndarray) -> None:
        """Take in those of a text."""
        self._kept.append(hashes[hashes % self.every == 0])

    def finish(self) -> None:
        """All of the text are in."""
        self._unique, self._counts = np.unique(np.concatenate(self._kept), return_counts=True)
        self._kept = []
        self._found = np.zeros(len(self._unique), dtype=np.bool_)

    def find(self, hashes: np.ndarray) -> None:
        """Mark those that another text has."""
        if len(self._unique):
            places = np.minimum(np.searchsorted(self._unique, hashes), len(self._unique) - 1)
            self._found[places[self._unique[places] == hashes]] = True

    def share_repeated(self) -> float:
        """Share of those that are copies of one before, 0 to 1."""
        total = int(self._counts.sum())
        return 1 - len(self._unique) / total if total else 0.0

    def share_found(self) -> float:
        """Share of those that another text has, 0 to 1."""
        total = int(self._counts.sum())
        return float(self._counts[self._found].sum() / total) if total else 0.0


@dataclass(frozen=True)
class TextHashes:
    """Those of a text's sentences and documents."""

    sentences: Hashes
    documents: Hashes


def joined_hashes(parts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """A hash for each run of parts; the order within it counts. parts: (n,) uint64; starts: of the runs, from 0."""
    lengths = np.diff(starts, append=len(parts))
    position = (np.arange(len(parts)) - np.repeat(starts, lengths)).astype(np.uint64)
    mixed = parts + (position + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    return np.add.reduceat(mixed, starts)
