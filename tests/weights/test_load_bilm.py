"""One function that recognises what lies at a path, and says what it found where it is not weights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.errors import ElmoError, WeightsError
from spacy_elmo.weights import load_bilm, save_bilm, save_bilm_hdf5


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    config = BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 3), (3, 4)), char_dim=2)
    return BiLM(config).initialize(5)


@pytest.fixture
def hdf5(bilm: BiLM, tmp_path: Path) -> Path:
    pytest.importorskip("h5py")
    save_bilm_hdf5(bilm, tmp_path / "hdf5")
    return tmp_path / "hdf5"


@pytest.fixture
def native(bilm: BiLM, tmp_path: Path) -> Path:
    save_bilm(bilm, tmp_path / "native")
    return tmp_path / "native"


def assert_same(found: BiLM, expected: BiLM) -> None:
    assert found.config == expected.config
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


def test_all_ways_to_name_hdf5_weights(bilm: BiLM, hdf5: Path) -> None:
    options, weights = hdf5 / "options.json", hdf5 / "weights.hdf5"
    assert_same(load_bilm(hdf5), bilm)
    assert_same(load_bilm(str(hdf5)), bilm)
    assert_same(load_bilm(weights), bilm)
    assert_same(load_bilm(options), bilm)
    assert_same(load_bilm(options, weights), bilm)
    assert_same(load_bilm(options, weights=str(weights)), bilm)


def test_published_file_names(bilm: BiLM, hdf5: Path) -> None:
    (hdf5 / "options.json").rename(hdf5 / "elmo_2x4096_512_2048cnn_2xhighway_options.json")
    (hdf5 / "weights.hdf5").rename(hdf5 / "elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5")
    assert_same(load_bilm(hdf5), bilm)


def test_all_ways_to_name_our_folder(bilm: BiLM, native: Path) -> None:
    for path in (native, native / "model.safetensors", native / "config.json"):
        assert_same(load_bilm(path), bilm)


def test_ours_comes_first_where_both_lie(bilm: BiLM, hdf5: Path, tmp_path: Path) -> None:
    other = BiLM(bilm.config).initialize(6)
    save_bilm(other, tmp_path / "other")
    for path in (tmp_path / "other").iterdir():
        path.rename(hdf5 / path.name)  # saving there is refused
    assert_same(load_bilm(hdf5), other)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=rf"{re.escape(str(tmp_path / 'no'))}: no such file or folder"):
        load_bilm(tmp_path / "no")
    with pytest.raises(WeightsError, match="no such file"):
        load_bilm(tmp_path / "options.json", tmp_path / "weights.hdf5")
    with pytest.raises(WeightsError, match=r"holds no biLM.*found: nothing"):
        load_bilm(tmp_path)
    (tmp_path / "readme.md").write_text("hello")
    with pytest.raises(WeightsError, match=r"holds no biLM.*found: readme\.md"):
        load_bilm(tmp_path)
    with pytest.raises(WeightsError, match="neither safetensors nor HDF5"):
        load_bilm(tmp_path / "readme.md")


def test_a_folder_without_weights_or_with_several(hdf5: Path) -> None:
    (hdf5 / "a.hdf5").write_bytes((hdf5 / "weights.hdf5").read_bytes())
    with pytest.raises(WeightsError, match=r"several \.hdf5 files \(a\.hdf5, weights\.hdf5\).*load_bilm\("):
        load_bilm(hdf5)
    (hdf5 / "a.hdf5").unlink()
    (hdf5 / "weights.hdf5").unlink()
    with pytest.raises(WeightsError, match=r"has options, but no \.hdf5"):
        load_bilm(hdf5)


def test_weights_without_options(hdf5: Path) -> None:
    (hdf5 / "options.json").unlink()
    with pytest.raises(WeightsError, match=r"weights\.hdf5: has no options\.json beside it"):
        load_bilm(hdf5 / "weights.hdf5")


def test_a_folder_in_place_of_a_file(hdf5: Path) -> None:
    with pytest.raises(WeightsError, match="is a folder where a file was expected"):
        load_bilm(hdf5 / "options.json", hdf5)


def test_archives_and_pickles_are_not_opened(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1)}, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match="a pickle of PyTorch, which is never read"):
        load_bilm(tmp_path / "model.pt")


def test_errors_are_elmo_errors_and_value_errors() -> None:
    assert issubclass(WeightsError, ElmoError)
    assert issubclass(WeightsError, ValueError)


def test_loading_the_public_fixture_folder_lists_its_files(shared: Path) -> None:
    pytest.importorskip("h5py")
    folder = shared / "fixtures" / "allennlp_elmo"
    with pytest.raises(WeightsError, match=r"several \.hdf5 files .*lm_embeddings_0\.hdf5.*"):
        load_bilm(folder)
    assert load_bilm(folder / "lm_weights.hdf5").config.projection_dim == 16
