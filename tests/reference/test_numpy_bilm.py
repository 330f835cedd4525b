"""The yardstick itself, against files computed by the original TensorFlow model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from .numpy_bilm import NumpyBiLM, char_ids

h5py = pytest.importorskip("h5py")


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, node: found.update({name: node[()]}) if isinstance(node, h5py.Dataset) else None)
    return found


@pytest.fixture
def reference(shared: Path) -> NumpyBiLM:
    folder = shared / "fixtures" / "allennlp_elmo"
    return NumpyBiLM(json.loads((folder / "options.json").read_text()), read_hdf5(folder / "lm_weights.hdf5"))


def test_top_layer_of_thirty_sentences_with_carried_state(shared: Path, reference: NumpyBiLM) -> None:
    folder = shared / "fixtures" / "allennlp_elmo"
    columns = json.loads((folder / "sentences.json").read_text())
    expected = [read_hdf5(folder / f"lm_embeddings_{column}.hdf5") for column in range(3)]
    batches = [[columns[column][i].split() for column in range(3)] for i in range(10)]
    worst = 0.0
    for i, batch in enumerate(reference.encode_carried(batches)):
        for column, layers in enumerate(batch):
            golden = np.concatenate(list(expected[column][str(i)]), axis=1)
            worst = max(worst, float(np.abs(layers[-1] - golden).max()))
    assert worst <= 2e-6
    assert reference.clip_hits["cell"] > 0
    assert reference.clip_hits["proj"] > 0


def test_token_rows(shared: Path, reference: NumpyBiLM) -> None:
    folder = shared / "fixtures" / "allennlp_elmo"
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").split("\n")
    golden = read_hdf5(folder / "elmo_token_embeddings.hdf5")["embedding"]
    assert golden.shape == (458, 16)
    np.testing.assert_allclose(reference.token_vectors(words), golden, rtol=0, atol=2e-6)


def test_char_ids_cut_by_byte() -> None:
    assert char_ids("abcé", 6) == [258, 97, 98, 99, 195, 259]
    assert char_ids("", 4) == [258, 259, 260, 260]
    assert char_ids("</S>", 4) == [258, 257, 259, 260]
    assert char_ids("\ud800.", 5) == [258, 46, 259, 260, 260]
