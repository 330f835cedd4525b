"""The files that vectors are written to: HDF5 as bilm-tf writes it, numpy's .npz, Parquet. docs/embedding.md has them.

A writer gets a step's records and appends them to a ``PartialFile``.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import ElmoError
from ..weights.hdf5_file import import_h5py
from .partial_file import PartialFile


class Record(NamedTuple):
    """What is written of a line: its words, and their vectors, (L + 1, n, 2P) or (n, 2P)."""

    tokens: Sequence[str]
    vectors: np.ndarray


class Writer(Protocol):
    """Writes records into a file that was opened, anew or to go on."""

    def write(self, first: int, records: Sequence[Record]) -> Any:
        """Append a step. first: number of the first record. RETURNS: what the journal is to note, or None."""

    def finish(self) -> None:
        """Make the file's product whole."""


class Hdf5:
    """Dataset "0", "1", … for each line, (L + 1, n, 2P) or (n, 2P), its words as JSON in the attribute ``tokens``."""

    in_place = True

    def __init__(self, file: PartialFile, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._file = file
        self._h5py = import_h5py()

    @staticmethod
    def check() -> None:
        """Raises WeightsError, an ElmoError, with the line that installs it, where h5py is missing."""
        import_h5py()

    def write(self, first: int, records: Sequence[Record]) -> None:
        """Open the file, append, close it: closed, it is a whole file."""
        # That of all earlier names is found from the file, so that a step is the same whether it was opened before.
        file = self._h5py.File(self._file, "r+" if first else "w")
        try:
            for number, record in enumerate(records, first):
                dataset = file.create_dataset(str(number), data=record.vectors)
                dataset.attrs["tokens"] = _tokens_json(record.tokens)
        finally:
            file.close()

    def finish(self) -> None:
        """It is whole."""


class Npz:
    """Member "0", "1", … for each line, as numpy's ``savez`` has them, and "0.tokens": its words as JSON, in bytes."""

    in_place = True
    _ATTRIBUTES = (
        "filename",
        "CRC",
        "file_size",
        "compress_size",
        "header_offset",
        "create_version",
        "extract_version",
        "external_attr",
    )

    def __init__(self, file: PartialFile, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        file.seek(0, os.SEEK_END)
        # "w" begins where the file stands; what it would know had it written all, comes from the journal.
        self._zip = zipfile.ZipFile(file, "w")
        for values in (values for note in file.notes for values in note):
            member = _member(values[0])
            for name, value in zip(self._ATTRIBUTES, values, strict=True):
                setattr(member, name, value)
            self._zip.infolist().append(member)

    @staticmethod
    def check() -> None:
        """Nothing is needed but numpy."""

    def write(self, first: int, records: Sequence[Record]) -> list[list[Any]]:
        """Append two members a record. RETURNS: what the list of members at the file's end will say of them."""
        before = len(self._zip.infolist())
        for number, record in enumerate(records, first):
            self._append(f"{number}.npy", record.vectors)
            self._append(f"{number}.tokens.npy", np.array(_tokens_json(record.tokens).encode()))
        return [[getattr(member, name) for name in self._ATTRIBUTES] for member in self._zip.infolist()[before:]]

    def _append(self, name: str, array: np.ndarray) -> None:
        with self._zip.open(_member(name), "w", force_zip64=array.nbytes >= 2**30) as stream:
            np.lib.format.write_array(stream, array, allow_pickle=False)

    def finish(self) -> None:
        """Write the list of members."""
        self._zip.close()


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name)  # of 1980: the time of day has no place in a result


class Parquet:
    """A row a token: ``sentence``, ``position``, ``token``, and ``vector``, or ``layer_0`` to ``layer_L``.

    Parquet's list of contents stands at the end and cannot be gone on with, so that steps are collected in Arrow's
    stream format, and become row groups when all are there.
    """

    in_place = False

    def __init__(self, file: PartialFile, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._arrow = pa = import_pyarrow()
        self._file = file
        *layers, width = shape
        self._vectors = [f"layer_{i}" for i in range(layers[0])] if layers else ["vector"]
        number = pa.float32() if dtype == np.float32 else pa.float16()
        self._schema = pa.schema(
            [("sentence", pa.int64()), ("position", pa.int32()), ("token", pa.string())]
            + [(name, pa.list_(number, width)) for name in self._vectors]
        )

    @staticmethod
    def check() -> None:
        """Raises ElmoError, with the line that installs it, where pyarrow is missing."""
        import_pyarrow()

    def write(self, first: int, records: Sequence[Record]) -> None:
        """Append a stream of one batch."""
        pa = self._arrow
        lengths = [len(record.tokens) for record in records]
        columns = [
            np.repeat(np.arange(first, first + len(records), dtype=np.int64), lengths),
            np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
            pa.array([token for record in records for token in record.tokens], pa.string()),
        ]
        for layer, name in enumerate(self._vectors):
            parts = [record.vectors if name == "vector" else record.vectors[layer] for record in records]
            field = self._schema.field(name).type
            columns.append(pa.FixedSizeListArray.from_arrays(np.concatenate(parts).ravel(), field.list_size))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as stream:
            stream.write_batch(pa.record_batch(columns, schema=self._schema))
        self._file.seek(0, os.SEEK_END)
        self._file.write(sink.getvalue())

    def finish(self) -> None:
        """Write the product from the streams."""
        import pyarrow.parquet

        product = self._file.product
        try:
            with (
                product.open("wb") as target,
                self._file.path.open("rb") as source,
                pyarrow.parquet.ParquetWriter(target, self._schema, use_dictionary=["token"]) as writer,
            ):
                while source.tell() < self._file.seek(0, os.SEEK_END):
                    with self._arrow.ipc.open_stream(source) as stream:
                        for batch in stream:
                            writer.write_batch(batch, row_group_size=max(1, len(batch)))
        except OSError as error:
            with suppress(OSError):
                product.unlink()
            raise ElmoError(f"{self._file.output}: cannot be written: {error.strerror or error}") from error


def import_pyarrow() -> ModuleType:
    """pyarrow. ElmoError with the line that installs it if it is missing."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ElmoError(
            'writing .parquet files needs pyarrow, which is not installed: pip install "spacy-elmo[parquet]"'
        ) from error
    return pyarrow


def _tokens_json(tokens: Sequence[str]) -> str:
    return json.dumps(list(tokens), ensure_ascii=False)


FORMATS: dict[str, type[Hdf5 | Npz | Parquet]] = {
    ".h5": Hdf5,
    ".hdf5": Hdf5,
    ".npz": Npz,
    ".parquet": Parquet,
}


def format_of(path: Path) -> type[Hdf5 | Npz | Parquet]:
    """The format that a file's name asks for. Raises ElmoError for an unknown one, or one whose library is missing."""
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise ElmoError(f"{path}: vectors are written to files named {', '.join(FORMATS)}")
    found.check()
    return found
