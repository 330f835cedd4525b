"""Every format in `load_weights` and in `[initialize.components.elmo] weights`: the vectors are the reference's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from spacy.tokens import Doc

from spacy_elmo.weights import load_bilm, save_bilm
from tests.pipeline.toys import blank
from tests.reference.make_golden import VOCABULARY
from tests.reference.numpy_bilm import NumpyBiLM
from tests.weights.many_langs_folder import write_model as write_many_langs_model
from tests.weights.writers import (
    Model,
    files_of,
    write_checkpoint_model,
    write_hdf5,
    write_hdf5_model,
    write_tar,
    write_zip,
)

WORDS = ["The", "cat", "no", "日本語", "unseen", "."]

# Writes weights into an empty folder. RETURNS: the path to give, and the layers (L+1, n, 2P) of WORDS.
Written = tuple[Path, np.ndarray]


def of(model: Model) -> np.ndarray:
    return NumpyBiLM(model.options, model.weights, vocabulary=model.vocabulary).encode([WORDS])[0]


def hdf5_folder(folder: Path) -> Written:
    return write_hdf5_model(folder, Model()), of(Model())


def hdf5_file(folder: Path) -> Written:
    names = {"options": "elmo_2x1024_128_options.json", "weights": "elmo_2x1024_128_weights.hdf5"}
    return write_hdf5_model(folder, Model("tanh"), **names) / names["weights"], of(Model("tanh"))


def nlpl_zip(folder: Path) -> Written:
    write_hdf5_model(folder / "210", Model(), weights="model.hdf5")
    (folder / "210" / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf8")
    (folder / "210" / "meta.json").write_text("{}")
    return write_zip(folder / "210.zip", files_of(folder / "210")), of(Model())


def tar_gz(folder: Path) -> Written:
    write_hdf5_model(folder / "a", Model("no_skip"))
    return write_tar(folder / "a.tar.gz", files_of(folder / "a", "elmo"), "w:gz"), of(Model("no_skip"))


def word_table(folder: Path) -> Written:
    return write_hdf5_model(folder, Model("words")), of(Model("words"))


def token_embeddings(folder: Path) -> Written:
    model = Model()
    write_hdf5_model(folder, model)
    table = NumpyBiLM(model.options, model.weights).token_vectors(VOCABULARY).astype(np.float32)
    write_hdf5(folder / "elmo_token_embeddings.hdf5", {"embedding": table})
    (folder / "vocabulary.txt").write_text("\n".join(VOCABULARY), encoding="utf8")
    options = {"lstm": model.options["lstm"]}
    reference = NumpyBiLM(options, {**model.weights, "embedding": table}, vocabulary=VOCABULARY)
    return folder / "elmo_token_embeddings.hdf5", reference.encode([WORDS])[0]


def checkpoint(folder: Path) -> Written:
    return write_checkpoint_model(folder, Model("three_layers")), of(Model("three_layers"))


def checkpoint_prefix(folder: Path) -> Written:
    return write_checkpoint_model(folder, Model("one_layer")) / "model.ckpt-12", of(Model("one_layer"))


def many_langs_zip(folder: Path) -> Written:
    reference = write_many_langs_model(folder / "144", legacy=True)
    return write_zip(folder / "144.zip", files_of(folder / "144")), reference.layers(WORDS)


def native(folder: Path) -> Written:
    save_bilm(load_bilm(write_hdf5_model(folder / "public", Model())), folder / "ours")
    return folder / "ours", of(Model())


FORMATS: list[Callable[[Path], Written]] = [
    *(hdf5_folder, hdf5_file, nlpl_zip, tar_gz, word_table, token_embeddings),
    *(checkpoint, checkpoint_prefix, many_langs_zip, native),
]


@pytest.mark.parametrize("write", FORMATS)
def test_in_load_weights_and_in_initialize(write: Callable[[Path], Written], tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path, expected = write(tmp_path)
    whole = {"span_getter": {"@misc": "spacy-elmo.doc_spans.v1"}}
    loaded, initialized = blank(), blank()
    for weights in (path, str(path)):
        loaded.remove_pipe("elmo") if loaded.has_pipe("elmo") else None
        loaded.add_pipe("elmo", config=whole).load_weights(weights)
    initialized.add_pipe("elmo", config=whole)
    initialized.config["initialize"]["components"]["elmo"] = {"weights": str(path)}
    initialized.initialize()
    for nlp in (loaded, initialized):
        doc = nlp(Doc(nlp.vocab, words=WORDS))
        assert doc._.elmo.layers.shape == expected.shape
        np.testing.assert_allclose(doc._.elmo.layers, expected, rtol=0, atol=4e-6)
