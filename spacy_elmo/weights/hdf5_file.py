"""HDF5 files, opened with care: datasets by name, each looked at before a value of any is read."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import WeightsError
from .files import HDF5_MAGIC, check_weights_file, clear_errors
from .limits import most_bytes

# What h5py, and zlib, raise for damaged files, depending on where the damage lies.
_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, NotImplementedError, ArithmeticError, zlib.error)
_MOST_NODES = 10_000  # datasets and groups
_DEEPEST = 32  # groups in each other
_MOST_CHUNKS = 100_000
# Filters of a chunked dataset, in the order in which programs apply them.
_SHUFFLE, _DEFLATE, _FLETCHER32, _LZF = 2, 1, 3, 32000
_FILTERS = (_SHUFFLE, _DEFLATE, _FLETCHER32)


class Datasets:
    """The datasets of an open HDF5 file, those in groups too, by their whole names.

    where: the file, for errors. shapes: by name.
    """

    what = "dataset"

    def __init__(self, found: Mapping[str, Any], size: int, where: str) -> None:
        self._found = found
        self._size = size
        self.where = where
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, dataset in found.items():
            with _clear_errors(where, f"dataset '{name}' has no shape that can be read"):
                self.shapes[name] = tuple(dataset.shape or ())

    def check(self, names: Iterable[str]) -> None:
        """WeightsError if these datasets do not hold floating-point numbers, all of them, in this file.

        A dataset may have been given a shape and no values (HDF5 reads zeros then), lie in another file, or be
        compressed to next to nothing.
        """
        total = n_chunks = 0
        chunked = []
        for name in names:
            dataset = self._found[name]
            with _clear_errors(self.where, f"dataset '{name}' cannot be read"):
                dtype, stored = dataset.dtype, dataset.id.get_storage_size()
                elsewhere = dataset.is_virtual or dataset.external
            if dtype.kind != "f":
                raise WeightsError(f"{self.where}: dataset '{name}' holds {dtype}, not floating-point weights")
            if elsewhere:
                raise WeightsError(f"{self.where}: dataset '{name}' lies in another file, which is never opened")
            claimed = math.prod(self.shapes[name]) * dtype.itemsize
            if claimed and not stored:
                raise WeightsError(
                    f"{self.where}: dataset '{name}' has a shape but no values: its dump was interrupted"
                )
            if dataset.chunks:
                with _clear_errors(self.where, f"dataset '{name}' cannot be read"):
                    chunks = _Chunks(dataset)
                claimed = chunks.number * chunks.size
                n_chunks += chunks.number
                chunked.append((name, chunks))
            total += claimed
        if total > most_bytes(self._size):
            raise WeightsError(
                f"{self.where}: its datasets make {total} bytes, but the file has {self._size}: it is cut short, "
                "or compressed more than weights can be"
            )
        if n_chunks > _MOST_CHUNKS:
            raise WeightsError(f"{self.where}: its datasets lie in more than {_MOST_CHUNKS} chunks")
        for name, chunks in chunked:
            with _clear_errors(self.where, f"dataset '{name}' cannot be read"):
                reason = chunks.problem()
            if reason:
                raise WeightsError(f"{self.where}: dataset '{name}' {reason}")

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Read a dataset into a contiguous float32 tensor of its shape; other floating-point types are converted."""
        with _clear_errors(self.where, f"dataset '{name}' cannot be read"):
            self._found[name].read_direct(out.numpy())


class _Chunks:
    """The parts in which a dataset is stored, each passed through filters.

    number: of them. size: bytes of each, as it is read: at the edges it may be larger than what is left of the dataset.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset.id
        self._starts = [range(0, length, step) for length, step in zip(dataset.shape, dataset.chunks, strict=True)]
        self.number = math.prod(map(len, self._starts))
        self.size = math.prod(dataset.chunks) * dataset.dtype.itemsize
        layout = self._dataset.get_create_plist()
        # Before more is asked for: a file may list any number of them.
        self._filters = [layout.get_filter(i)[0] for i in range(min(layout.get_nfilters(), len(_FILTERS) + 1))]

    def problem(self) -> str:
        """What is wrong with the chunks, after the name of the dataset; empty if nothing is.

        HDF5 inflates each to whatever it gives, and reads a whole one from that, even past its end: what it gives is
        measured here before.
        """
        if _LZF in self._filters:  # its chunks cannot be measured
            return (
                "is compressed with LZF, which is not read: write the file again without compression, or with gzip "
                '(in h5py: create_dataset(name, data=values, compression="gzip"))'
            )
        if self._filters != [kind for kind in _FILTERS if kind in self._filters]:
            return f"passes through filters that are not read (HDF5's numbers: {self._filters})"
        found = self._dataset.get_num_chunks()
        if found < self.number:
            return f"has values in {found} of its {self.number} chunks only: its dump was interrupted"
        # Before any is read. In one walk: HDF5 looks for the size of a certain chunk by walking over all of them.
        stored: list[int] = []
        self._dataset.chunk_iter(lambda chunk: stored.append(chunk.size))
        if max(stored, default=0) > self.size + self.size // 8 + 1024:
            return f"has a chunk of {max(stored)} bytes for {self.size}"
        for size in map(self._inflated, product(*self._starts)) if self._filters else stored:
            if size != self.size:
                return f"has a chunk of {'more' if size > self.size else 'fewer'} than its {self.size} bytes"
        return ""

    def _inflated(self, start: tuple[int, ...]) -> int:
        """Bytes of the chunk at a place, once it has passed the filters; one more than its size stands for any more."""
        mask, data = self._dataset.read_direct_chunk(start)
        applied = [kind for place, kind in enumerate(self._filters) if not mask >> place & 1]
        if _DEFLATE in applied:
            return len(zlib.decompressobj().decompress(data, self.size + 1))
        return len(data) - 4 * (_FLETCHER32 in applied)  # its checksum


@contextmanager
def opened_hdf5(path: Path) -> Iterator[Datasets]:
    """The datasets of a file; no values are read. WeightsError if it is missing, broken, or h5py is not installed."""
    if not check_weights_file(path).startswith(HDF5_MAGIC):
        raise WeightsError(f"{path}: is not an HDF5 file")
    h5py = import_h5py()
    where = str(path)
    with clear_errors(path, "cannot be read"):
        size = path.stat().st_size
    with _clear_errors(where, "not a whole HDF5 file (cut short, or damaged)"):
        file = h5py.File(path, "r")
    try:
        yield Datasets(_datasets(file, h5py, where), size, where)
    finally:
        # Closing a damaged file may fail too; what is wrong with it has been said.
        with suppress(*_ERRORS):
            file.close()


def may_hold_lstm(path: Path) -> bool:
    """Whether a file may hold the weights of a biLM: it has an LSTM, or it cannot be told because it is broken."""
    try:
        with opened_hdf5(path) as datasets:
            return any(name.startswith(("RNN", "rnn")) for name in datasets.shapes)
    except WeightsError:
        return True


def import_h5py() -> ModuleType:
    """h5py. WeightsError with the line that installs it if it is missing."""
    try:
        import h5py
    except ImportError as error:
        raise WeightsError(
            'reading and writing .hdf5 weights needs h5py, which is not installed: pip install "spacy-elmo[hdf5]"'
        ) from error
    return h5py


def _datasets(file: Any, h5py: ModuleType, where: str) -> dict[str, Any]:
    """All datasets by name, one-layer names brought to those of several layers.

    Links to other places and files are not followed. What has two names is there under both.
    """
    found: dict[str, Any] = {}
    n_nodes = 0
    with _clear_errors(where, "its list of datasets cannot be read"):
        groups = [("", file)]
        while groups:
            prefix, group = groups.pop()
            for name in group:
                n_nodes += 1
                if n_nodes > _MOST_NODES or prefix.count("/") > _DEEPEST:
                    raise WeightsError(
                        f"{where}: has more than {_MOST_NODES} datasets and groups, or more than {_DEEPEST} groups in "
                        "each other: not the weights of a biLM"
                    )
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    continue
                node = group[name]
                if isinstance(node, h5py.Group):
                    groups.append((f"{prefix}{name}/", node))
                elif isinstance(node, h5py.Dataset):
                    # TensorFlow leaves MultiRNNCell/Cell0 out of the names of a single layer.
                    name = f"{prefix}{name}".replace("/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/")
                    found[name] = node
    return found


@contextmanager
def _clear_errors(where: str, what: str) -> Iterator[None]:
    try:
        yield
    except WeightsError:
        raise
    except _ERRORS as error:
        raise WeightsError(f"{where}: {what}: {error}") from error
