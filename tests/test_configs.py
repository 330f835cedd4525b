"""configs/: each is complete and valid, trains with only paths given, and differs from its twin in ELMo alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.cli.debug_config import debug_config
from spacy.cli.train import train
from spacy.tokens import Doc, DocBin, Span
from spacy.util import load_config, load_model_from_config

import spacy_elmo
from spacy_elmo.layers.bilm_model import random_bilm

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
TRAINING = sorted(path for path in CONFIGS.glob("*.cfg") if not path.stem.startswith("pretrain"))
TWINS = [(path.with_name(path.name.replace("_elmo", "")), path) for path in TRAINING if path.stem.endswith("_elmo")]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Overrides for [paths]: annotated sentences and small weights."""
    folder = tmp_path_factory.mktemp("data")
    vocab = spacy.blank("en").vocab
    docs = []
    for subject, verb, place in [("Ann", "visits", "Oslo"), ("Bob", "leaves", "Rome"), ("Eve", "likes", "Paris")]:
        doc = Doc(
            vocab,
            words=[subject, verb, place, "."],
            tags=["NNP", "VBZ", "NNP", "."],
            heads=[1, 1, 1, 1],
            deps=["nsubj", "ROOT", "obj", "punct"],
        )
        doc.set_ents([Span(doc, 0, 1, label="PERSON"), Span(doc, 2, 3, label="GPE")])
        doc.cats = {"going": float(subject != "Eve"), "feeling": float(subject == "Eve")}
        docs.append(doc)
    data = folder / "data.spacy"
    DocBin(docs=docs * 10).to_disk(data)
    spacy_elmo.save_bilm(random_bilm(seed=0), folder / "bilm")
    return {"paths.train": str(data), "paths.dev": str(data), "paths.elmo": str(folder / "bilm")}


def for_config(path: Path, paths: dict[str, str]) -> dict[str, Any]:
    return {key: value for key, value in paths.items() if key != "paths.elmo" or path.stem.endswith("_elmo")}


def test_each_task_has_a_config_with_and_without_elmo() -> None:
    tasks = ("ner", "tagger_parser", "textcat")
    assert {path.stem for path in TRAINING} == {name for task in tasks for name in (task, f"{task}_elmo")}


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_debug_config_passes(path: Path, paths: dict[str, str]) -> None:
    debug_config(path, overrides=for_config(path, paths))


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_config_is_complete(path: Path) -> None:
    config = load_config(path)
    assert load_model_from_config(config, auto_fill=True).config == config


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_config_trains_with_paths_given(path: Path, paths: dict[str, str], tmp_path: Path) -> None:
    few = {"training.max_steps": 2, "training.eval_frequency": 1}
    train(path, tmp_path, overrides={**for_config(path, paths), **few})
    nlp = spacy.load(tmp_path / "model-last")
    doc = nlp("Ann visits Oslo.")
    assert doc.has_annotation("TAG") == ("tagger" in nlp.pipe_names)
    assert doc.has_annotation("ENT_IOB") == ("ner" in nlp.pipe_names)
    assert (set(doc.cats) == {"going", "feeling"}) == ("textcat" in nlp.pipe_names)
    if "elmo" in nlp.pipe_names:
        # the weights are part of the saved pipeline
        assert nlp.get_pipe("elmo").bilm.config == random_bilm(seed=0).config  # type: ignore[attr-defined]


@pytest.mark.parametrize(("plain", "with_elmo"), TWINS, ids=[twin[0].stem for twin in TWINS])
def test_twins_differ_in_elmo_alone(plain: Path, with_elmo: Path) -> None:
    config: dict[str, Any] = load_config(with_elmo)
    del config["paths"]["elmo"], config["components"]["elmo"], config["initialize"]["components"]["elmo"]
    config["nlp"]["pipeline"].remove("elmo")
    assert config["training"]["before_to_disk"] == {"@callbacks": "spacy-elmo.mix_notes.v1"}
    config["training"]["before_to_disk"] = None
    listening = [
        tok2vec
        for component in config["components"].values()
        for tok2vec in (component.get("model"), component.get("model", {}).get("tok2vec"))
        if tok2vec and tok2vec["@architectures"] == "spacy-elmo.Tok2VecWithElmo.v1"
    ]
    assert len(listening) == 1
    del listening[0]["elmo"], listening[0]["elmo_output"]
    listening[0]["@architectures"] = "spacy.Tok2Vec.v2"
    assert config == load_config(plain)
