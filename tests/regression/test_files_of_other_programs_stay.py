"""Saving replaced and removed files of other programs that have the same names, without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from spacy_elmo import BiLM, BiLMConfig, load_bilm, save_bilm
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.cli import elmo_cli
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import save_bilm_hdf5, save_native, save_softmax, save_token_embeddings
from spacy_elmo.weights.native import StoredOutput

MARKS = ["<S>", "</S>", "<UNK>"]


def characters(seed: int = 0) -> BiLM:
    return BiLM(BiLMConfig(lstm_dim=4, projection_dim=3, filters=((1, 4),), char_dim=2)).initialize(seed)


def words(*more: str) -> BiLM:
    config = BiLMConfig(lstm_dim=4, projection_dim=3, filters=None, n_words=3 + len(more))
    return BiLM(config, vocabulary=[*MARKS, *more]).initialize(0)


def foreign_safetensors(path: Path) -> None:
    save_file({"bert.embeddings.word_embeddings.weight": torch.ones(3, 2)}, path)


def foreign_hdf5(path: Path) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["model_weights/dense/kernel:0"] = [[1.0]]


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content, encoding="utf8")


def with_softmax(folder: Path) -> None:
    save_native(characters(), folder, StoredOutput(FullSoftmax(4, 3).initialize(0), [*MARKS, "a"]))


NATIVE: Callable[[Path], object] = lambda folder: save_bilm(characters(), folder)  # noqa: E731
HDF5: Callable[[Path], object] = lambda folder: save_bilm_hdf5(characters(), folder)  # noqa: E731
WORDS_HDF5: Callable[[Path], object] = lambda folder: save_bilm_hdf5(words("a"), folder)  # noqa: E731
TOKENS: Callable[[Path], object] = lambda folder: save_token_embeddings(characters(), ["a"], folder)  # noqa: E731
SOFTMAX: Callable[[Path], object] = lambda folder: save_softmax(FullSoftmax(4, 3), folder)  # noqa: E731
CASES: dict[str, tuple[Callable[[Path], object], str, Callable[[Path], object]]] = {
    "model of another library": (NATIVE, "model.safetensors", foreign_safetensors),
    "no safetensors at all": (NATIVE, "model.safetensors", text("mine")),
    "config of another library": (NATIVE, "config.json", text('{"model_type": "bert"}')),
    "options, and no weights": (NATIVE, "config.json", text(json.dumps(characters().config.to_options()))),
    "a user's vocabulary": (NATIVE, "vocabulary.json", text('["mine"]')),
    "a user's characters": (NATIVE, "characters.json", text('{"mine": 1}')),
    "a list of words": (with_softmax, "vocabulary.txt", text("my own words\n")),
    "another softmax": (with_softmax, "softmax.safetensors", foreign_safetensors),
    "another softmax alone": (SOFTMAX, "softmax.safetensors", foreign_safetensors),
    "options of another program": (HDF5, "options.json", text('{"mine": 1}')),
    "weights of another program": (HDF5, "weights.hdf5", foreign_hdf5),
    "no HDF5": (HDF5, "weights.hdf5", text("mine")),
    "other embeddings": (HDF5, "elmo_token_embeddings.hdf5", foreign_hdf5),
    "a list of words, HDF5": (WORDS_HDF5, "vocabulary.txt", text("my own words\n")),
    "a vocabulary, and no weights": (WORDS_HDF5, "vocabulary.txt", text("\n".join([*MARKS, "mine"]))),
    "a list of words, token embeddings": (TOKENS, "vocabulary.txt", text("my own words\n")),
    "embeddings of another program": (TOKENS, "elmo_token_embeddings.hdf5", foreign_hdf5),
}


@pytest.mark.parametrize("case", list(CASES))
def test_foreign_files_are_refused_before_anything_is_written(case: str, tmp_path: Path) -> None:
    save, name, write = CASES[case]
    if save not in (NATIVE, with_softmax, SOFTMAX):
        pytest.importorskip("h5py")
    write(tmp_path / name)
    before = (tmp_path / name).read_bytes()
    with pytest.raises(WeightsError, match=r"is there already, and not part of|may belong to another model in HDF5"):
        save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == before
    (tmp_path / name).unlink()
    save(tmp_path)
    save(tmp_path)  # ours is replaced


def test_a_users_files_beside_our_weights(tmp_path: Path) -> None:
    save_bilm(characters(), tmp_path)
    (tmp_path / "vocabulary.json").write_text('{"mine": 1}')
    with pytest.raises(WeightsError, match=r"vocabulary\.json: is there already"):
        save_bilm(characters(1), tmp_path)
    assert (tmp_path / "vocabulary.json").read_text() == '{"mine": 1}'
    assert torch.equal(load_bilm(tmp_path).state_dict()["token_encoder.char_embed"], embed_of(characters()))


def embed_of(bilm: BiLM) -> torch.Tensor:
    return bilm.state_dict()["token_encoder.char_embed"]


def test_a_file_that_stays_as_it_is_does_not_matter(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    (tmp_path / "vocabulary.txt").write_text("<S>\n</S>\n<UNK>\na\n", encoding="utf8")
    save_token_embeddings(characters(), ["a"], tmp_path)
    assert (tmp_path / "elmo_token_embeddings.hdf5").exists()


def test_what_is_left_of_our_own_is_replaced(root: Path, tmp_path: Path) -> None:
    old = root / "tests" / "weights" / "fixtures" / "v0.1" / "words"
    for path in old.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "model.safetensors").open("rb+") as file:
        file.truncate((old / "model.safetensors").stat().st_size - 4)  # cut short: still ours
    save_bilm(characters(), tmp_path)
    assert torch.equal(embed_of(load_bilm(tmp_path)), embed_of(characters()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    weights = {name: tensor for name, tensor in characters(1).state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors")  # by another tool: without our header
    save_bilm(characters(), tmp_path)
    assert torch.equal(embed_of(load_bilm(tmp_path)), embed_of(characters()))


def test_convert_says_so(tmp_path: Path) -> None:
    save_bilm(characters(), tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    foreign_safetensors(tmp_path / "theirs" / "model.safetensors")
    before = (tmp_path / "theirs" / "model.safetensors").read_bytes()
    result = CliRunner().invoke(elmo_cli, ["convert", str(tmp_path / "ours"), str(tmp_path / "theirs")])
    assert result.exit_code == 1
    assert "choose another folder" in " ".join(result.output.split())
    assert (tmp_path / "theirs" / "model.safetensors").read_bytes() == before
