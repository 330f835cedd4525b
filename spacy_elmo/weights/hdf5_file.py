"""HDF5 files, opened with care: datasets by name, each looked at before a value of any is read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..errors import WeightsError
from .files import HDF5_MAGIC, check_weights_file, clear_errors
from .limits import most_bytes

# What h5py raises for damaged files, depending on where the damage lies.
_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, NotImplementedError, ArithmeticError)
_MOST_DATASETS = 10_000


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
        total = 0
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
            total += claimed
        if total > most_bytes(self._size):
            raise WeightsError(
                f"{self.where}: its datasets make {total} bytes, but the file has {self._size}: it is cut short, "
                "or compressed more than weights can be"
            )

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Read a dataset into a contiguous float32 tensor of its shape; other floating-point types are converted."""
        with _clear_errors(self.where, f"dataset '{name}' cannot be read"):
            self._found[name].read_direct(out.numpy())


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
    """All datasets by name, one-layer names brought to those of several layers. Links are not followed."""
    found: dict[str, Any] = {}

    def visit(name: str, node: Any) -> bool | None:
        if isinstance(node, h5py.Dataset):
            # TensorFlow leaves MultiRNNCell/Cell0 out of the names of a single layer.
            found[name.replace("/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/")] = node
        return True if len(found) > _MOST_DATASETS else None  # anything but None ends the walk

    with _clear_errors(where, "its list of datasets cannot be read"):
        if file.visititems(visit):
            raise WeightsError(f"{where}: has more than {_MOST_DATASETS} datasets: not the weights of a biLM")
    return found


@contextmanager
def _clear_errors(where: str, what: str) -> Iterator[None]:
    try:
        yield
    except WeightsError:
        raise
    except _ERRORS as error:
        raise WeightsError(f"{where}: {what}: {error}") from error
