"""One function that recognises what lies at a path, and says what it found where it is not weights."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import ElmoError, WeightsError
from spacy_elmo.weights import (
    FAMILIES,
    load_bilm,
    load_softmax,
    recognised,
    save_bilm,
    save_bilm_hdf5,
    save_softmax,
)

from .writers import files_of, write_zip


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


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(1)}, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match="a pickle of PyTorch, which is never read"):
        load_bilm(tmp_path / "model.pt")
    (tmp_path / "weights.pkl").write_bytes(pickle.dumps([1]))
    with pytest.raises(WeightsError, match=r"weights\.pkl: is a pickle, which is never read"):
        load_bilm(tmp_path / "weights.pkl")


def test_errors_are_elmo_errors_and_value_errors() -> None:
    assert issubclass(WeightsError, ElmoError)
    assert issubclass(WeightsError, ValueError)


def test_the_public_fixture_folder(shared: Path) -> None:
    # Beside the weights it has token embeddings and the vectors of sentences, in HDF5 too.
    pytest.importorskip("h5py")
    folder = shared / "fixtures" / "allennlp_elmo"
    assert len(list(folder.glob("*.hdf5"))) == 5
    expected = load_bilm(folder / "options.json", folder / "lm_weights.hdf5")
    assert_same(load_bilm(folder), expected)
    assert_same(load_bilm(folder / "lm_weights.hdf5"), expected)


# Any names


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ("elmo_2x1024_128_2048cnn_1xhighway_options.json", "elmo_2x1024_128_2048cnn_1xhighway_weights.hdf5"),
        (
            "elmo_2x4096_512_2048cnn_2xhighway_options.json",
            "elmo_2x4096_512_2048cnn_2xhighway_weights_PubMed_only.hdf5",
        ),
        ("options.json", "elmo_pt_weights_dgx1.hdf5"),
        ("elmo_pt_options.json", "elmo_pt_weights.hdf5"),
        ("options.json", "model.hdf5"),
        ("My-Options-v2.json", "my.h5"),
        ("sizes.json", "w.h5"),
        ("config.json", "w.hdf5"),
    ],
)
def test_names(bilm: BiLM, hdf5: Path, options: str, weights: str) -> None:
    (hdf5 / "options.json").rename(hdf5 / options)
    (hdf5 / "weights.hdf5").rename(hdf5 / weights)
    (hdf5 / "._options.json").write_bytes(b"Mac OS X")
    (hdf5 / "._weights.hdf5").write_bytes(b"Mac OS X")
    (hdf5 / "meta.json").write_text('{"id": 1}')
    (hdf5 / "notes.json").write_text("[1, 2]")
    (hdf5 / "broken.json").write_text("{")
    for path in (hdf5, hdf5 / options, hdf5 / weights):
        with recognised(path) as found:
            assert found.family == "bilm-tf HDF5"
            assert found.path == hdf5 / weights
            assert found.load_softmax is None
            assert_same(found.load(), bilm)


def test_several_published_models_in_one_folder(bilm: BiLM, hdf5: Path, tmp_path: Path) -> None:
    other = BiLM(bilm.config).initialize(6)
    save_bilm_hdf5(other, tmp_path / "other")
    folder = tmp_path / "both"
    folder.mkdir()
    for model, name in ((hdf5, "elmo_small"), (tmp_path / "other", "elmo_medium")):
        for kind in ("options.json", "weights.hdf5"):
            (model / kind).rename(folder / f"{name}_{kind}")
    for kind in ("options.json", "weights.hdf5"):
        assert_same(load_bilm(folder / f"elmo_small_{kind}"), bilm)
        assert_same(load_bilm(folder / f"elmo_medium_{kind}"), other)
    with pytest.raises(
        WeightsError, match=r"several \.hdf5 files \(elmo_medium_weights\.hdf5, elmo_small_weights\.hdf5\)"
    ):
        load_bilm(folder)


def test_options_that_cannot_be_told_apart(hdf5: Path) -> None:
    (hdf5 / "options.json").rename(hdf5 / "a_options.json")
    (hdf5 / "b_options.json").write_text((hdf5 / "a_options.json").read_text())
    with pytest.raises(
        WeightsError, match=r"weights\.hdf5: has several files of options .*a_options\.json, b_options\.json"
    ):
        load_bilm(hdf5)
    assert load_bilm(hdf5 / "a_options.json").config.projection_dim == 4


def test_a_name_that_says_options_is_taken_at_its_word(hdf5: Path) -> None:
    (hdf5 / "options.json").write_text("{")
    with pytest.raises(WeightsError, match=r"options\.json: is not valid JSON"):
        load_bilm(hdf5)


def test_other_hdf5_files_do_not_count(bilm: BiLM, hdf5: Path) -> None:
    import h5py

    for name, dataset in (("tokens.hdf5", "embedding"), ("sentences.hdf5", "0")):
        with h5py.File(hdf5 / name, "w") as file:
            file.create_dataset(dataset, data=np.zeros((3, 4), dtype=np.float32))
    assert_same(load_bilm(hdf5), bilm)
    assert_same(load_bilm(hdf5 / "options.json"), bilm)
    (hdf5 / "weights.hdf5").unlink()
    with pytest.raises(WeightsError, match=r"none of its \.hdf5 files \(sentences\.hdf5, tokens\.hdf5\) holds"):
        load_bilm(hdf5)
    (hdf5 / "sentences.hdf5").unlink()
    with pytest.raises(WeightsError, match=r"no \.hdf5 file of weights beside tokens\.hdf5"):
        load_bilm(hdf5 / "tokens.hdf5")


def test_pointers_of_git_lfs(hdf5: Path, native: Path, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 374434792\n"
    for path in (hdf5 / "options.json", hdf5 / "weights.hdf5", native / "model.safetensors", tmp_path / "model.zip"):
        before = path.read_bytes() if path.exists() else b""
        path.write_bytes(pointer)
        with pytest.raises(WeightsError, match=rf"{path.name}: is a git-LFS pointer.*git lfs pull"):
            load_bilm(path if path.suffix == ".zip" else path.parent)
        path.write_bytes(before)


# The output layer of pretraining


def test_where_the_softmax_is(bilm: BiLM, native: Path, hdf5: Path, tmp_path: Path) -> None:
    softmax = FullSoftmax(5, 4).initialize(1)
    with recognised(native) as found:
        assert found.load_softmax is None
    save_softmax(softmax, native)
    save_softmax(softmax, tmp_path / "any name")
    archive = write_zip(tmp_path / "model.zip", files_of(native))
    for path in (native, native / "softmax.safetensors", tmp_path / "any name", archive):
        assert torch.equal(load_softmax(path).stored()["W"], softmax.W)
    for path in (native, archive):
        with recognised(path) as found:
            assert found.family == "spacy-elmo"
            assert found.load_softmax is not None
            assert torch.equal(found.load_softmax().stored()["b"], softmax.b)
    with pytest.raises(WeightsError, match=r"softmax\.safetensors: no such file"):
        load_softmax(hdf5)
    with pytest.raises(
        WeightsError, match=r"model\.zip: has no softmax\.safetensors.*\(bilm-tf HDF5\) hold no softmax"
    ):
        load_softmax(write_zip(archive, files_of(hdf5)))


def test_every_family_is_listed() -> None:
    assert len(set(FAMILIES)) == len(FAMILIES) == 5
