"""Files of token embeddings: which model they belong to, and what does not fit. Their vectors: the tests of formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spacy_elmo import BiLM, BiLMConfig
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import (
    load_bilm,
    load_token_embeddings,
    recognised,
    save_bilm,
    save_softmax,
    save_token_embeddings,
    token_embeddings,
)
from tests.reference.make_golden import SENTENCES, VOCABULARY
from tests.reference.numpy_bilm import NumpyBiLM

from .writers import TOLERANCE, Model, write_hdf5, write_hdf5_model

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


# Written


def written(path: Path) -> np.ndarray:
    with h5py.File(path, "r") as file:
        assert list(file) == ["embedding"]
        assert file["embedding"].dtype == np.dtype("<f4")
        array: np.ndarray = file["embedding"][()]
        return array


@pytest.mark.parametrize("block", [1, 4, 4096])
def test_a_row_is_what_the_token_encoder_makes_of_a_line(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_embeddings, "_BLOCK", block)
    model = Model("tanh")
    bilm = load_bilm(write_hdf5_model(tmp_path, model))
    words = [*VOCABULARY, "the", "y" * 60]  # repeated ones keep their rows
    path = tmp_path / "elmo_token_embeddings.hdf5"
    assert save_token_embeddings(bilm, words, tmp_path) == words
    expected = NumpyBiLM(model.options, model.weights).token_vectors(words)
    np.testing.assert_allclose(written(path), expected, rtol=0, atol=TOLERANCE)
    assert (tmp_path / "vocabulary.txt").read_bytes() == "".join(f"{word}\n" for word in words).encode()
    # Read back as a biLM of words: known ones have their vectors, in all layers.
    by_table, by_characters = load_bilm(path), load_bilm(tmp_path)
    assert by_table.vocabulary == words
    assert by_table.config.filters is None
    known = [[word for word in sentence if word in words] for sentence in SENTENCES]
    for one, other in zip(by_table.encode(known), by_characters.encode(known), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=0, atol=TOLERANCE)


def test_the_public_fixture_is_written_again(shared: Path, tmp_path: Path) -> None:
    folder = shared / "fixtures" / "allennlp_elmo"
    words = (folder / "vocab_test.txt").read_text(encoding="utf-8").split("\n")
    assert words.index("<S>") == 20  # anywhere: rows are in the order of the lines
    save_token_embeddings(load_bilm(folder), words, tmp_path / "tokens.hdf5")
    expected = written(folder / "elmo_token_embeddings.hdf5")
    np.testing.assert_allclose(written(tmp_path / "tokens.hdf5"), expected, rtol=0, atol=2e-6)


def test_what_readers_need_comes_first_where_it_is_missing(tmp_path: Path) -> None:
    bilm = load_bilm(write_hdf5_model(tmp_path, Model()))
    words = ["the", "</S>", "!!!MAXTERMID", "cat", ""]
    rows = ["<S>", "<UNK>", "the", "</S>", "cat", ""]
    assert save_token_embeddings(bilm, words, tmp_path) == rows
    found = load_bilm(tmp_path / "elmo_token_embeddings.hdf5")
    assert found.vocabulary == rows
    layers = bilm.encode([["<S>", "<UNK>", "the", "</S>", "cat", ""]])[0]
    np.testing.assert_allclose(written(tmp_path / "elmo_token_embeddings.hdf5"), layers[0, :, :6].numpy(), atol=1e-6)


def test_they_go_with_the_weights_that_made_them(tmp_path: Path) -> None:
    bilm = load_bilm(write_hdf5_model(tmp_path / "public", Model()))
    for words in (VOCABULARY, VOCABULARY[:5]):  # over older ones
        save_bilm(bilm, tmp_path / "out", "bilm-hdf5")
        assert not (tmp_path / "out" / "elmo_token_embeddings.hdf5").exists()
        save_token_embeddings(bilm, words, tmp_path / "out")
        assert load_bilm(tmp_path / "out" / "elmo_token_embeddings.hdf5").vocabulary == words


def test_where_they_are_not_written(tmp_path: Path) -> None:
    bilm = load_bilm(write_hdf5_model(tmp_path / "public", Model()))
    words = load_bilm(write_hdf5_model(tmp_path / "words", Model("words")))
    with pytest.raises(WeightsError, match="this one reads words from a table already"):
        save_token_embeddings(words, WORDS, tmp_path / "out")
    with pytest.raises(WeightsError, match=r"options\.json, are those of another model"):
        save_token_embeddings(bilm, WORDS, tmp_path / "words")
    save_softmax(FullSoftmax(4, 6), tmp_path)
    with pytest.raises(WeightsError, match="holds the output layer of another model"):
        save_token_embeddings(bilm, WORDS, tmp_path)
    with pytest.raises(WeightsError, match=r"vocabulary\.txt: word 1, 'a\\nb', has a line break"):
        save_token_embeddings(bilm, ["<S>", "a\nb", "</S>", "<UNK>"], tmp_path / "public")
    assert sorted(path.name for path in (tmp_path / "public").iterdir()) == ["options.json", "weights.hdf5"]


def test_vectors_that_are_not_finite_are_not_written(tmp_path: Path) -> None:
    # Each weight is a number, and their product none.
    bilm = BiLM(BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 3),), n_highway=0)).initialize(1)
    for parameter in bilm.token_encoder.parameters():
        parameter.data.fill_(3e38)
    bilm.invalidate()
    with pytest.raises(WeightsError, match=r"tokens\.hdf5: 'embedding' has \d+ NaN or infinite values"):
        save_token_embeddings(bilm, WORDS, tmp_path / "tokens.hdf5")
    assert not list(tmp_path.iterdir())
