"""`elmo init-config`: of whatever spaCy makes a config for, one with ELMo in it that is valid and trains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.cli.debug_config import debug_config
from spacy.cli.init_config import init_config
from spacy.cli.train import train
from spacy.kb import InMemoryLookupKB
from spacy.tokens import Doc, DocBin, Span
from spacy.util import load_model_from_config

import spacy_elmo
from spacy_elmo.bilm import BiLM
from spacy_elmo.errors import ElmoError, WeightsError
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.pipeline.training_config import training_config, write_config

WORDS = ["Ann", "visits", "Oslo", "."]
EVERYTHING = [
    "tagger",
    "morphologizer",
    "senter",
    "parser",
    "ner",
    "textcat",
    "textcat_multilabel",
    "entity_linker",
    "span_finder",
    "spancat",
    "spancat_singlelabel",
    "trainable_lemmatizer",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bilm: BiLM) -> Path:
    """Sentences with annotations of all kinds, weights, a knowledge base."""
    folder = tmp_path_factory.mktemp("data")
    vocab = spacy.blank("en").vocab
    docs = []
    for label, subject in (("A", "Ann"), ("B", "Bob")):
        doc = Doc(
            vocab,
            words=[subject, *WORDS[1:]],
            tags=["NNP", "VBZ", "NNP", "."],
            pos=["PROPN", "VERB", "PROPN", "PUNCT"],
            morphs=["Number=Sing", "Tense=Pres", "Number=Sing", ""],
            lemmas=[subject, "visit", "Oslo", "."],
            heads=[1, 1, 1, 1],
            deps=["nsubj", "ROOT", "obj", "punct"],
        )
        doc.set_ents([Span(doc, 0, 1, label="PERSON", kb_id="Q1"), Span(doc, 2, 3, label="GPE", kb_id="Q2")])
        doc.spans["sc"] = [Span(doc, 0, 1, label=label), Span(doc, 2, 3, label="PLACE")]
        doc.cats = {"A": float(label == "A"), "B": float(label == "B")}
        docs.append(doc)
    DocBin(docs=docs * 16).to_disk(folder / "data.spacy")
    spacy_elmo.save_bilm(bilm, folder / "bilm")
    knowledge = InMemoryLookupKB(vocab, entity_vector_length=4)
    for entity, name in (("Q1", "Ann"), ("Q2", "Oslo")):
        knowledge.add_entity(entity=entity, freq=1, entity_vector=[1.0, 0.0, 0.0, float(entity == "Q1")])
        knowledge.add_alias(alias=name, entities=[entity], probabilities=[1.0])
    knowledge.to_disk(folder / "kb")
    return folder


def trained(folder: Path, output: Path, config: Any) -> Any:
    """The pipeline that a config trains, after it was found valid."""
    if "entity_linker" in config["components"]:
        loader = {"@misc": "spacy.KBFromFile.v1", "kb_path": str(folder / "kb")}
        config["initialize"]["components"]["entity_linker"] = {"kb_loader": loader}
    write_config(config, output / "train.cfg")
    paths = {"paths.train": str(folder / "data.spacy"), "paths.dev": str(folder / "data.spacy")}
    debug_config(output / "train.cfg", overrides=paths)
    train(output / "train.cfg", output, overrides={**paths, "training.max_steps": 2, "training.eval_frequency": 1})
    return spacy.load(output / "model-last")


@pytest.mark.parametrize("name", EVERYTHING)
def test_each_component_alone(folder: Path, tmp_path: Path, name: str) -> None:
    # Of an entity linker spaCy wants sentences.
    pipeline = ["sentencizer", name] if name == "entity_linker" else [name]
    config = training_config(pipeline=pipeline, weights=folder / "bilm")
    assert config["nlp"]["pipeline"] == ["elmo", "tok2vec", *pipeline]
    nlp = trained(folder, tmp_path, config)
    mixes = nlp.get_pipe("elmo").mixes
    assert [(mix.component, mix.learned, len(mix.weights)) for mix in mixes] == [("tok2vec", True, 3)]
    # It has learned: the gradient came through.
    assert mixes[0].weights != pytest.approx([1 / 3] * 3, abs=1e-7)
    nlp("Ann visits Oslo.")


def test_everything_together_for_accuracy(folder: Path, tmp_path: Path) -> None:
    config = training_config(pipeline=EVERYTHING, optimize="accuracy", weights=folder / "bilm")
    assert config["nlp"]["pipeline"] == ["elmo", *EVERYTHING]
    # As spaCy has them, but smaller: so many large ones take a while.
    for name in EVERYTHING:
        encode = config["components"][name]["model"]["tok2vec"]["encode"]
        assert (encode["width"], encode["depth"]) == (256, 8)
        encode |= {"width": 16, "depth": 1}
    nlp = trained(folder, tmp_path, config)
    assert [mix.component for mix in nlp.get_pipe("elmo").mixes] == EVERYTHING
    assert nlp("Ann visits Oslo.").has_annotation("DEP")


def test_only_elmo_is_added_to_what_spacy_makes() -> None:
    config: Any = training_config(lang="de", pipeline=["ner", "sentencizer"], weights=None)
    assert config["paths"].pop("elmo") is None
    assert config["components"].pop("elmo").items() >= {"store": "none", "precision": "bfloat16"}.items()
    assert config["initialize"]["components"].pop("elmo") == {"weights": "${paths.elmo}"}
    assert config["training"]["before_to_disk"] == {"@callbacks": "spacy-elmo.mix_notes.v1"}
    config["training"]["before_to_disk"] = None
    config["nlp"]["pipeline"].remove("elmo")
    tok2vec = config["components"]["tok2vec"]["model"]
    assert set(tok2vec) >= {"embed", "elmo", "encode"}
    for key in set(tok2vec) - {"embed", "encode"}:
        del tok2vec[key]
    tok2vec["@architectures"] = "spacy.Tok2Vec.v2"
    config["nlp"]["batch_size"] = 1000
    assert config == init_config(lang="de", pipeline=["ner", "sentencizer"], optimize="efficiency")


def test_for_accuracy_each_component_has_a_tok2vec_of_its_own() -> None:
    config = training_config(pipeline=["elmo", "tok2vec", "tagger", "ner"], optimize="accuracy")
    assert config["nlp"]["pipeline"] == ["elmo", "tagger", "ner"]
    assert "tok2vec" not in config["components"]
    assert config["components"]["elmo"]["precision"] == "float32"
    for name in ("tagger", "ner"):
        block = config["components"][name]["model"]["tok2vec"]
        assert block["@architectures"] == "spacy-elmo.Tok2VecWithElmo.v1"
        assert block["embed"]["width"] == f"${{components.{name}.model.tok2vec.encode.width}}"
        assert block["embed"]["include_static_vectors"] is False
        assert block["elmo"]["mix"]["@architectures"] == "spacy-elmo.ScalarMix.v1"
    # spaCy would want vectors that have to be downloaded.
    assert config["paths"]["vectors"] is None


@pytest.mark.parametrize("optimize", ["speed", "accuracy"])
def test_config_is_complete(optimize: Any) -> None:
    config = training_config(pipeline=["parser", "textcat"], optimize=optimize)
    assert load_model_from_config(config, auto_fill=True).config == config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipeline": ["ner", "nothing"]}, "knows no component 'nothing'"),
        ({"pipeline": ["ner", "ner"]}, "'ner' is there twice"),
        ({"pipeline": []}, "the pipeline is empty"),
        ({"pipeline": ["elmo"]}, "the pipeline is empty"),
        ({"pipeline": ["sentencizer", "lemmatizer"]}, "sentencizer, lemmatizer reads vectors"),
        ({"lang": "qq"}, "does not know the language 'qq'"),
        ({"optimize": "efficiency"}, "optimize is one of accuracy, speed, not 'efficiency'"),
    ],
)
def test_what_cannot_be_made(options: Any, message: str) -> None:
    with pytest.raises(ElmoError, match=message):
        training_config(**options)


def test_weights_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such file or folder"):
        training_config(weights=tmp_path / "nothing")


def test_a_path_of_one_word_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spacy_elmo.save_bilm(random_bilm(lstm_dim=8, projection_dim=4), tmp_path / "en")
    monkeypatch.chdir(tmp_path)
    for weights, expected in ((Path("en"), os.path.join(".", "en")), ("./en", "./en"), ("en", "en")):
        assert training_config(pipeline=["ner"], weights=weights)["paths"]["elmo"] == expected


def test_a_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    config = training_config(pipeline=["ner"])
    path = tmp_path / "new" / "train.cfg"
    write_config(config, path)
    before = path.read_text(encoding="utf8")
    assert "${paths.elmo}" in before
    with pytest.raises(ElmoError, match="exists: give another name"):
        write_config(config, path)
    path.write_text("mine", encoding="utf8")
    write_config(config, path, overwrite=True)
    assert path.read_text(encoding="utf8") == before
    with pytest.raises(WeightsError, match="is a folder"):
        write_config(config, tmp_path, overwrite=True)
