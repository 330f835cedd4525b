"""Word vectors of spaCy as what is predicted: memory-mapped, and of them the part that a text needs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import srsly
import torch
from spacy import util
from spacy.attrs import LOWER, ORTH  # type: ignore[import-not-found]
from spacy.vectors import Vectors  # type: ignore[import-not-found]

from ..errors import PretrainingError
from .word_types import BOS_TYPE, EOS_TYPE, SPECIAL_TYPES

if TYPE_CHECKING:
    from .corpus import EncodedCorpus

# From this size in float32 on a table is kept in float16, in which numbers of a vector of length 1 have three digits.
LARGE_TABLE = 256 * 2**20
ROWS_AT_ONCE = 4096
# The boundaries of sentences as word2vec and fastText write them.
_BOUNDARIES = {SPECIAL_TYPES[BOS_TYPE]: "<s>", SPECIAL_TYPES[EOS_TYPE]: "</s>"}


class Targets(Protocol):
    """What is predicted of a text: a `Vocabulary`, or `VectorTargets`."""

    def ids(self, types: Sequence[str]) -> np.ndarray:
        """The target of each word, (len(types),) int64."""
        ...


class WordVectors:
    """The vectors of a pipeline or of a folder, memory-mapped: only rows that are asked for are read.

    name: an installed pipeline package, the folder of a saved pipeline or of its ``vocab``, or one that
        ``spacy.vectors.Vectors.to_disk`` wrote. Tables of words, and floret's of n-grams.
    Raises PretrainingError if there are no vectors, or they cannot be read.
    """

    def __init__(self, name: str) -> None:
        self.folder = _folder(name)
        self.name = Path(name).name
        settings = self.folder / "vectors.cfg"
        try:
            data = np.load(self.folder / "vectors", mmap_mode="r", allow_pickle=False)
            # spaCy's own way would read the table whole; without it, it leaves the settings out too.
            self._vectors = Vectors(data=data, **(srsly.read_json(settings) if settings.is_file() else {}))
            self._vectors.from_disk(self.folder, exclude=["vectors", "strings"])
        except Exception as error:  # numpy's, msgpack's, JSON's, the system's
            raise PretrainingError(f"objective.vectors: {self.folder} cannot be read: {error}") from error
        if data.ndim != 2 or data.shape[1] < 2 or not len(data) or not np.issubdtype(data.dtype, np.floating):
            raise PretrainingError(
                f"objective.vectors: {name} has no vectors (its table is {data.shape}, {data.dtype}): give a pipeline "
                "that has some, such as those whose names end in _lg, or what `spacy init vectors` made"
            )
        if self._vectors.attr not in (ORTH, LOWER):
            raise PretrainingError(f"objective.vectors: {name} is looked up by something else than the words' text")

    @property
    def n_dims(self) -> int:
        """D."""
        return int(self._vectors.data.shape[1])

    def sha256(self) -> str:
        """The hash of all that the vectors are made of. Reads it whole."""
        digest = hashlib.sha256()
        for name in ("vectors", "key2row", "vectors.cfg"):
            digest.update(f"{name}\n".encode())
            if (self.folder / name).is_file():
                with (self.folder / name).open("rb") as file:
                    while part := file.read(2**20):
                        digest.update(part)
        return digest.hexdigest()

    @property
    def of_ngrams(self) -> bool:
        """Whether any word has a vector, made of its n-grams (floret)."""
        return bool(self._vectors.mode == "floret")

    def keys(self, words: Sequence[str]) -> Iterator[str]:
        """What each word is looked up by. A sentence's boundary is "<s>" or "</s>" where its own name has no vector."""
        for word in words:
            key = word.encode("utf8", "ignore").decode("utf8")  # spaCy cannot hash lone surrogates
            if self._vectors.attr == LOWER:
                key = key.lower()
            if key in _BOUNDARIES and not self.of_ngrams and self._vectors.find(key=key) < 0:
                key = _BOUNDARIES[key]
            yield key

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """The table's row for each word, -1 where there is none: (n,) int64. Of a table of words."""
        return np.asarray(self._vectors.find(keys=self.keys(words)), dtype=np.int64)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Rows of a table of words: (n, D)."""
        return np.asarray(self._vectors.data[rows])

    def compose(self, keys: Sequence[str]) -> np.ndarray:
        """The vectors of words by their n-grams: (n, D)."""
        return np.asarray(self._vectors.get_batch(keys))


class VectorTargets:
    """The vectors of a text's words, as a table for ``ContinuousOutput``, and which row each word has.

    vectors: where they come from. types: lists of words; others that are asked for count as words without a vector.
    table: (R, D) float32, or float16 from ``LARGE_TABLE`` bytes on: vectors of length 1. Row 0 is of no word.
    Raises PretrainingError for NaN or infinite numbers, or if no word has a vector.
    """

    def __init__(self, vectors: WordVectors, *types: Sequence[str]) -> None:
        self._vectors = vectors
        read: Callable[[slice], np.ndarray]
        if vectors.of_ngrams:
            keys = list(dict.fromkeys(chain.from_iterable(map(vectors.keys, types))))
            self._row_of_key = {key: row for row, key in enumerate(keys, start=1)}
            n_rows, read = len(keys), lambda part: vectors.compose(keys[part])
        else:
            rows = np.unique(np.concatenate([vectors.rows(some) for some in types]))
            rows = rows[rows >= 0]
            self._source_rows = rows
            n_rows, read = len(rows), lambda part: vectors.read(rows[part])
        dtype = np.float16 if 4 * n_rows * vectors.n_dims > LARGE_TABLE else np.float32
        table = np.zeros((n_rows + 1, vectors.n_dims), dtype=dtype)
        self._has_vector = np.zeros(n_rows + 1, dtype=bool)
        for start in range(0, n_rows, ROWS_AT_ONCE):
            found = read(slice(start, start + ROWS_AT_ONCE)).astype(np.float64)
            lengths = np.sqrt(np.square(found).sum(axis=1))
            if not np.isfinite(lengths).all():
                raise PretrainingError(f"objective.vectors: {vectors.name} holds NaN or infinite numbers")
            place = slice(start + 1, start + 1 + len(found))
            # A vector of zeros points nowhere: spaCy has them for words that it has none for.
            table[place] = found / np.where(lengths > 0, lengths, 1.0)[:, None]
            self._has_vector[place] = lengths > 0
        if not self._has_vector.any():
            raise PretrainingError(f"objective.vectors: {vectors.name} has a vector for none of the text's words")
        self.table = torch.from_numpy(table)

    def ids(self, types: Sequence[str]) -> np.ndarray:
        """The table's row of each word, 0 for one without a vector: (len(types),) int64."""
        if self._vectors.of_ngrams:
            get = self._row_of_key.get
            ids = np.fromiter((get(key, 0) for key in self._vectors.keys(types)), dtype=np.int64, count=len(types))
        else:
            rows = self._vectors.rows(types)
            places = np.minimum(np.searchsorted(self._source_rows, rows), len(self._source_rows) - 1)
            ids = np.where(self._source_rows[places] == rows, places + 1, 0)
        return np.where(self._has_vector[ids], ids, 0)

    def share_without(self, corpus: EncodedCorpus) -> float:
        """Share of a corpus's words that have no vector, 0 to 1."""
        return float(corpus.counts[self.ids(corpus.types) == 0].sum() / corpus.n_words)


def _folder(name: str) -> Path:
    """The folder in which ``vectors`` lies."""
    path = Path(name)
    if os.path.isdir(path):  # Path.is_dir raises for names that are too long
        candidates = [path / "vocab", path]
    elif util.is_package(name):
        # The data lies in a folder that ends in the package's version.
        try:
            candidates = sorted(util.get_package_path(name).glob("*/vocab"))
        except Exception as error:  # whatever a package does when it is imported
            raise PretrainingError(f"objective.vectors: the package {name} cannot be imported: {error}") from error
    else:
        raise PretrainingError(
            f"objective.vectors: {name} is neither a folder nor an installed package (`spacy download` installs one)"
        )
    for candidate in candidates:
        if (candidate / "vectors").is_file():
            return candidate
    raise PretrainingError(f"objective.vectors: there are no vectors in {name}: no file 'vectors', or 'vocab/vectors'")
