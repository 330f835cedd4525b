"""The public golden files: vectors that the original TensorFlow model computed (float32)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from spacy_elmo.bilm.model import BiLM
from spacy_elmo.weights import load_bilm

h5py = pytest.importorskip("h5py")


@pytest.fixture
def fixture(shared: Path) -> Path:
    return shared / "fixtures" / "allennlp_elmo"


@pytest.fixture
def bilm(fixture: Path) -> BiLM:
    return load_bilm(fixture / "options.json", fixture / "lm_weights.hdf5")


@pytest.mark.parametrize("rows", ["together", "reversed"])
def test_top_layer_of_thirty_sentences_with_carried_state(fixture: Path, bilm: BiLM, rows: str) -> None:
    columns = json.loads((fixture / "sentences.json").read_text(encoding="utf-8"))
    order = [0, 1, 2] if rows == "together" else [2, 1, 0]
    compared = 0
    files = [h5py.File(fixture / f"lm_embeddings_{column}.hdf5", "r") for column in range(3)]
    for i in range(10):
        found = bilm.encode([columns[column][i].split() for column in order], "carry")
        for column, layers in zip(order, found, strict=True):
            forward, backward = files[column][str(i)][()]
            golden = np.concatenate([forward, backward], axis=1)
            np.testing.assert_allclose(layers[-1].numpy(), golden, rtol=0, atol=2e-6)
            compared += 1
    for file in files:
        file.close()
    assert compared == 30


def test_token_encoder_rows(fixture: Path, bilm: BiLM) -> None:
    words = (fixture / "vocab_test.txt").read_text(encoding="utf-8").split("\n")
    with h5py.File(fixture / "elmo_token_embeddings.hdf5", "r") as file:
        golden = file["embedding"][()]
    assert golden.shape == (458, 16)
    with torch.no_grad():
        found = bilm.token_encoder(bilm.token_ids(words))
    np.testing.assert_allclose(found.numpy(), golden, rtol=0, atol=2e-6)


def test_layer_0_is_the_token_vector_twice(bilm: BiLM) -> None:
    words = ["The", "cat", "sat"]
    (layers,) = bilm.encode([words], "zero")
    with torch.no_grad():
        tokens = bilm.token_encoder(bilm.token_ids(words))
    torch.testing.assert_close(layers[0], torch.cat([tokens, tokens], dim=1), rtol=0, atol=2e-6)
