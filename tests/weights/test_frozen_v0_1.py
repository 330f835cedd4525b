"""Folders that spacy-elmo 0.1.0 wrote: every later version loads them, and gives the same vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spacy_elmo.weights import bilm_from_bytes, load_bilm, load_softmax, load_vocabulary, recognised

from .writers import TOLERANCE

FOLDER = Path(__file__).parent / "fixtures" / "v0.1"


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "expected.npz") as file:
        return dict(file)


@pytest.mark.parametrize("name", ["characters", "words", "warm"])
def test_vectors(name: str, expected: dict[str, np.ndarray]) -> None:
    sentences = json.loads(expected["sentences"].tobytes())
    folder = FOLDER / name
    for bilm in (load_bilm(folder), bilm_from_bytes((folder / "model.safetensors").read_bytes())):
        layers = np.concatenate([one.numpy() for one in bilm.encode(sentences)], axis=1)
        assert layers.shape == expected[name].shape
        np.testing.assert_allclose(layers, expected[name], rtol=0, atol=TOLERANCE)


def test_what_else_lies_there(expected: dict[str, np.ndarray]) -> None:
    with recognised(FOLDER / "characters") as found:
        assert found.family == "spacy-elmo"
        assert found.load_softmax is not None
    softmax = load_softmax(FOLDER / "characters")
    for name in ("W", "b"):
        np.testing.assert_array_equal(getattr(softmax, name).detach().numpy(), expected[f"softmax/{name}"])
    words = load_vocabulary(FOLDER / "characters" / "vocabulary.txt")
    assert words == ["<S>", "</S>", "<UNK>", "the", ".", "of", "cat", "café", "日本語", ""]
    assert load_bilm(FOLDER / "words").vocabulary == [*words[:4], "The", "cat", "café", "a\nb", "\ud800", ""]
    assert load_bilm(FOLDER / "warm").config.state == "warm"
