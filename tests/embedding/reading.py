"""What files of vectors hold, read as the documentation says."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest


def writable(suffix: str) -> bool:
    """Whether the library of that format is installed."""
    return find_spec({".h5": "h5py", ".npz": "numpy", ".parquet": "pyarrow"}[suffix]) is not None


def read(path: Path) -> list[tuple[list[str], np.ndarray]]:
    """Words and vectors of each sentence. (Parquet: (L + 1, n, 2P) or (n, 2P), sentences without words left out.)"""
    return {".h5": read_hdf5, ".hdf5": read_hdf5, ".npz": read_npz, ".parquet": read_parquet}[path.suffix](path)


def read_hdf5(path: Path) -> list[tuple[list[str], np.ndarray]]:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "r") as file:
        assert set(file) == set(map(str, range(len(file))))
        datasets = [file[str(number)] for number in range(len(file))]
        return [(json.loads(dataset.attrs["tokens"]), dataset[...]) for dataset in datasets]


def read_npz(path: Path) -> list[tuple[list[str], np.ndarray]]:
    with np.load(path, allow_pickle=False) as file:
        numbers = range(len(file.files) // 2)
        assert file.files == [name for number in numbers for name in (f"{number}", f"{number}.tokens")]
        return [(json.loads(file[f"{number}.tokens"].item()), file[f"{number}"]) for number in numbers]


def read_parquet(path: Path) -> list[tuple[list[str], np.ndarray]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(path)
    sentences = table["sentence"].to_numpy()
    assert (np.diff(sentences) >= 0).all()
    columns = {}
    for name in table.column_names[3:]:
        column = table[name].combine_chunks()
        columns[name] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(table), column.type.list_size)
    found = []
    for number in np.unique(sentences):
        rows = np.flatnonzero(sentences == number)
        assert table["position"].to_numpy()[rows].tolist() == list(range(len(rows)))
        layers = [values[rows] for values in columns.values()]
        vectors = layers[0] if list(columns) == ["vector"] else np.stack(layers)
        found.append((table["token"].take(rows).to_pylist(), vectors))
    return found
