"""Options files say 261 or 262 characters, and others than 50 a token: hard-coded sizes failed to load them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import spacy

from spacy_elmo.errors import WeightsError
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.weights import load_bilm, save_bilm_hdf5
from tests.pipeline.toys import blank

pytest.importorskip("h5py")

WORDS = ["The", "unbelievably", "हिन्दी", "🙂", "", "e" * 60, "."]


def folder_of(path: Path, n_characters: int, per_token: int = 50) -> Path:
    bilm = random_bilm(lstm_dim=8, projection_dim=4, max_characters_per_token=per_token, seed=3)
    save_bilm_hdf5(bilm, path)
    options = json.loads((path / "options.json").read_text())
    options["char_cnn"]["n_characters"] = n_characters
    (path / "options.json").write_text(json.dumps(options))
    return path


def test_261_and_262_characters_give_equal_vectors(tmp_path: Path) -> None:
    one, other = (load_bilm(folder_of(tmp_path / str(n), n)).encode([WORDS])[0].numpy() for n in (261, 262))
    assert one.shape == (3, len(WORDS), 8)
    assert np.abs(one).max() > 0
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n_characters", [60, 260, 263])
def test_another_number_names_the_option_and_the_shape(tmp_path: Path, n_characters: int) -> None:
    path = folder_of(tmp_path / "other", n_characters)
    nlp = blank()
    with pytest.raises(WeightsError, match=rf"n_characters is {n_characters}.*\(261, 8\)"):
        nlp.add_pipe("elmo").load_weights(path)


@pytest.mark.parametrize("per_token", [10, 20, 50])
def test_any_number_of_characters_a_token_loads_and_runs(tmp_path: Path, per_token: int) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(folder_of(tmp_path / "hdf5", 262, per_token))
    same = [("x" * (per_token - 2), "x" * 300), ("x" * (per_token - 3), "x" * (per_token - 2))]
    (a, b), (c, d) = [[nlp(spacy.tokens.Doc(nlp.vocab, words=[word]))._.elmo.layers for word in pair] for pair in same]
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)  # cut at C - 2 bytes
    assert np.abs(c - d).max() > 1e-4  # and not before
    nlp.to_disk(tmp_path / "nlp")
    loaded = spacy.load(tmp_path / "nlp")
    np.testing.assert_allclose(loaded("A token .")._.elmo.layers, nlp("A token .")._.elmo.layers, rtol=0, atol=1e-6)
