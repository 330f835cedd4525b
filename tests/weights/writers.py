"""Files of weights as the programs that publish them would write them: to the formats' description, without our code.

The weights are drawn, seeded, by `tests.reference.make_golden`; `reference` gives what they make of its sentences, in
float64.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spacy_elmo.bilm.model import BiLM
from tests.reference.make_golden import CASES, SENTENCES, VOCABULARY, draw_weights
from tests.reference.make_tf_checkpoint import variable_names
from tests.reference.numpy_bilm import NumpyBiLM

# float32 against float64. Weights are drawn large enough to run into clips, so rounding grows through the layers: up to
# 2.3e-6 in one order of summation or another (oneDNN's, MKL's). A weight in a wrong place is off by 0.1.
TOLERANCE = 4e-6

Arrays = dict[str, np.ndarray]


class Model:
    """Options, weights by their names in HDF5, a vocabulary for a word table, and a softmax; seeded by the case."""

    def __init__(self, case: str = "base") -> None:
        self.options: dict[str, Any] = copy.deepcopy(CASES[case])
        rng = np.random.default_rng([7, list(CASES).index(case)])
        self.weights: Arrays = draw_weights(self.options, rng)
        self.vocabulary = VOCABULARY if "char_cnn" not in self.options else None
        width = self.options["lstm"]["projection_dim"]
        self.softmax: Arrays = {
            "W": rng.standard_normal((len(VOCABULARY), width)).astype(np.float32),
            "b": rng.standard_normal(len(VOCABULARY)).astype(np.float32),
        }

    @property
    def n_layers(self) -> int:
        n_layers: int = self.options["lstm"]["n_layers"]
        return n_layers

    def reference(self) -> list[np.ndarray]:
        """Layers of each of SENTENCES, float64."""
        return NumpyBiLM(self.options, self.weights, vocabulary=self.vocabulary).encode(SENTENCES)

    def check(self, bilm: BiLM) -> None:
        """AssertionError if a loaded biLM makes other vectors, in any layer."""
        found = bilm.encode(SENTENCES)
        for layers, expected in zip(found, self.reference(), strict=True):
            assert layers.shape == expected.shape
            np.testing.assert_allclose(layers.numpy(), expected, rtol=0, atol=TOLERANCE)

    def one_layer_names(self) -> Arrays:
        """The weights under the names that bilm-tf gives to those of a single layer."""
        return {name.replace("/MultiRNNCell/Cell0/", "/"): value for name, value in self.weights.items()}

    def write_vocabulary(self, folder: Path, name: str = "vocab.txt") -> None:
        if self.vocabulary is not None:
            (folder / name).write_text("\n".join(self.vocabulary) + "\n", encoding="utf-8")


def write_hdf5(path: Path, datasets: Mapping[str, np.ndarray]) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file.create_dataset(name, data=value)


def write_hdf5_model(
    folder: Path, model: Model, *, options: str = "options.json", weights: str = "weights.hdf5"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / options).write_text(json.dumps(model.options))
    write_hdf5(folder / weights, model.weights)
    model.write_vocabulary(folder)
    return folder


def write_checkpoint_model(folder: Path, model: Model, *, name: str = "model.ckpt-12", n_shards: int = 1) -> Path:
    """A folder as bilm-tf's training leaves it, with the accumulators of its optimizer."""
    folder.mkdir(parents=True, exist_ok=True)
    options = copy.deepcopy(model.options)
    if "char_cnn" in options:
        options["char_cnn"]["n_characters"] = 261
    (folder / "options.json").write_text(json.dumps({**options, "bidirectional": True, "dropout": 0.1}))
    weights = model.one_layer_names() if model.n_layers == 1 else model.weights
    variables = variable_names(weights)
    variables |= {f"lm/softmax/{name}": value for name, value in model.softmax.items()}
    variables |= {f"{name}/Adagrad": np.ones_like(value) for name, value in variables.items()}
    variables |= {"global_step": np.array(12, dtype=np.int64), "train_perplexity": np.array(0, dtype=np.float32)}
    write_bundle(folder / name, variables, n_shards=n_shards)
    model.write_vocabulary(folder)
    return folder


# TensorFlow's checkpoints

_DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def crc32c(data: bytes) -> int:
    """Bit by bit, as RFC 3720 defines it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""  # zeros are left out


def message(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def header(n_shards: int, *, big_endian: bool = False) -> bytes:
    return number(1, n_shards) + number(2, int(big_endian)) + message(3, number(1, 1))


def entry(value: np.ndarray, *, shard: int = 0, offset: int = 0) -> bytes:
    shape = b"".join(message(2, number(1, size)) for size in value.shape)
    data = value.tobytes()
    return (
        number(1, _DTYPES[value.dtype.name])
        + message(2, shape)
        + number(3, shard)
        + number(4, offset)
        + number(5, len(data))
        + varint(6 << 3 | 5)
        + struct.pack("<I", masked(crc32c(data)))
    )


def block(rows: Iterable[tuple[bytes, bytes]], *, restart_every: int = 16, compression: int = 0) -> bytes:
    """A block of a table, with its trailer."""
    out, restarts, last = bytearray(), [0], b""
    for i, (key, value) in enumerate(rows):
        shared = 0
        if i % restart_every == 0:
            restarts += [len(out)] if i else []
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    out += b"".join(struct.pack("<I", restart) for restart in [*restarts, len(restarts)])
    out.append(compression)
    return bytes(out) + struct.pack("<I", masked(crc32c(bytes(out))))


def table(rows: Mapping[bytes, bytes], *, rows_per_block: int = 20, compression: int = 0) -> bytes:
    """A table of several blocks."""
    out, index = bytearray(), []
    ordered = sorted(rows.items())

    def add(content: bytes) -> bytes:
        handle = varint(len(out)) + varint(len(content) - 5)
        out.extend(content)
        return handle

    for start in range(0, len(ordered), rows_per_block):
        some = ordered[start : start + rows_per_block]
        index.append((some[-1][0], add(block(some, restart_every=4, compression=compression))))
    footer = add(block([])) + add(block(index, restart_every=1))
    return bytes(out) + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def write_bundle(prefix: Path, variables: Mapping[str, np.ndarray], *, n_shards: int = 1) -> None:
    """A checkpoint; tensors go to the shards in turn."""
    shards = [bytearray() for _ in range(n_shards)]
    rows = {b"": header(n_shards)}
    for i, (name, value) in enumerate(sorted(variables.items())):
        shard = i % n_shards
        rows[name.encode()] = entry(value, shard=shard, offset=len(shards[shard]))
        shards[shard] += value.tobytes()
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(rows))
    for i, shard_bytes in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{i:05d}-of-{n_shards:05d}").write_bytes(shard_bytes)


# Archives


def files_of(folder: Path, inside: str = "") -> dict[str, bytes]:
    """Content of the files of a folder, by the name that each gets in an archive."""
    prefix = f"{inside}/" if inside else ""
    return {
        prefix + path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_zip(path: Path, files: Mapping[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def write_tar(path: Path, files: Mapping[str, bytes], mode: str = "w", format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, mode, format=format) as archive:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def write_gzip(path: Path, data: bytes) -> Path:
    path.write_bytes(gzip.compress(data, mtime=0))
    return path
