"""TensorFlow's checkpoints (version 2, the "tensor bundle"), read without TensorFlow.

`PREFIX.index` is a table (`sorted_table.py`) from names to where each tensor lies: the key "" has a BundleHeaderProto
(1 number of shards, 2 byte order: 0 little), the others a BundleEntryProto (1 data type, 2 shape, 3 shard, 4 offset,
5 size in bytes, 6 masked CRC-32C, 7 slices of a partitioned variable). `PREFIX.data-00000-of-00001` and so on hold the
values, raw. Numbers of fields and types are those of tensorflow/core/protobuf/tensor_bundle.proto and
tensorflow/core/framework/{tensor_shape,types}.proto.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from ..errors import WeightsError
from .crc32c import crc32c, unmasked
from .files import DamagedError, check_weights_file, clear_errors, exists
from .folders import INDEX_SUFFIX
from .protobuf import fields, signed
from .sorted_table import MAGIC, entries

# A bilm-tf index takes 10 KB; reading one byte of it takes about a microsecond.
_LARGEST_INDEX = 4 * 2**20
_CHUNK = 16 * 2**20
# Types that weights may have, by their number; every other type is an error if its tensor is asked for.
_TORCH_TYPES = {1: torch.float32, 2: torch.float64, 14: torch.bfloat16, 19: torch.float16}


class Entry(NamedTuple):
    """Where a tensor lies. crc: of its bytes. sliced: it is stored in parts, under other names."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool


class TensorBundle:
    """Tensors of a checkpoint; values are read one tensor at a time.

    prefix: the path of its files up to ".index". n_shards: how many files of values it has.
    entries: where each tensor lies, by name. where: the index file, for errors.
    """

    what = "variable"

    def __init__(self, prefix: Path, n_shards: int, entries: Mapping[str, Entry]) -> None:
        self.prefix, self.n_shards, self.entries = prefix, n_shards, entries
        self.where = str(_index(prefix))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape by name."""
        return {name: entry.shape for name, entry in self.entries.items()}

    def check(self, names: Iterable[str]) -> None:
        """WeightsError if the files cannot hold the values of these tensors, all together."""
        sizes: dict[int, int] = {}  # of the shards
        total = 0
        for name in names:
            entry = self.entries[name]
            dtype = self._dtype(name)
            if entry.size != math.prod(entry.shape) * dtype.itemsize:
                raise WeightsError(
                    f"{self.where}: '{name}' has {entry.size} bytes, but its shape is {entry.shape} of {dtype}"
                )
            if entry.shard not in sizes:
                path = self._shard(entry.shard)
                with clear_errors(path, "cannot be read"):
                    sizes[entry.shard] = path.stat().st_size
            if entry.offset + entry.size > sizes[entry.shard]:
                raise WeightsError(
                    f"{self._shard(entry.shard)}: has {sizes[entry.shard]} bytes, but '{name}' ends at byte "
                    f"{entry.offset + entry.size}: it is cut short"
                )
            total += entry.size
        if total > sum(sizes.values()):
            raise WeightsError(f"{self.where}: its tensors have {total} bytes, its files {sum(sizes.values())}")

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Read a tensor that was checked into a contiguous float32 one of its shape.

        WeightsError if it cannot be read, or its bytes do not have the checksum of the index.
        """
        entry, dtype, path = self.entries[name], self._dtype(name), self._shard(self.entries[name].shard)
        direct = dtype is out.dtype
        values = (out if direct else torch.empty(entry.shape, dtype=dtype)).view(-1)
        raw = values.view(torch.uint8).numpy()
        crc = 0
        with clear_errors(path, "cannot be read"), path.open("rb") as file:
            file.seek(entry.offset)
            for start in range(0, entry.size, _CHUNK):
                chunk = raw[start : start + _CHUNK]
                if file.readinto(chunk.data) != len(chunk):
                    raise WeightsError(f"{path}: '{name}' is cut short")
                crc = crc32c(chunk, crc)
        if crc != unmasked(entry.crc):
            raise WeightsError(f"{path}: the bytes of '{name}' do not have its checksum: the file is damaged")
        if sys.byteorder == "big":
            raw[:] = raw.reshape(-1, dtype.itemsize)[:, ::-1].reshape(-1)
        if not direct:
            out.view(-1).copy_(values)

    def _dtype(self, name: str) -> torch.dtype:
        entry = self.entries[name]
        if entry.sliced:
            raise WeightsError(f"{self.where}: '{name}' is a partitioned variable, which is not read")
        if entry.dtype not in _TORCH_TYPES:
            raise WeightsError(f"{self.where}: '{name}' has TensorFlow's data type {entry.dtype}, not floating-point")
        return _TORCH_TYPES[entry.dtype]

    def _shard(self, number: int) -> Path:
        path = self.prefix.with_name(f"{self.prefix.name}.data-{number:05d}-of-{self.n_shards:05d}")
        if not exists(path):
            raise WeightsError(f"{path}: no such file, but {self.where} says that weights lie there")
        check_weights_file(path)
        return path


def read_bundle(prefix: Path) -> TensorBundle:
    """Read the index at `prefix` + ".index". WeightsError if it is missing or broken."""
    index = _index(prefix)
    check_weights_file(index)
    with clear_errors(index, "cannot be read"), index.open("rb") as file:
        data = file.read(_LARGEST_INDEX + 1)
    if len(data) > _LARGEST_INDEX:
        raise WeightsError(f"{index}: is larger than {_LARGEST_INDEX} bytes: not the index of a biLM's checkpoint")
    try:
        return TensorBundle(prefix, *_read_index(data))
    except DamagedError as error:
        raise WeightsError(f"{index}: is not the whole index of a TensorFlow checkpoint: {error}") from error


def _index(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + INDEX_SUFFIX)


def is_index(path: Path) -> bool:
    """Whether a file is the index of a checkpoint, by its end."""
    with clear_errors(path, "cannot be read"), path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - len(MAGIC)))
        return file.read() == MAGIC


def _read_index(data: bytes) -> tuple[int, dict[str, Entry]]:
    """Number of shards, and the tensors by name."""
    rows = entries(data)
    key, header = next(rows, (None, b""))
    if key != b"":
        raise DamagedError("it has no header; checkpoints of TensorFlow's first format (before 1.0) are not read")
    n_shards = 0
    for number, value in fields(header):
        if number == 1 and isinstance(value, int):
            n_shards = value
        elif number == 2 and value:
            raise DamagedError("it was written on a big-endian machine")
    if not 1 <= n_shards <= 99_999:
        raise DamagedError(f"it says that there are {n_shards} files of values")
    found = {}
    for key, value in rows:
        entry = _entry(value)
        if entry.shard >= n_shards:
            raise DamagedError(f"an entry points to file {entry.shard} of {n_shards}")
        # The parts of a partitioned variable have names that are no text.
        found[key.decode("utf-8", "surrogateescape")] = entry
    return n_shards, found


def _entry(data: bytes) -> Entry:
    numbers = dict.fromkeys((1, 3, 4, 5, 6), 0)
    shape: tuple[int, ...] = ()
    sliced = False
    for number, value in fields(data):
        if number in numbers and isinstance(value, int):
            numbers[number] = value
        elif number == 2 and isinstance(value, bytes):
            shape = _shape(value)
        elif number == 7:
            sliced = True
    dtype, shard, offset, size, crc = numbers.values()
    if signed(offset) < 0 or signed(size) < 0 or crc >= 1 << 32:
        raise DamagedError("an entry points outside of all files")
    return Entry(dtype, shape, shard, offset, size, crc, sliced)


def _shape(data: bytes) -> tuple[int, ...]:
    """Of a TensorShapeProto: 2 dimension {1 size}."""
    sizes = []
    for number, value in fields(data):
        if number == 2 and isinstance(value, bytes):
            size = 0
            for inner, dimension in fields(value):
                if inner == 1 and isinstance(dimension, int):
                    size = dimension
            if signed(size) < 0:
                raise DamagedError("a tensor has a dimension of unknown size")
            sizes.append(size)
    return tuple(sizes)
