"""HDF5 files written by hand: what h5py finds in them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import IO, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_elmo.weights.hdf5_writer import Values, write_hdf5

h5py = pytest.importorskip("h5py")

NAMES = st.lists(st.sampled_from(["a", "b/c", "b/d", "RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0", "é"]), unique=True)
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@settings(deadline=None)
@given(NAMES, st.data())
def test_every_dataset_is_read_back(names: list[str], data: st.DataObject) -> None:
    arrays = {name: np.random.default_rng(1).random(data.draw(SHAPES), dtype=np.float32) for name in names}
    size = data.draw(st.integers(1, 5))  # rows of a block
    datasets = {name: Values(array.shape, torch.from_numpy(array).split(size)) for name, array in arrays.items()}
    file = io.BytesIO()
    write_hdf5(file, datasets)
    with h5py.File(file, "r") as read:
        found: list[str] = []
        read.visititems(lambda name, node: found.append(name) if isinstance(node, h5py.Dataset) else None)
        assert sorted(found) == sorted(names)
        for name, array in arrays.items():
            assert read[name].dtype == np.dtype("<f4")
            np.testing.assert_array_equal(read[name][()], array)


def test_other_kinds_of_numbers_become_float32(tmp_path: Path) -> None:
    values = torch.arange(6, dtype=torch.float64).view(3, 2)
    with (tmp_path / "x.hdf5").open("wb") as file:  # a file that cannot be read meanwhile
        write_hdf5(file, {"x": Values((2, 3), [values.t()])})
    with h5py.File(tmp_path / "x.hdf5", "r") as read:
        np.testing.assert_array_equal(read["x"][()], values.t().numpy())


def test_blocks_of_another_size() -> None:
    for blocks in ([torch.zeros(3)], [torch.zeros(2), torch.zeros(3)]):
        with pytest.raises(ValueError, match=r"dataset 'x' is of shape \(2, 2\), and its blocks are not"):
            write_hdf5(io.BytesIO(), {"x": Values((2, 2), blocks)})


def test_values_are_never_held_all() -> None:
    class Counting(io.RawIOBase):
        """A file of any size, of which nothing is kept."""

        position = written = 0

        def seek(self, offset: int, whence: int = 0) -> int:
            self.position = offset
            return offset

        def tell(self) -> int:
            return self.position

        def write(self, data: object) -> int:
            n = memoryview(data).nbytes  # type: ignore[arg-type]
            self.position += n
            self.written += n
            return n

    block = torch.zeros(2**16, 64)  # 16 MB
    file = Counting()
    write_hdf5(cast("IO[bytes]", file), {"embedding": Values((2**16 * 256, 64), (block for _ in range(256)))})
    assert 2**32 <= file.written < 2**32 + 2**14
