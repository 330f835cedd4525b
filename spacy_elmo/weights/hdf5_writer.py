"""Writing HDF5 files: their structure by HDF5 itself, their values as plain bytes, a block at a time.

HDF5's own writer ends the process where the disk is full, and made in memory a file would be held twice.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import IO, Any, NamedTuple

import torch

from .hdf5_file import import_h5py


class Values(NamedTuple):
    """A dataset to be written: its shape, and its values in order, in tensors of any size."""

    shape: tuple[int, ...]
    blocks: Iterable[torch.Tensor]


def write_hdf5(file: IO[bytes], datasets: Mapping[str, Values]) -> None:
    """Write datasets of float32 into an empty file. Equal values are equal bytes.

    datasets: by whole name, groups before the slashes.
    Raises OSError as the file does, ValueError if the blocks of a dataset are not as many values as its shape says,
    WeightsError if h5py is not installed.
    """
    structure = _Structure()
    offsets = _allocate(structure, {name: values.shape for name, values in datasets.items()})
    for position, data in structure.written:
        file.seek(position)
        file.write(data)
    for name, (shape, blocks) in datasets.items():
        file.seek(offsets[name])
        for block in blocks:
            array = block.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy()
            file.write((array if sys.byteorder == "little" else array.byteswap()).data)
        if file.tell() != offsets[name] + 4 * math.prod(shape):
            raise ValueError(f"dataset '{name}' is of shape {shape}, and its blocks are not")


class _Structure:
    """A file as h5py takes it, of which only what is written is kept: of allocated values, nothing is."""

    def __init__(self) -> None:
        self.written: list[tuple[int, bytes]] = []
        self._position = self._size = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        return self._size

    def flush(self) -> None:
        pass

    def write(self, data: Any) -> int:
        self.written.append((self._position, bytes(data)))
        self._position += len(self.written[-1][1])
        self._size = max(self._size, self._position)
        return len(self.written[-1][1])

    def read(self, size: int) -> bytes:
        data = bytearray(size)
        for position, part in self.written:
            start, stop = max(position, self._position), min(position + len(part), self._position + size)
            if start < stop:
                data[start - self._position : stop - self._position] = part[start - position : stop - position]
        self._position += size
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        buffer[:] = self.read(len(buffer))
        return len(buffer)


def _allocate(structure: _Structure, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Make the datasets, without values. RETURNS: where the values of each begin."""
    h5py = import_h5py()
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    layout.set_obj_track_times(False)
    names = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    names.set_create_intermediate_group(True)
    offsets = {}
    with h5py.File(structure, "w") as file:
        for name, shape in shapes.items():
            space = h5py.h5s.create_simple(shape)
            kind = h5py.h5t.IEEE_F32LE
            dataset = h5py.h5d.create(file.id, None, kind, space, dcpl=layout)
            offsets[name] = dataset.get_offset()
            h5py.h5o.link(dataset, file.id, name.encode(), lcpl=names)
    return offsets
