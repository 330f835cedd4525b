"""The same faults in the files of every format: one WeightsError, which names the file and says what it found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import load_bilm, save_bilm

from .many_langs_folder import write_model as write_many_langs_model
from .writers import (
    Model,
    files_of,
    variable_names,
    write_bundle,
    write_checkpoint_model,
    write_hdf5,
    write_hdf5_model,
    write_tar,
    write_zip,
)

pytest.importorskip("h5py")

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 374434792\n"


def hdf5(folder: Path) -> Path:
    return write_hdf5_model(folder, Model())


def words(folder: Path) -> Path:
    return write_hdf5_model(folder, Model("words"))


def token_embeddings(folder: Path) -> Path:
    write_hdf5_model(folder, Model())
    write_hdf5(folder / "tokens.hdf5", {"embedding": np.ones((3, 6), dtype=np.float32)})
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    return folder / "tokens.hdf5"


def checkpoint(folder: Path) -> Path:
    return write_checkpoint_model(folder, Model())


def native(folder: Path) -> Path:
    save_bilm(load_bilm(write_hdf5_model(folder, Model())), folder / "native")
    for name in ("options.json", "weights.hdf5"):
        (folder / name).unlink()
    return folder / "native"


def many_langs(folder: Path) -> Path:
    write_many_langs_model(folder)
    return folder


# How a model is written, and which of its files a load needs.
FORMATS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "hdf5": (hdf5, ("options.json", "weights.hdf5")),
    "words": (words, ("options.json", "weights.hdf5", "vocab.txt")),
    "token embeddings": (token_embeddings, ("options.json", "weights.hdf5", "tokens.hdf5", "vocab.txt")),
    "checkpoint": (checkpoint, ("options.json", "model.ckpt-12.index", "model.ckpt-12.data-00000-of-00001")),
    "native": (native, ("model.safetensors",)),
    "many langs": (
        many_langs,
        ("config.json", "cnn_sizes.json", "char.dic", "word.dic", "token_embedder.pkl", "encoder.pkl"),
    ),
}
FILES = [(format, name) for format, (_, names) in FORMATS.items() for name in names]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(format: str) -> Path:
        path = FORMATS[format][0](tmp_path / "model")
        load_bilm(path)
        return path

    return write


def file_of(path: Path, name: str) -> Path:
    return (path if path.is_dir() else path.parent) / name


def refused(path: Path, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_bilm(path)


def places(path: Path, tmp_path: Path) -> Iterator[Path]:
    """The model where it lies, and packed into archives if it is a folder."""
    yield path
    if path.is_dir():
        yield write_zip(tmp_path / "model.zip", files_of(path, "elmo"))
        yield write_tar(tmp_path / "model.tar.gz", files_of(path), "w:gz")


@pytest.mark.parametrize(("format", "name"), FILES)
def test_a_pointer_of_git_lfs(format: str, name: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    path = written(format)
    file_of(path, name).write_bytes(POINTER)
    for place in places(path, tmp_path):
        refused(place, rf"{re.escape(name)}: is a git-LFS pointer, not the file itself: run `git lfs pull`")


@pytest.mark.parametrize(("format", "name"), FILES)
def test_a_missing_file(format: str, name: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    path = written(format)
    file_of(path, name).unlink()
    for place in places(path, tmp_path):
        with pytest.raises(WeightsError) as info:
            load_bilm(place)
        # Which kind of file, where a folder without it could be anything else.
        wanted = {"vocab.txt": "vocabulary", "weights.hdf5": ".hdf5", "model.ckpt-12.index": "checkpoint"}
        assert wanted.get(name, name) in str(info.value)
        assert place.name in str(info.value)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7])
@pytest.mark.parametrize(("format", "name"), [one for one in FILES if not one[1].endswith((".dic", ".txt"))])
def test_a_file_cut_short(format: str, name: str, share: float, written: Callable[[str], Path], tmp_path: Path) -> None:
    path = written(format)
    file = file_of(path, name)
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    for place in places(path, tmp_path):
        refused(place, re.escape(name))


@pytest.mark.parametrize(("format", "name"), [one for one in FILES if one[1].endswith((".dic", ".txt"))])
def test_words_cut_short(format: str, name: str, written: Callable[[str], Path]) -> None:
    path = written(format)
    file = file_of(path, name)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    refused(path, rf"{re.escape(name)}|the vocabulary has \d+ words, but the word table \d+ rows")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(format: str, value: float, written: Callable[[str], Path]) -> None:
    path = written(format)
    model = Model("words" if format == "words" else "base")
    name = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/B"
    model.weights[name][3] = value
    said = f"'{name}' has 1 NaN or infinite values of 36"
    if format == "checkpoint":
        write_bundle(path / "model.ckpt-12", variable_names(model.weights))
        said = "'lm/RNN_1/rnn/multi_rnn_cell/cell_1/lstm_cell/bias' has 1 NaN"
    elif format == "native":
        tensors = load_file(path / "model.safetensors")
        tensors["backward_lstm.layers.1.bias"][3] = value
        save_file(tensors, path / "model.safetensors")  # the config is beside it
        said = r"'backward_lstm\.layers\.1\.bias' has 1 NaN"
    elif format == "many langs":
        tensors = torch.load(path / "encoder.pkl", weights_only=True)
        tensors["backward_layer_1.state_linearity.bias"][3] = value
        torch.save(tensors, path / "encoder.pkl")
        said = r"encoder\.pkl: 'backward_layer_1\.state_linearity\.bias' has 1 NaN"
    else:
        write_hdf5(file_of(path, "weights.hdf5"), model.weights)
    refused(path, said)


# The file of the sizes of each format, and where in it an activation, and the cells of an LSTM, stand.
SIZES = {
    "hdf5": ("options.json", "char_cnn", "lstm"),
    "token embeddings": ("options.json", "char_cnn", "lstm"),
    "checkpoint": ("options.json", "char_cnn", "lstm"),
    "native": ("config.json", "char_cnn", "lstm"),
    "many langs": ("cnn_sizes.json", "token_embedder", "encoder"),
}


def change(path: Path, format: str, section: int, key: str, value: Any) -> None:
    file = file_of(path, SIZES[format][0])
    sizes = json.loads(file.read_text(encoding="utf8"))
    sizes[SIZES[format][section]][key] = value
    file.write_text(json.dumps(sizes), encoding="utf8")
    if format == "native":  # what counts there is the header
        tensors = load_file(path / "model.safetensors")
        save_file(tensors, path / "model.safetensors", {"spacy_elmo_config": json.dumps(sizes)})


@pytest.mark.parametrize("format", SIZES)
def test_an_unknown_activation(format: str, written: Callable[[str], Path]) -> None:
    path = written(format)
    change(path, format, 1, "activation", "gelu")
    refused(path, r"(options|cnn_sizes)\.json|model\.safetensors.*: activation is 'relu' or 'tanh', not 'gelu'")


@pytest.mark.parametrize("format", SIZES)
@pytest.mark.parametrize("dim", [8, 10, 2**40])
def test_shapes_that_disagree_with_the_options(format: str, dim: int, written: Callable[[str], Path]) -> None:
    # No memory is there for the largest: shapes are compared before anything is allocated.
    path = written(format)
    change(path, format, 2, "dim", dim)
    refused(path, rf"has shape \(\d+, \d+\), but its options ask for .*{4 * dim}")


@pytest.mark.parametrize("format", SIZES)
def test_layers_and_highways_that_are_not_there(format: str, written: Callable[[str], Path]) -> None:
    path = written(format)
    change(path, format, 2, "n_layers", 10**12)
    refused(path, "its options ask for (dataset|variable|tensor)s that it lacks: .* and more")
    change(path, format, 2, "n_layers", 2)
    change(path, format, 1, "n_highway", 0)
    refused(path, "holds (dataset|variable|tensor)s that its options do not ask for: .*(high)")
