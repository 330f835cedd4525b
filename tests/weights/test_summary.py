"""What is told of weights without use of them: sizes, words, softmax, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import load_softmax, save_bilm, save_softmax, save_vocabulary, summary, summary_of
from spacy_elmo.weights.summary import Words
from tests.reference.make_golden import VOCABULARY
from tests.reference.make_tf_checkpoint import FOLDER as CHECKPOINT
from tests.reference.make_tf_checkpoint import VOCABULARY as CHECKPOINT_WORDS

from .many_langs_folder import WORDS
from .many_langs_folder import write_model as write_many_langs_model
from .writers import (
    Model,
    files_of,
    variable_names,
    write_bundle,
    write_checkpoint_model,
    write_hdf5,
    write_hdf5_model,
    write_zip,
)

SMALL: dict[str, Any] = {"lstm_dim": 6, "projection_dim": 4, "filters": ((1, 3), (3, 4)), "char_dim": 2}


def saved(folder: Path, **fields: Any) -> Path:
    save_bilm(BiLM(BiLMConfig(**{**SMALL, **fields})).initialize(0), folder)
    return folder


# Exact counts of the published models are in the formats' description.
@pytest.mark.parametrize(
    ("dim", "projection", "highways", "n_parameters", "name"),
    [
        (1024, 128, 1, 13_593_296, "AllenNLP's small"),
        (2048, 256, 1, 28_027_728, "AllenNLP's medium"),
        (4096, 512, 2, 93_600_848, "AllenNLP's original, original 5.5B and PubMed"),
        (4096, 512, 1, 85_208_144, None),
    ],
)
def test_published_sizes(dim: int, projection: int, highways: int, n_parameters: int, name: str | None) -> None:
    with torch.device("meta"):  # no memory for the values
        bilm = BiLM(BiLMConfig(lstm_dim=dim, projection_dim=projection, n_highway=highways))
    found = summary_of(bilm, family="bilm-tf HDF5", path=Path("x"))
    assert found.n_parameters == n_parameters
    assert found.size_of == name
    assert found.n_characters == 261


def test_the_published_size_of_many_langs() -> None:
    fields: dict[str, Any] = {"n_highway": 2, "char_dim": 50, "word_dim": 100, "n_words": 3, "n_characters": 6}
    words, characters = ["<oov>", "<bos>", "<eos>"], ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
    for dim, name in ((100, "ELMoForManyLangs' published models"), (99, None)):
        with torch.device("meta"):
            config = BiLMConfig(lstm_dim=4096, projection_dim=512, **{**fields, "word_dim": dim})
            bilm = BiLM(config, vocabulary=words, characters=characters)
        assert summary_of(bilm, family="ELMoForManyLangs", path=Path("x")).size_of == name


@pytest.mark.parametrize("changes", [{"n_layers": 1}, {"char_dim": 15}, {"filters": ((1, 2048),)}])
def test_other_sizes_are_of_no_published_model(changes: dict[str, Any]) -> None:
    with torch.device("meta"):
        bilm = BiLM(BiLMConfig(**{"lstm_dim": 1024, "projection_dim": 128, **changes}))
    assert summary_of(bilm, family="spacy-elmo", path=Path("x")).size_of is None


def test_a_checkpoint() -> None:
    found = summary(CHECKPOINT)
    assert found.family == "bilm-tf checkpoint"
    assert found.path == CHECKPOINT / "model.ckpt-7"
    assert found.parameters == {
        "character table": 261 * 3,
        "convolutions": 3 * (1 * 3 + 2 * 3 + 3 * 4) + 10,
        "highways": 2 * (10 * 10 + 10),
        "projection of tokens": 10 * 5 + 5,
        "forward LSTM": 2 * (10 * 28 + 28 + 7 * 5),
        "backward LSTM": 2 * (10 * 28 + 28 + 7 * 5),
    }
    assert found.softmax == (10, 5)
    assert found.vocabulary == Words(size=10, first=CHECKPOINT_WORDS, file="vocab.txt")
    assert found.word_table is None
    assert not found.start_state
    assert found.problems == ()


def test_our_own_folder(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", state="warm")
    found = summary(folder)
    assert (found.family, found.start_state, found.softmax, found.vocabulary) == ("spacy-elmo", True, None, None)
    save_softmax(FullSoftmax(12, 4).initialize(0), folder)
    words = ["<S>", "</S>", "<UNK>", *"abcdefghi"]
    save_vocabulary(words, folder / "vocabulary.txt")
    (folder / "meta.json").write_text('{"lang": "de"}')
    for path in (folder, write_zip(tmp_path / "a.zip", files_of(folder, "model-best"))):
        found = summary(path)
        assert found.softmax == (12, 4)
        assert found.vocabulary == Words(size=12, first=words[:10], file="vocabulary.txt")
        assert found.meta == {"lang": "de"}
        assert found.problems == ()
        assert json.loads(json.dumps(found.as_dict()))["softmax"] == {"words": 12, "width": 4}


def test_the_values_of_a_softmax_are_not_read(tmp_path: Path) -> None:
    folder = write_checkpoint_model(tmp_path, Model())
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    data = folder / "model.ckpt-12.data-00000-of-00001"
    softmax = Model().softmax["W"].tobytes()
    assert softmax in data.read_bytes()
    data.write_bytes(data.read_bytes().replace(softmax, bytes(len(softmax))))
    found = summary(folder)
    assert found.softmax == (10, 6)
    assert found.problems == ()
    with pytest.raises(WeightsError, match="checksum"):
        load_softmax(folder)


def test_models_that_read_words(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    found = summary(write_hdf5_model(tmp_path / "words", Model("words")))
    assert found.word_table == Words(size=10, first=VOCABULARY)
    assert found.n_characters is None
    assert found.vocabulary is None  # it is that of the table
    assert found.parameters["word table"] == 10 * 6
    write_many_langs_model(tmp_path / "many")
    found = summary(tmp_path / "many")
    assert found.word_table == Words(size=13, first=WORDS[:10])
    assert found.n_characters == len(set(found_characters(tmp_path / "many")))
    model = Model()
    write_hdf5_model(tmp_path / "tokens", model)
    write_hdf5(tmp_path / "tokens" / "t.hdf5", {"embedding": model.weights["char_embed"][:10, [0] * 6]})
    (tmp_path / "tokens" / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    found = summary(tmp_path / "tokens" / "t.hdf5")
    assert (found.family, found.word_table) == ("bilm-tf token embeddings", Words(size=10, first=VOCABULARY))
    found = summary(tmp_path / "tokens" / "options.json", tmp_path / "tokens" / "weights.hdf5")
    assert (found.family, found.word_table) == ("bilm-tf HDF5", None)
    assert found.vocabulary == Words(size=10, first=VOCABULARY, file="vocab.txt")  # which nothing reads


def found_characters(folder: Path) -> list[str]:
    lines = (folder / "char.dic").read_text(encoding="utf8").removesuffix("\n").split("\n")
    return [line.split("\t")[0] for line in lines]


def test_what_does_not_fit_is_a_problem_and_no_error(tmp_path: Path) -> None:
    folder = saved(tmp_path)

    def problems() -> list[str]:
        found = summary(folder)
        assert found.n_parameters > 0
        return list(found.problems)

    save_softmax(FullSoftmax(4, 7).initialize(0), folder)
    (missing, width) = sorted(problems())
    assert "vocabulary.txt: no such file" in missing
    assert "the softmax reads vectors of 7 numbers, but the biLM gives 4" in width
    save_softmax(FullSoftmax(4, 4).initialize(0), folder)
    save_vocabulary(["<S>", "</S>", "<UNK>", "a", "b"], folder / "vocabulary.txt")
    assert problems() == ["vocabulary.txt has 5 words, but the softmax predicts 4"]
    (folder / "softmax.safetensors").write_bytes(b"x")
    (folder / "meta.json").write_text("{")
    broken, meta = problems()
    assert "softmax.safetensors: not a whole safetensors file" in broken
    assert "meta.json: is not valid JSON" in meta
    archived = summary(write_zip(tmp_path / "x.zip", files_of(folder)))
    assert all(str(tmp_path / "x.zip") in problem for problem in archived.problems)
    assert len(archived.problems) == 2


def test_a_checkpoint_without_a_softmax_or_with_half_of_one(tmp_path: Path) -> None:
    folder = write_checkpoint_model(tmp_path, Model())
    variables = variable_names(Model().weights)
    write_bundle(folder / "model.ckpt-12", variables)
    found = summary(folder)
    assert (found.softmax, found.problems) == (None, ())
    write_bundle(folder / "model.ckpt-12", variables | {"lm/softmax/b": Model().softmax["b"]})
    found = summary(folder)
    assert found.softmax is None
    assert "holds no softmax: its variables 'lm/softmax/W'" in found.problems[0]


def test_weights_that_cannot_be_loaded_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such file or folder"):
        summary(tmp_path / "nothing")
    folder = saved(tmp_path / "a")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-10])
    with pytest.raises(WeightsError, match="not a whole safetensors file"):
        summary(folder)
