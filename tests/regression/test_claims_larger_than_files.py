"""Files that hold more or less than they say: kilobytes that took gigabytes, chunks that were read past their ends."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from spacy_elmo import load_bilm
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import load_vocabulary
from spacy_elmo.weights.native import bilm_from_bytes
from tests.weights.many_langs_folder import write_model
from tests.weights.writers import Model, write_hdf5_model

NAME = "CNN_proj/b_proj"


@pytest.fixture
def h5py() -> Any:
    return pytest.importorskip("h5py")


@pytest.fixture
def model(h5py: Any, tmp_path: Path) -> Path:
    write_hdf5_model(tmp_path, Model())
    return tmp_path


def replaced(h5py: Any, folder: Path, **settings: Any) -> None:
    """The same values, stored in another way."""
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        values = file[NAME][:]
        del file[NAME]
        file.create_dataset(NAME, data=values, **settings)


def low_level(h5py: Any, folder: Path, chunk: int, filters: list[int], raw: bytes, mask: int = 0) -> None:
    """One chunk with these bytes in it, whatever they are."""
    with h5py.File(folder / "weights.hdf5", "r+") as file:
        shape = file[NAME].shape
        del file[NAME]
        layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        layout.set_chunk((chunk,))
        for number in filters:
            layout.set_filter(number, h5py.h5z.FLAG_MANDATORY, (9,) if number == 1 else ())
        space = h5py.h5s.create_simple(shape, (h5py.h5s.UNLIMITED,))
        dataset = h5py.h5d.create(file.id, NAME.encode(), h5py.h5t.IEEE_F32LE, space, dcpl=layout)
        dataset.write_direct_chunk((0,), raw, mask)


@pytest.mark.parametrize(
    "settings",
    [
        {"chunks": True},
        {"compression": "gzip"},
        {"compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (3,), "compression": "gzip"},
        {"chunks": (4,), "fletcher32": True, "shuffle": True},
        {"maxshape": (None,), "fletcher32": True},
    ],
)
def test_chunks_as_programs_write_them_are_read(settings: dict[str, Any], h5py: Any, model: Path) -> None:
    replaced(h5py, model, **settings)
    Model().check(load_bilm(model))


def test_a_small_dataset_in_a_huge_chunk(h5py: Any, model: Path) -> None:
    n_bytes = 80 * 2**20
    low_level(h5py, model, n_bytes // 4, [1], zlib.compress(bytes(n_bytes)))
    with pytest.raises(WeightsError, match=r"its datasets make 83\d{6} bytes, but the file has"):
        load_bilm(model)


def test_a_small_chunk_that_inflates_to_a_huge_one(h5py: Any, model: Path) -> None:
    low_level(h5py, model, 4096, [1], zlib.compress(bytes(8 * 2**20)))
    with pytest.raises(WeightsError, match=rf"dataset '{NAME}' has a chunk of more than its 16384 bytes"):
        load_bilm(model)


def test_a_chunk_that_is_stored_larger_than_it_is(h5py: Any, model: Path) -> None:
    low_level(h5py, model, 16, [1], bytes(100_000))
    with pytest.raises(WeightsError, match="has a chunk of 100000 bytes for 64"):
        load_bilm(model)


@pytest.mark.parametrize(
    ("filters", "raw", "mask"),
    [
        pytest.param([1], zlib.compress(bytes(64)), 0, id="gzip"),
        pytest.param([1], bytes(64), 1, id="gzip skipped"),
        pytest.param([2], bytes(64), 0, id="shuffle"),
        pytest.param([3], bytes(16384), 0, id="no checksum"),
        pytest.param([2, 1, 3], zlib.compress(bytes(16380)) + bytes(4), 0, id="all three"),
    ],
)
def test_a_chunk_of_fewer_bytes_than_its_size(
    filters: list[int], raw: bytes, mask: int, h5py: Any, model: Path
) -> None:
    """What lay behind them in memory became weights, or the process died."""
    low_level(h5py, model, 4096, filters, raw, mask)
    with pytest.raises(WeightsError, match=rf"dataset '{NAME}' has a chunk of fewer than its 16384 bytes"):
        load_bilm(model)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_changed_byte_in_the_list_of_chunks(compressed: bool, h5py: Any, model: Path) -> None:
    """The size of a plain chunk, and the bit that says that a compressed one is plain."""
    file = model / "weights.hdf5"
    low_level(h5py, model, 4096, [1] * compressed, zlib.compress(bytes(16384)) if compressed else bytes(16384))
    with h5py.File(file) as opened:
        chunk = opened[NAME].id.get_chunk_info(0)
    sizes = (chunk.size, 0), (chunk.size, 1) if compressed else (64, 0)
    entry, damaged = (struct.pack("<II16xQ", *fields, chunk.byte_offset) for fields in sizes)
    data = file.read_bytes()
    assert data.count(entry) == 1
    file.write_bytes(data.replace(entry, damaged))
    with pytest.raises(WeightsError, match=r"has a chunk of fewer than its 16384 bytes"):
        load_bilm(model)


def test_a_compressed_chunk_that_is_damaged(h5py: Any, model: Path) -> None:
    low_level(h5py, model, 4096, [1], b"no zlib")
    with pytest.raises(WeightsError, match=rf"dataset '{NAME}' cannot be read: .*incorrect header check"):
        load_bilm(model)


def test_lzf_is_refused(h5py: Any, model: Path) -> None:
    """Its chunks inflated to any size, or to less than theirs. What the message says works."""
    with h5py.File(model / "weights.hdf5") as file:
        values = file[NAME][:]
    replaced(h5py, model, compression="lzf", shuffle=True)
    with pytest.raises(
        WeightsError, match=rf"dataset '{NAME}' is compressed with LZF, .* or with gzip .in h5py: create"
    ):
        load_bilm(model)
    with h5py.File(model / "weights.hdf5", "r+") as file:
        del file[NAME]
        file.create_dataset(NAME, data=values, compression="gzip")
    Model().check(load_bilm(model))


def test_options_that_are_gigabytes_in_memory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"[" + b"[]," * 2**19 + b"[]]")
    (tmp_path / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"{}      ")
    with pytest.raises(WeightsError, match=r"config\.json: has 1572868 bytes, but a text here has 1048576 at most"):
        load_bilm(tmp_path)
    safetensors.torch.save_file(
        {"x": torch.zeros(1)}, tmp_path / "model.safetensors", {"spacy_elmo_config": f"[{'[],' * 2**19}[]]"}
    )
    with pytest.raises(WeightsError, match="'spacy_elmo_config' in its header has more than 1048576 characters"):
        bilm_from_bytes((tmp_path / "model.safetensors").read_bytes())


def test_a_vocabulary_may_be_large(tmp_path: Path) -> None:
    words = ["<S>", "</S>", "<UNK>", *(f"{'long' * 30}{i}" for i in range(10_000))]
    (tmp_path / "vocabulary.json").write_text(json.dumps(words))
    assert (tmp_path / "vocabulary.json").stat().st_size > 2**20
    assert load_vocabulary(tmp_path / "vocabulary.json") == words


@pytest.mark.parametrize("filters", [[1, 1], [1, 2], [4], [6], [1, 1, 1, 1, 1, 1], [3, 1]])
def test_filters_that_no_weights_pass_through(filters: list[int], h5py: Any, model: Path) -> None:
    try:
        low_level(h5py, model, 4096, filters, zlib.compress(zlib.compress(bytes(16384))))
    except (ValueError, OSError, RuntimeError) as error:
        pytest.skip(f"this HDF5 cannot write it: {error}")
    with pytest.raises(WeightsError, match="passes through filters that are not read"):
        load_bilm(model)


def test_only_some_chunks_are_written(h5py: Any, model: Path) -> None:
    with h5py.File(model / "weights.hdf5", "r+") as file:
        shape = file[NAME].shape
        del file[NAME]
        file.create_dataset(NAME, shape, "f4", chunks=(1,))[0] = 1.0
    with pytest.raises(WeightsError, match=rf"has values in 1 of its {shape[0]} chunks only: its dump was interrupted"):
        load_bilm(model)


@pytest.mark.parametrize("deep", [True, False])
def test_groups_without_end(deep: bool, h5py: Any, model: Path) -> None:
    with h5py.File(model / "weights.hdf5", "r+") as file:
        group = file
        for n in range(400 if deep else 10_100):
            made = group.create_group(f"g{n}")
            group = made if deep else group
    with pytest.raises(WeightsError, match="or more than 32 groups in each other: not the weights of a biLM"):
        load_bilm(model)


def test_a_group_that_holds_itself(h5py: Any, model: Path) -> None:
    with h5py.File(model / "weights.hdf5", "r+") as file:
        file["CNN/again"] = file["CNN"]
    with pytest.raises(WeightsError, match="more than 32 groups in each other"):
        load_bilm(model)


def test_a_second_name_hides_nothing(h5py: Any, model: Path) -> None:
    with h5py.File(model / "weights.hdf5", "r+") as file:
        file["A"] = file[NAME]
    with pytest.raises(WeightsError, match="datasets that its options do not ask for: A;"):
        load_bilm(model)


def repeated(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.full((1,) * len(shape), 0.01).expand(shape)


@pytest.mark.parametrize("legacy", [False, True])
def test_tensors_that_repeat_one_value(legacy: bool, tmp_path: Path) -> None:
    write_model(tmp_path)
    state = torch.load(tmp_path / "encoder.pkl", weights_only=True)
    state = {name: repeated(tuple(tensor.shape)) for name, tensor in state.items()}
    torch.save(state, tmp_path / "encoder.pkl", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(
        WeightsError, match=r"does not have its values one after the other \(its strides are \(0, 0\)\)"
    ):
        load_bilm(tmp_path)


def test_tensors_that_overlap(tmp_path: Path) -> None:
    write_model(tmp_path)
    values = torch.zeros(2**20)
    torch.save({f"weight.{n}": values[n:] for n in range(30)}, tmp_path / "encoder.pkl")
    with pytest.raises(WeightsError, match=r"encoder\.pkl: its tensors make 1258\d{5} bytes, but the file has"):
        load_bilm(tmp_path)


def test_views_of_one_storage_that_do_not_overlap_are_read(tmp_path: Path) -> None:
    write_model(tmp_path)
    expected = load_bilm(tmp_path).state_dict()
    state = torch.load(tmp_path / "encoder.pkl", weights_only=True)
    flat, start = torch.cat([tensor.reshape(-1) for tensor in state.values()]), 0
    for name, tensor in list(state.items()):
        state[name] = flat[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
    torch.save(state, tmp_path / "encoder.pkl")
    found = load_bilm(tmp_path).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
