"""Files of token embeddings: which model they belong to, and what does not fit. Their vectors: the tests of formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import load_bilm, load_token_embeddings, recognised

from .writers import Model, write_hdf5, write_hdf5_model

h5py = pytest.importorskip("h5py")

WORDS = ["<S>", "</S>", "<UNK>", "the"]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    write_hdf5_model(tmp_path, Model())
    (tmp_path / "vocabulary.txt").write_text("\n".join(WORDS) + "\n")
    write_hdf5(tmp_path / "tokens.hdf5", {"embedding": np.arange(24, dtype=np.float32).reshape(4, 6)})
    return tmp_path / "tokens.hdf5"


def test_they_are_a_bilm_that_reads_words(tokens: Path) -> None:
    with recognised(tokens) as found:
        assert found.family == "bilm-tf token embeddings"
        assert found.path == tokens
        bilm = found.load()
    assert bilm.vocabulary == WORDS
    assert bilm.config.filters is None
    (layers,) = bilm.encode([["the", "unseen"]])
    np.testing.assert_array_equal(layers[0].numpy(), np.tile(np.arange(24).reshape(4, 6)[[3, 2]], 2))


def test_the_public_fixture(shared: Path) -> None:
    folder = shared / "fixtures" / "allennlp_elmo"
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").split("\n")
    sentences = [words[5:20], words[30:50]]
    by_table = load_bilm(folder / "elmo_token_embeddings.hdf5").encode(sentences)
    by_characters = load_bilm(folder).encode(sentences)
    for one, other in zip(by_table, by_characters, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=1e-5)


def test_what_does_not_fit(tokens: Path) -> None:
    write_hdf5(tokens, {"embedding": np.zeros((4, 7), dtype=np.float32)})
    with pytest.raises(WeightsError, match=r"tokens\.hdf5: its dataset 'embedding' has shape \(4, 7\).*of words, 6\)"):
        load_bilm(tokens)
    write_hdf5(tokens, {"embedding": np.zeros((5, 6), dtype=np.float32)})
    with pytest.raises(WeightsError, match=r"tokens\.hdf5: the vocabulary has 4 words, but the word table 5 rows"):
        load_bilm(tokens)
    tokens.with_name("vocabulary.txt").unlink()
    with pytest.raises(WeightsError, match=r"tokens\.hdf5: these weights read words .* and have no vocabulary"):
        load_bilm(tokens)
    write_hdf5(tokens, {"embedding": np.full((4, 6), np.nan, dtype=np.float32)})
    tokens.with_name("vocab.txt").write_text("\n".join(WORDS))
    with pytest.raises(WeightsError, match=r"'embedding' has 24 NaN"):
        load_bilm(tokens)


def test_weights_that_do_not_fit_the_options(tokens: Path) -> None:
    weights = tokens.with_name("weights.hdf5")
    with h5py.File(weights, "a") as file:
        del file["CNN/b_cnn_0"]
    with pytest.raises(WeightsError, match=r"weights\.hdf5: .*lacks: CNN/b_cnn_0"):
        load_token_embeddings(tokens.with_name("options.json"), weights, tokens)
