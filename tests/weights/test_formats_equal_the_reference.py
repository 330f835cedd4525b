"""Each format: a file built to its description, loaded by the one call, against the float64 reference, all layers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spacy_elmo.weights import load_bilm, load_softmax, save_bilm, save_bilm_hdf5
from tests.reference.make_golden import CASES, SENTENCES, VOCABULARY, draw_weights
from tests.reference.numpy_bilm import NumpyBiLM

from .writers import (
    TOLERANCE,
    Model,
    files_of,
    write_checkpoint_model,
    write_gzip,
    write_hdf5,
    write_hdf5_model,
    write_tar,
    write_zip,
)

pytest.importorskip("h5py")


@pytest.fixture(params=list(CASES))
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.param)


def test_hdf5(model: Model, tmp_path: Path) -> None:
    model.check(load_bilm(write_hdf5_model(tmp_path, model)))


def test_checkpoint(model: Model, tmp_path: Path) -> None:
    model.check(load_bilm(write_checkpoint_model(tmp_path, model)))


def test_our_own_folder_and_our_hdf5(model: Model, tmp_path: Path) -> None:
    bilm = load_bilm(write_hdf5_model(tmp_path / "public", model))
    save_bilm(bilm, tmp_path / "native")
    model.check(load_bilm(tmp_path / "native"))
    save_bilm_hdf5(bilm, tmp_path / "hdf5")
    model.check(load_bilm(tmp_path / "hdf5"))


def test_one_layer_dump(tmp_path: Path) -> None:
    model = Model("one_layer")
    write_hdf5_model(tmp_path, model)
    write_hdf5(tmp_path / "weights.hdf5", model.one_layer_names())
    model.check(load_bilm(tmp_path))


@pytest.mark.parametrize("n_shards", [1, 3])
def test_checkpoint_in_an_archive_and_in_shards(n_shards: int, tmp_path: Path) -> None:
    model = Model()
    folder = write_checkpoint_model(tmp_path / "model", model, n_shards=n_shards)
    archive = write_zip(tmp_path / "model.zip", files_of(folder, "elmo"))
    model.check(load_bilm(archive))
    np.testing.assert_array_equal(load_softmax(archive).stored()["W"].detach().numpy(), model.softmax["W"])


@pytest.mark.parametrize("inside", ["", "elmo", "a/b/c"])
@pytest.mark.parametrize("suffix", [".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2"])
def test_archives(inside: str, suffix: str, tmp_path: Path) -> None:
    model = Model()
    files = files_of(write_hdf5_model(tmp_path / "model", model), inside)
    files |= {"README.md": b"hello", "__MACOSX/._weights.hdf5": b"Mac OS X", f"{inside or '.'}/._weights.hdf5": b"Mac"}
    path = tmp_path / f"model{suffix}"
    if suffix == ".zip":
        write_zip(path, files)
    else:
        write_tar(path, files, {".tar": "w", ".tar.bz2": "w:bz2"}.get(suffix, "w:gz"))
    model.check(load_bilm(path))


@pytest.mark.parametrize("extras", [(), ("vocab.txt",), ("vocab.txt.gz", "meta.json"), ("vocab.txt", "meta.json")])
def test_archives_of_the_nlpl_repository(extras: tuple[str, ...], tmp_path: Path) -> None:
    model = Model()
    folder = write_hdf5_model(tmp_path / "model", model, weights="model.hdf5")
    lines = "\n".join(VOCABULARY).encode() + b"\n"
    for name in extras:
        if name.endswith(".gz"):
            write_gzip(folder / name, lines)
        else:
            (folder / name).write_bytes(lines if name == "vocab.txt" else b'{"id": 210, "handle": null}')
    model.check(load_bilm(folder))
    model.check(load_bilm(write_zip(tmp_path / "210.zip", files_of(folder))))


def test_a_word_table_with_a_compressed_vocabulary(tmp_path: Path) -> None:
    model = Model("words")
    folder = write_hdf5_model(tmp_path / "model", model)
    write_gzip(folder / "vocab.txt.gz", (folder / "vocab.txt").read_bytes())
    (folder / "vocab.txt").unlink()
    model.check(load_bilm(write_zip(tmp_path / "words.zip", files_of(folder))))


def test_token_embeddings(tmp_path: Path) -> None:
    # Words of the vocabulary keep their vectors; all others get that of <UNK>, as in bilm-tf's token batcher.
    model = Model("three_layers")
    folder = write_hdf5_model(tmp_path, model)
    reference = NumpyBiLM(model.options, model.weights)
    table = reference.token_vectors(VOCABULARY).astype(np.float32)
    write_hdf5(folder / "elmo_token_embeddings.hdf5", {"embedding": table})
    (folder / "vocab_tokens.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")  # no newline at its end
    words_only = {key: value for key, value in model.options.items() if key != "char_cnn"}
    expected = NumpyBiLM(words_only, {**model.weights, "embedding": table}, vocabulary=VOCABULARY).encode(SENTENCES)
    for arguments in (
        (folder / "elmo_token_embeddings.hdf5",),
        (folder / "options.json", folder / "elmo_token_embeddings.hdf5"),
    ):
        found = load_bilm(*arguments).encode(SENTENCES)
        for layers, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(layers.numpy(), wanted, rtol=0, atol=TOLERANCE)
    known = [[word for word in sentence if word in VOCABULARY] for sentence in SENTENCES]
    both = zip(
        load_bilm(folder / "elmo_token_embeddings.hdf5").encode(known), load_bilm(folder).encode(known), strict=True
    )
    assert all(np.allclose(one, other, rtol=0, atol=1e-5) for one, other in both)  # both are float32
    model.check(load_bilm(folder))  # the folder itself is the model that reads characters


@pytest.mark.parametrize("n_highway", [1, 3])
def test_any_number_of_highways(n_highway: int, tmp_path: Path) -> None:
    model = Model()
    model.options["char_cnn"]["n_highway"] = n_highway
    model.weights = draw_weights(model.options, np.random.default_rng(n_highway))
    model.check(load_bilm(write_hdf5_model(tmp_path / "hdf5", model)))
    model.check(load_bilm(write_checkpoint_model(tmp_path / "checkpoint", model)))


def test_n_characters_of_training_and_of_inference(tmp_path: Path) -> None:
    model = Model()
    for n_characters in (261, 262):
        model.options["char_cnn"]["n_characters"] = n_characters
        model.check(load_bilm(write_hdf5_model(tmp_path, model)))
    options = json.loads((tmp_path / "options.json").read_text())
    assert options["char_cnn"]["n_characters"] == 262
