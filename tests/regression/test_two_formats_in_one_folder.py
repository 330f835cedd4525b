"""A model saved in HDF5 where one in our own format lay was never read: the older one came back, silently."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spacy_elmo import BiLM, load_bilm, save_bilm
from spacy_elmo.errors import WeightsError
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.weights import save_bilm_hdf5

pytest.importorskip("h5py")


def new(seed: int) -> BiLM:
    return random_bilm(lstm_dim=8, projection_dim=4, seed=seed)


def check_unchanged(folder: Path, bilm: BiLM) -> None:
    found = load_bilm(folder).state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in bilm.state_dict().items())


def test_hdf5_is_not_saved_beside_our_own_format(tmp_path: Path) -> None:
    save_bilm(new(1), tmp_path)
    names = sorted(tmp_path.iterdir())
    with pytest.raises(WeightsError, match=r"own format \(model\.safetensors\): choose another folder, or remove it"):
        save_bilm_hdf5(new(2), tmp_path)
    assert sorted(tmp_path.iterdir()) == names
    check_unchanged(tmp_path, new(1))


@pytest.mark.parametrize("prefix", ["", "elmo_2x8_4_"])
@pytest.mark.parametrize("suffix", [".hdf5", ".h5"])
def test_our_own_format_is_not_saved_beside_hdf5(prefix: str, suffix: str, tmp_path: Path) -> None:
    save_bilm_hdf5(new(1), tmp_path)
    (tmp_path / "options.json").rename(tmp_path / f"{prefix}options.json")
    (tmp_path / "weights.hdf5").rename(tmp_path / f"{prefix}weights{suffix}")
    names = sorted(tmp_path.iterdir())
    with pytest.raises(
        WeightsError,
        match=rf"in HDF5 \({prefix}options\.json, {prefix}weights\{suffix}\): choose another folder, or remove it",
    ):
        save_bilm(new(2), tmp_path)
    assert sorted(tmp_path.iterdir()) == names
    check_unchanged(tmp_path, new(1))


@pytest.mark.parametrize(
    ("options", "weights"), [("options.json", "elmo.hdf5"), ("elmo_options.json", "weights.hdf5"), ("o.json", "w.h5")]
)
def test_hdf5_takes_no_files_from_a_model_of_other_names(options: str, weights: str, tmp_path: Path) -> None:
    save_bilm_hdf5(new(1), tmp_path)
    (tmp_path / "options.json").rename(tmp_path / options)
    (tmp_path / "weights.hdf5").rename(tmp_path / weights)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(WeightsError, match=r"may belong to another model in HDF5 .*: choose another folder"):
        save_bilm_hdf5(new(2), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_same_format_replaces_and_other_files_do_not_matter(tmp_path: Path) -> None:
    for save in (save_bilm, save_bilm_hdf5):
        folder = tmp_path / save.__name__
        folder.mkdir()
        for name in ("vocab.txt", "notes.json", "softmax.safetensors"):
            (folder / name).write_text("mine")
        save(new(1), folder)
        save(new(2), folder)
        check_unchanged(folder, new(2))
        assert (folder / "vocab.txt").read_text() == "mine"
