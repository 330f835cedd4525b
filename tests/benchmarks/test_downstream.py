"""The grid of downstream tasks: data, arms, runs by the real `spacy train`, statistics, report."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from jinja2 import Template
from spacy.cli.init_config import RECOMMENDATIONS, TEMPLATE_PATH
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from thinc.api import Config, Model

import spacy_elmo
from benchmarks import downstream, material
from benchmarks.grid.arms import ARMS, Arm, bilm_fingerprint, config_of, fingerprint, read_plan
from benchmarks.grid.report import Cell, cells_of, difference, draw, print_report, summary
from benchmarks.grid.tasks import TASKS, prepared, read_classes, read_entities, read_treebank, sampled
from benchmarks.peers import downstream_worker
from spacy_elmo.bilm import BiLM
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.pretraining.output import own_output

PEOPLE = [("Ann", "Oslo", "visits"), ("Bob", "Rome", "leaves"), ("Eve", "Paris", "likes"), ("Max", "Lima", "sees")]


def iob1(name: str, place: str, verb: str) -> str:
    return f"{name} NNP B-NP I-PER\n{verb} VBZ B-VP O\nNew NNP B-NP I-LOC\n{place} NNP I-NP I-LOC\n. . O O\n\n"


def iob2(name: str, place: str, verb: str) -> str:
    return f"{name}\tB-person\n{verb}\tO\nNew\tB-location\n{place}\tI-location\n.\tO\n\n"


def conllu(name: str, place: str, verb: str) -> str:
    rows = [(name, "PROPN", "NNP", 2, "nsubj"), (verb, "VERB", "VBZ", 0, "root"), (place, "PROPN", "NNP", 2, "obj")]
    rows.append((".", "PUNCT", ".", 2, "punct"))
    lines = [f"{i}\t{w}\t{w}\t{p}\t{t}\t_\t{h}\t{d}\t_\t_" for i, (w, p, t, h, d) in enumerate(rows, start=1)]
    # Glued to the word before: a tokenizer would not find it again.
    lines[2] = lines[2].removesuffix("_") + "SpaceAfter=No"
    return "# text = of no use\n" + "\n".join(lines) + "\n\n"


def classes(name: str, place: str, verb: str) -> str:
    return f"__label__{1 + len(place) % 2} {name} {verb} {place} .\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tasks' data, twelve sentences of each."""
    folder = tmp_path_factory.mktemp("assets")
    for task, sentence in (("conll", iob1), ("wnut", iob2), ("ewt", conllu), ("sst5", classes)):
        for split in ("train", "dev", "test"):
            path = TASKS[task].path(folder, split)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(sentence(*one) for one in PEOPLE * 10), encoding="utf8")
    return folder


@pytest.fixture(scope="module")
def bilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "bilm"
    spacy_elmo.save_bilm(random_bilm(seed=0), folder)
    return folder


def small(arm: Arm, task: str, data: Path, folder: Path, material: Path | None) -> tuple[dict[str, Any], Any]:
    """The result of a few steps in this process, and the pipeline."""
    splits = prepared(TASKS[task], data, folder / "data", 1.0, 0)
    config = config_of(arm, TASKS[task], data=splits, material=material, steps=3, evaluations=1, seed=0)
    config.to_disk(folder / "config.cfg", interpolate=False)
    result = downstream_worker.run(folder / "config.cfg", folder, splits["test"])
    return result, spacy.load(folder / "model-best")


# ------------------------------------------------------------------------------------------------------------- data


def test_what_files_say(data: Path) -> None:
    vocab = spacy.blank("en").vocab
    for name in ("conll", "wnut"):
        docs = list(read_entities(TASKS[name].path(data, "train"), vocab))
        assert len(docs) == 40
        assert [token.text for token in docs[1]] == ["Bob", "leaves", "New", "Rome", "."]
        assert [(ent.text, ent.label_[:3].upper()) for ent in docs[1].ents] == [("Bob", "PER"), ("New Rome", "LOC")]
    doc = next(iter(read_treebank(TASKS["ewt"].path(data, "train"), vocab)))
    assert [token.tag_ for token in doc] == ["NNP", "VBZ", "NNP", "."]
    assert [token.head.i for token in doc] == [1, 1, 1, 1]
    assert [doc.text, *(token.dep_ for token in doc)] == ["Ann visits Oslo. ", "nsubj", "ROOT", "obj", "punct"]
    texts = list(read_classes(TASKS["sst5"].path(data, "train"), vocab))
    assert texts[2].text.split() == ["Eve", "likes", "Paris", "."]
    assert [doc.cats for doc in texts[1:3]] == [{"1": 1.0, "2": 0.0}, {"1": 0.0, "2": 1.0}]


def test_a_document_mark_is_no_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("-DOCSTART- -X- O O\n\nAnn NNP I-NP I-PER\n\n-DOCSTART- -X- O O\n", "utf8")
    assert [doc.text for doc in read_entities(tmp_path / "a.conll", spacy.blank("en").vocab)] == ["Ann "]


def test_smaller_shares_are_part_of_larger_ones() -> None:
    docs: list[Any] = [f"sentence {i}" for i in range(1000)]
    tenth, hundredth = sampled(docs, 0.1, 0), sampled(docs, 0.01, 0)
    assert (len(tenth), len(hundredth), len(sampled(docs, 1e-6, 0))) == (100, 10, 1)
    assert set(hundredth) < set(tenth)
    assert tenth == [doc for doc in docs if doc in set(tenth)]  # in their order
    assert sampled(docs, 1.0, 0) == docs
    assert sampled(docs, 0.1, 0) == tenth != sampled(docs, 0.1, 1)


@pytest.mark.parametrize(
    ("task", "text"),
    [("conll", b"Ann X\n"), ("conll", b"caf\xe9 O\n"), ("ewt", b"1\tAnn\n"), ("sst5", b"The Rock is ...\n")],
)
def test_data_that_are_not_a_tasks_are_named(task: str, text: bytes, tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        path = TASKS[task].path(tmp_path, split)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    with pytest.raises(SystemExit, match=rf"train\.\w+ is not as {TASKS[task].title} has it: "):
        prepared(TASKS[task], tmp_path, tmp_path / "out", 1.0, 0)


def test_prepared_files_are_those_of_the_data(data: Path, tmp_path: Path) -> None:
    paths = prepared(TASKS["conll"], data, tmp_path, 0.1, 0)
    vocab = spacy.blank("en").vocab
    docs = {split: list(DocBin().from_disk(path).get_docs(vocab)) for split, path in paths.items()}
    assert [len(docs[split]) for split in ("train", "dev", "test")] == [4, 40, 40]
    assert docs["test"][1].ents[1].text == "New Rome"
    # Of dev, which has the same sentences here, the first ones are a random sample.
    texts = {split: [doc.text for doc in docs[split]] for split in ("dev", "test")}
    assert texts["dev"] != texts["test"]
    assert sorted(texts["dev"]) == sorted(texts["test"])
    # Another seed has another sample, but the whole is the whole.
    others = [prepared(TASKS["conll"], data, tmp_path, share, 1) for share in (0.1, 1.0)]
    assert others[0]["train"] != paths["train"]
    assert others[1] == prepared(TASKS["conll"], data, tmp_path, 1.0, 0)
    assert [others[0][split] for split in ("dev", "test")] == [paths[split] for split in ("dev", "test")]
    with pytest.raises(SystemExit, match=r"there is no .*nowhere"):
        prepared(TASKS["conll"], tmp_path / "nowhere", tmp_path, 0.1, 0)


# ------------------------------------------------------------------------------------------------------------- arms


def made(arm: Arm, task: str = "conll", material: Path | None = None) -> dict[str, Any]:
    splits = {split: Path(f"{split}.spacy") for split in ("train", "dev", "test")}
    config: dict[str, Any] = config_of(
        arm, TASKS[task], data=splits, material=material or Path("given"), steps=3000, evaluations=10, seed=4
    )
    return config


@pytest.mark.parametrize("task", TASKS)
def test_arms_differ_in_the_words_vectors_alone(task: str) -> None:
    spacy_config = made(ARMS["spacy"], task)
    training = spacy_config["training"]
    assert (training["max_steps"], training["eval_frequency"], training["patience"]) == (3000, 300, 0)
    assert spacy_config["system"]["seed"] == 4
    assert (spacy_config["corpora"]["dev"]["limit"], spacy_config["corpora"]["train"]["limit"]) == (1000, 0)
    if task == "ewt":
        # spaCy's 30 would make the rare labels of a small share "dep".
        for name in ("spacy", "vectors", "elmo", "transformer"):
            assert made(ARMS[name], task)["components"]["parser"]["min_action_freq"] == 1
    for name in ("pretrain", "vectors", "glove", "elmo", "adapted", "output", "both"):
        config = made(ARMS[name], task)
        assert {**config["training"], "before_to_disk": None} == training
        assert config["corpora"] == spacy_config["corpora"]
        block: Any = config
        plain: Any = spacy_config
        for part in TASKS[task].tok2vec.split("."):
            block, plain = block[part], plain[part]
        assert block["encode"] == plain["encode"]
        assert {**block["embed"], "include_static_vectors": False} == plain["embed"]
        assert block["embed"]["include_static_vectors"] == (name in ("vectors", "glove"))
        assert [place for place in ("elmo", "elmo_output") if block.get(place)] == {
            "elmo": ["elmo"],
            "adapted": ["elmo"],
            "output": ["elmo_output"],
            "both": ["elmo", "elmo_output"],
        }.get(name, [])


def test_places_have_the_listener_of_the_config() -> None:
    tuned = {"tok2vec.elmo.mix.layer_norm": True, "tok2vec.elmo.elmo_dropout": 0.2}
    listener = made(Arm(name="tuned", base="elmo", settings=tuned))["components"]["ner"]["model"]["tok2vec"]["elmo"]
    assert (listener["mix"]["layer_norm"], listener["elmo_dropout"]) == (True, 0.2)
    for name, before in (("output", None), ("both", listener)):
        arm = Arm(name="tuned", base="elmo", settings={**ARMS[name].settings, **tuned})
        tok2vec = made(arm)["components"]["ner"]["model"]["tok2vec"]
        assert tok2vec["elmo_output"] == listener
        assert tok2vec["elmo"] == before
        plain = made(ARMS[name])["components"]["ner"]["model"]["tok2vec"]["elmo_output"]
        assert plain == made(ARMS["elmo"])["components"]["ner"]["model"]["tok2vec"]["elmo"]


def test_steps_and_evaluations_fit_the_task(data: Path, bilm: Path, tmp_path: Path) -> None:
    grid = downstream.Grid(options("--data", str(data), "--output", str(tmp_path), "--elmo", str(bilm)))
    found = {}
    for task in TASKS:
        for share in (0.01, 0.1, 1.0):
            config, _, notes = grid.prepare(downstream.Run(task, share, ARMS["elmo"], 2))
            assert config["training"]["max_steps"] == notes["steps"]
            assert notes["sample_seed"] == 2
            found[task, share] = (notes["steps"], notes["steps"] / config["training"]["eval_frequency"])
    assert found["conll", 0.1] == found["ewt", 0.1] == (3000, 10)
    assert (found["wnut", 0.1], found["wnut", 1.0]) == ((1500, 10), (3000, 10))
    assert (found["sst5", 0.1], found["sst5", 1.0]) == ((1000, 20), (2000, 20))
    assert found["conll", 0.01] == (1500, 10)


def test_what_is_done_stays_done_when_more_is_given(data: Path, bilm: Path, tmp_path: Path) -> None:
    given = ["--data", str(data), "--output", str(tmp_path), "--elmo", str(bilm)]
    later = ["--vectors", "v", "--init-tok2vec", "t", "--glove", "g", "--adapted", "{task}", "--transformer", "x"]
    for arm in ("spacy", "elmo", "top"):
        run = downstream.Run("conll", 0.1, ARMS[arm], 1)
        (before, after) = (
            downstream.Grid(options(*given, *more)).prepare(run)[2] for more in ([], [*later, "--cache-mb", "7"])
        )
        assert before == after


def test_a_folder_that_is_no_bilm_stops_the_grid_at_once(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    given = ["--data", str(data), "--output", str(tmp_path / "out"), "--elmo", str(tmp_path / "empty")]
    with pytest.raises(SystemExit, match=r"^uniform: .*empty"):
        downstream.main([*given, "--tasks", "conll", "--shares", "0.1", "--arms", "uniform", "--seeds", "1"])
    assert not (tmp_path / "out" / "runs").exists()


def test_a_transformer_takes_the_place_of_the_tok2vec() -> None:
    config = made(ARMS["transformer"], "ewt", Path("minilm"))
    assert config["nlp"]["pipeline"] == ["transformer", "tagger", "parser"]
    assert config["components"]["transformer"]["model"]["name"] == "minilm"
    for name in ("tagger", "parser"):
        tok2vec = config["components"][name]["model"]["tok2vec"]
        assert tok2vec["@architectures"] == "spacy-transformers.TransformerListener.v1"
    assert config["training"]["optimizer"]["learn_rate"]["initial_rate"] == 5e-5
    assert config["training"]["max_steps"] == 3000


def test_a_transformer_is_trained_as_spacys_template_says(tmp_path: Path) -> None:
    # The template itself: `init config` falls back to a CPU's where spacy-transformers is missing.
    asked = {"lang": "en", "components": ["parser", "ner"], "hardware": "gpu", "optimize": "efficiency"}
    text = Template(TEMPLATE_PATH.read_text()).render(
        asked | {"transformer_data": RECOMMENDATIONS["en"]["transformer"]}
    )
    template = Config().from_str(text, interpolate=False)
    for task, name in (("conll", "ner"), ("ewt", "parser")):
        config = made(ARMS["transformer"], task)
        theirs, model = (one["components"][name]["model"] for one in (template, config))
        assert model == {**theirs, "tok2vec": {**theirs["tok2vec"], "upstream": "*"}}
        their_training, training = template["training"], config["training"]
        assert training["accumulate_gradient"] == their_training["accumulate_gradient"]
        assert training["batcher"] == {**their_training["batcher"], "get_length": None}
        rate = {**their_training["optimizer"]["learn_rate"], "total_steps": "${training.max_steps}"}
        assert training["optimizer"]["learn_rate"] == rate
        spacy.registry.resolve({"batcher": config["training"]["batcher"]})
    splits = {split: Path(split) for split in ("train", "dev", "test")}
    few = config_of(
        ARMS["transformer"], TASKS["conll"], data=splits, material=Path("x"), steps=500, evaluations=10, seed=0
    )
    assert few["training"]["optimizer"]["learn_rate"]["warmup_steps"] == 50
    # A plan may set what only this arm has.
    changed = {"training.optimizer.learn_rate.initial_rate": 2e-5, "training.max_steps": 700}
    (tmp_path / "plan.jsonl").write_text(json.dumps({"name": "slower", "base": "transformer", "set": changed}))
    (slower,) = read_plan(tmp_path / "plan.jsonl")
    assert (slower.seeds, slower.tasks) == (1, ("conll",))
    training = made(slower)["training"]
    assert (training["optimizer"]["learn_rate"]["initial_rate"], training["max_steps"]) == (2e-5, 700)


def test_plans_have_arms(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"name": "normed", "set": {"tok2vec.elmo.mix.layer_norm": True}, "shares": [0.1], "seeds": 2},
        {"name": "normed-0.2", "base": "normed", "set": {"tok2vec.elmo.elmo_dropout": 0.2}},
        {"name": "wide", "base": "spacy", "set": {"tok2vec.encode.width": 128}, "tasks": ["ewt"]},
        {"name": "other", "base": "elmo", "material": "other/{task}"},
    ]
    (tmp_path / "plan.jsonl").write_text("\n".join(map(json.dumps, lines)))
    normed, both, wide, other = read_plan(tmp_path / "plan.jsonl")
    assert (normed.base, normed.material, normed.seeds) == ("elmo", "elmo", 2)
    assert normed.runs("conll", 0.1)
    assert not normed.runs("conll", 1.0)
    listener = made(both)["components"]["ner"]["model"]["tok2vec"]["elmo"]
    assert (listener["mix"]["layer_norm"], listener["elmo_dropout"]) == (True, 0.2)
    assert made(wide, "ewt")["components"]["tok2vec"]["model"]["encode"]["width"] == 128
    assert (wide.material, wide.tasks, other.material) == (None, ("ewt",), "other/{task}")

    for wrong, said in (
        ({"name": "elmo"}, "an arm 'elmo' already"),
        ({"name": "a/b"}, "a file's name"),
        ({"name": "a", "base": "b"}, "no arm 'b'"),
        ({"name": "a", "tasks": ["b"]}, "no tasks b"),
        ({"name": "a", "layers": 2}, "an arm has a name"),
        ([], "an arm has a name"),
        ({"name": "a" * 101}, "a file's name"),
        ({"name": "a", "set": 3}, "set is of the type dict"),
        ({"name": "a", "base": ["elmo"]}, "base is of the type str"),
        ({"name": "a", "seeds": True}, "seeds is of the type int"),
        ({"name": "a", "seeds": 0}, "seeds are 1 or more"),
        ({"name": "a", "shares": [0.1, "x"]}, "shares are numbers .* not x"),
        ({"name": "a", "shares": [10]}, "shares are numbers .* not 10"),
        ({"name": "a", "tasks": [["conll"]]}, "no tasks"),
        # These would be other arms: `both`, and `uniform`.
        ({"name": "a", "set": {"places": "ouput"}}, "places, .*input or output or both, not 'ouput'"),
        ({"name": "a", "set": {"layers": "mean"}}, "layers, .*top or uniform, not 'mean'"),
        ({"name": "a", "base": "spacy", "set": {"layers": "top"}}, "layers, of an arm with ELMo"),
    ):
        (tmp_path / "wrong.jsonl").write_text(json.dumps(wrong))
        with pytest.raises(SystemExit, match=said):
            read_plan(tmp_path / "wrong.jsonl")
    (tmp_path / "wrong.jsonl").write_bytes(b"\xff")
    for path in (tmp_path / "wrong.jsonl", tmp_path):
        with pytest.raises(SystemExit, match="no file of JSON lines"):
            read_plan(path)
    misspelt = Arm(name="a", base="elmo", material="elmo", settings={"tok2vec.elmo.dropout": 0.1})
    with pytest.raises(SystemExit, match=r"no components\.ner\.model\.tok2vec\.elmo\.dropout"):
        made(misspelt)


def test_fingerprints_know_contents(tmp_path: Path) -> None:
    for name, text in (("a", "x"), ("b", "x"), ("c", "y")):
        (tmp_path / name / "folder").mkdir(parents=True)
        (tmp_path / name / "folder" / "file").write_text(text)
    one, same, other = (fingerprint(tmp_path / name) for name in "abc")
    assert one == same != other
    # What installing adds, and a text about it, change nothing.
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "file.pyc").write_text("z")
    (tmp_path / "a" / "README.md").write_text("z")
    assert fingerprint(tmp_path / "a") == one
    with pytest.raises(SystemExit, match="there is no"):
        fingerprint(tmp_path / "d")


def test_a_bilm_is_known_by_what_its_vectors_depend_on(bilm: Path, tmp_path: Path) -> None:
    same = tmp_path / "package"
    shutil.copytree(bilm, same)
    for name in ("README.md", "meta.json", "__init__.py"):
        (same / name).write_text("{}")
    assert bilm_fingerprint(same) == bilm_fingerprint(same / "config.json") == bilm_fingerprint(bilm)
    found = {bilm_fingerprint(bilm)}
    unclipped = BiLM(replace(random_bilm(seed=0).config, cell_clip=None)).initialize(0)  # the same values
    for other in (random_bilm(seed=1), unclipped):
        spacy_elmo.save_bilm(other, tmp_path / "other")
        found.add(bilm_fingerprint(tmp_path / "other"))
    assert len(found) == 3


def test_a_bilm_may_be_named(data: Path, bilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "demo-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[spacy_elmo_weights]\nxx-demo = demo_of_weights:path\n")
    (tmp_path / "demo_of_weights.py").write_text(f"path = {str(bilm)!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = ["--data", str(data), "--output", str(tmp_path / "out")]
    prepared_ = [
        downstream.Grid(options(*given, "--elmo", name)).prepare(downstream.Run("conll", 0.1, ARMS["elmo"], 0))
        for name in ("xx-demo", str(bilm))
    ]
    assert [config["paths"]["elmo"] for config, *_ in prepared_] == [str(bilm)] * 2
    assert len({notes["fingerprint"] for *_, notes in prepared_}) == 1


def options(*given: str) -> argparse.Namespace:
    """As the command line gives them."""
    found: list[argparse.Namespace] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downstream, "dry_run", lambda runs, grid: found.append(grid.args))
        downstream.main(["--output", "nowhere", "--dry-run", *given])
    return found[0]


def test_order_and_number_of_runs() -> None:
    runs = downstream.planned(options("--elmo", "bilm", "--arms", "spacy", "elmo", "--all"))
    names = [run.name for run in runs]
    assert names[:3] == ["conll-0.1-spacy-0", "conll-0.1-elmo-0", "wnut-0.1-spacy-0"]
    assert names[8] == "conll-0.1-spacy-1"
    # 10% of all, CoNLL at 1%, 100%, the rest; five seeds, at 100% three
    shares = [(run.share, run.task == "conll") for run in runs]
    assert [shares[0][0], shares[39][0], shares[40], shares[49]] == [0.1, 0.1, (0.01, True), (0.01, True)]
    assert [shares[50][0], shares[73][0], shares[74], shares[-1]] == [1.0, 1.0, (0.01, False), (0.01, False)]
    assert len(runs) == 40 + 10 + 24 + 30
    # Systems before variants, seed by seed; the transformer after all seeds.
    given = ["--elmo", "bilm", "--vectors", "vectors", "--init-tok2vec", "tok2vec.bin", "--transformer", "minilm"]
    names = [run.name for run in downstream.planned(options(*given))]
    of_seed = [f"{task}-0.1-{arm}-0" for task in TASKS for arm in ("spacy", "pretrain", "vectors", "elmo")]
    of_seed += [f"conll-0.1-{arm}-0" for arm in ("top", "uniform", "output", "both")]
    assert names[:20] == of_seed
    assert names[20] == "conll-0.1-spacy-1"
    at = names.index("conll-0.1-transformer-0")
    assert names[at - 1].endswith("-0.1-elmo-4")
    assert names[at + 1] == "conll-0.01-spacy-0"
    assert names[-1] == "conll-1-transformer-0"
    # Without names: what files were given for, each within its limits.
    runs = downstream.planned(options("--elmo", "bilm", "--transformer", "minilm", "--seeds", "2"))
    assert {run.arm.name for run in runs} == {"spacy", "elmo", "top", "uniform", "output", "both", "transformer"}
    assert {(run.task, run.share) for run in runs if run.arm.name == "top"} == {("conll", 0.1)}
    assert [run.name for run in runs if run.arm.name == "transformer"] == [
        "conll-0.1-transformer-0",
        "conll-1-transformer-0",
    ]
    # A name lifts them, but those of the transformer.
    runs = downstream.planned(options("--elmo", "bilm", "--arms", "top", "--tasks", "ewt", "--shares", "1"))
    assert [run.name for run in runs] == ["ewt-1-top-0", "ewt-1-top-1", "ewt-1-top-2"]
    runs = downstream.planned(options("--transformer", "minilm", "--arms", "spacy", "transformer", "--seeds", "2"))
    assert [run.name for run in runs if run.arm.name == "transformer"] == [
        "conll-0.1-transformer-0",
        "conll-1-transformer-0",
    ]
    with pytest.raises(SystemExit):
        options("--transformer", "minilm", "--arms", "transformer", "--tasks", "wnut")
    with pytest.raises(SystemExit, match="pretrain needs --init-tok2vec"):
        downstream.planned(options("--arms", "pretrain"))
    with pytest.raises(SystemExit, match="there is no 'other'"):
        downstream.planned(options("--arms", "other"))


def test_what_says_least_is_left_out() -> None:
    given = ["--elmo", "bilm", "--adapted", "adapted/{task}", "--glove", "glove"]

    def cells(*more: str) -> set[tuple[str, float, str, int]]:
        return {(run.task, run.share, run.arm.name, run.seed) for run in downstream.planned(options(*given, *more))}

    everything, usual = cells("--all"), cells()
    left_out = everything - usual
    assert usual < everything
    assert {(task, arm) for task, share, arm, _ in left_out if share == 0.01} == {
        (task, arm) for task in ("wnut", "ewt", "sst5") for arm in ("spacy", "elmo", "glove", "adapted")
    }
    assert {(task, arm) for task, share, arm, _ in left_out if share == 1.0} == {
        (task, arm) for task in ("wnut", "ewt", "sst5") for arm in ("glove", "adapted")
    }
    assert {(task, arm) for task, share, arm, _ in left_out if share == 0.1} == {
        *((task, "glove") for task in ("wnut", "ewt", "sst5")),
        *(("conll", arm) for arm in ("top", "uniform", "output", "both")),
    }
    assert {seed for task, _, arm, seed in usual if arm == "both"} == {0, 1, 2}
    # What is asked for by its name is not left out.
    assert {task for task, share, *_ in cells("--shares", "0.01")} == set(TASKS)
    named = cells("--arms", "glove", "adapted")
    assert {(task, arm) for task, share, arm, _ in named if share == 1.0} == {
        (task, arm) for task in TASKS for arm in ("glove", "adapted")
    }
    assert {task for task, share, *_ in named if share == 0.01} == {"conll"}


# ------------------------------------------------------------------------------------------------------------- runs


def test_a_grid_runs_goes_on_and_reports(
    data: Path, bilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = ["--data", str(data), "--output", str(out), "--elmo", str(bilm), "--tasks", "conll", "--shares", "0.5"]
    given += ["--steps", "4", "--evaluations", "2", "--jobs", "2"]
    downstream.main([*given, "--arms", "elmo", "uniform", "--seeds", "1", "--speed", "--rounds", "1"])
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in capsys.readouterr().out.splitlines()]
    assert [row[1] for row in rows if row[0] == "50%"] == ["elmo", "uniform"]
    found = srsly.read_json(out / "results.json")
    for run in found["runs"]:
        assert set(run) >= {"machine", "seconds", "processor_seconds", "seconds_per_epoch", "versions", "fingerprint"}
        assert 0 <= run["test_scores"]["ents_f"] <= 1
        assert (run["steps"], run["sentences"], run["words"]) == (4, 20, 100)
        assert run["epochs"] == pytest.approx(4 * 100 / 100, rel=0.3)  # steps of 100 words
        assert [mix["learned"] for mix in run["mixes"]] == [run["arm"] == "elmo"]
        assert [one["step"] for one in run["evaluations"]] == [0, 2, 4]
        best = max(one["score"] for one in run["evaluations"])
        assert run["best_step"] == max(one["step"] for one in run["evaluations"] if one["score"] == best)
    assert set(found["speed"]["conll"]) == {"elmo", "uniform"}
    assert "<svg" in (out / "sample-efficiency.svg").read_text()
    # Vectors lie there once, of four different texts and one biLM, though two runs were at it at a time.
    with closing(sqlite3.connect(next((out / "cache").glob("*.sqlite")))) as db:
        assert db.execute("SELECT count(DISTINCT name), count(*), count(DISTINCT model) FROM layers").fetchall() == [
            (4, 4, 1)
        ]

    # What is done is not done again; what a killed run left makes room.
    (done,) = out.glob("results/conll-0.5-elmo-0.json")
    before = done.stat().st_mtime_ns
    rest = out / "runs" / "conll-0.5-elmo-1" / "model-best"
    rest.mkdir(parents=True)
    downstream.main([*given, "--arms", "elmo", "--seeds", "2"])
    printed = capsys.readouterr()
    assert "1 of 2 runs are done" in printed.err
    assert "| 50% | elmo | 2 |" in printed.out
    assert done.stat().st_mtime_ns == before
    # The first seed's models are kept, no others.
    assert {path.parent.name for path in out.glob("runs/*/model-*")} == {"conll-0.5-elmo-0", "conll-0.5-uniform-0"}

    with pytest.raises(SystemExit, match="of other settings"):
        downstream.main([*given, "--arms", "elmo", "--seeds", "1", "--evaluations", "1"])
    with own_output(out), pytest.raises(SystemExit, match="in use by another process"):
        downstream.main([*given, "--arms", "elmo", "--seeds", "2"])

    # Elsewhere, too, where there is nothing but what was found.
    elsewhere = tmp_path / "elsewhere"
    given[given.index(str(out))] = str(elsewhere)
    downstream.main([*given, "--arms", "elmo", "--seeds", "2", "--known", str(out / "results.json")])
    there = capsys.readouterr()
    assert "2 of 2 runs are done" in there.err
    assert "| 50% | elmo | 2 |" in there.out
    assert len(list(elsewhere.glob("results/*.json"))) == 3
    downstream.main(["--output", str(tmp_path / "report"), "--report", "--known", str(out / "results.json")])
    assert capsys.readouterr().out == printed.out
    with pytest.raises(SystemExit, match="of this program"):
        downstream.main([*given, "--arms", "elmo", "--known", str(done)])
    downstream.main(["--output", str(out), "--report"])
    assert capsys.readouterr().out == printed.out


def test_nothing_is_run_twice_at_once() -> None:
    twice = ["--arms", "spacy", "spacy", "--tasks", "conll", "conll", "--shares", "0.1", "0.10", "--seeds", "2"]
    runs = downstream.planned(options(*twice))
    assert [run.name for run in runs] == ["conll-0.1-spacy-0", "conll-0.1-spacy-1"]


def test_braces_in_a_path_are_its_own(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--data", str(data), "--output", str(tmp_path / "out"), "--elmo", str(tmp_path / "{a}{task}{")]
    with pytest.raises(SystemExit, match=r"elmo: .*\{a\}conll\{: no such file"):
        downstream.main([*given, "--arms", "elmo", "--tasks", "conll", "--shares", "0.1"])


def test_known_runs_are_whole_or_none_is_taken(data: Path, tmp_path: Path) -> None:
    good = result_of("conll", 0.1, "spacy", 0, 70.0)
    given = ["--data", str(data), "--output", str(tmp_path / "out"), "--arms", "spacy", "--tasks", "conll"]
    for bad, said in (
        ({name: good[name] for name in ("task", "share", "arm", "seed")}, "it lacks dev_scores"),
        ({**good, "task": "../../conll"}, "no name of a file"),
        ({**good, "test_scores": {}}, "conll-0.1-spacy-0 has not the values of a run"),
        (3, "it lacks"),
    ):
        srsly.write_json(tmp_path / "known.json", {"runs": [good, bad], "speed": {}})
        with pytest.raises(SystemExit, match=f"--known: .*{said}"):
            downstream.main([*given, "--known", str(tmp_path / "known.json")])
    with pytest.raises(SystemExit, match="is no results"):
        downstream.main([*given, "--known", str(tmp_path)])
    assert not list(tmp_path.glob("**/conll-*.json"))
    # What lies there all the same is named.
    (tmp_path / "out" / "results").mkdir()
    (tmp_path / "out" / "results" / "conll-0.1-spacy-0.json").write_text("{")
    with pytest.raises(SystemExit, match=r"conll-0\.1-spacy-0\.json is no result of a run, remove it"):
        downstream.main(["--output", str(tmp_path / "out"), "--report"])


def test_tables_that_cannot_be_written_leave_those_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results").mkdir()
    srsly.write_json(tmp_path / "results" / "conll-0.1-spacy-0.json", result_of("conll", 0.1, "spacy", 0, 70.0))
    downstream.main(["--output", str(tmp_path), "--report"])
    before = (tmp_path / "results.json").read_bytes()

    def write(path: Path, data: Any) -> None:
        Path(path).write_text("{")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(srsly, "write_json", write)
    with pytest.raises(SystemExit, match=r"results\.json: cannot be written: No space left"):
        downstream.main(["--output", str(tmp_path), "--report"])
    assert (tmp_path / "results.json").read_bytes() == before


def test_a_result_that_cannot_be_kept_ends_no_other_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Runs that write their result at once: what a worker does, without training.
    python = tmp_path / "python"
    of_grid = ("task", "share", "arm", "seed", "steps", "adapted", "material", "settings")
    answer = json.dumps({k: v for k, v in result_of("conll", 0.1, "transformer", 0, 70.0).items() if k not in of_grid})
    python.write_text(f"#!/bin/sh\necho '{answer}' > $(dirname $3)/result.json\n")
    python.chmod(0o755)
    (tmp_path / "minilm").mkdir()
    given = ["--data", str(data), "--output", str(tmp_path / "out"), "--transformer", str(tmp_path / "minilm")]
    given += ["--transformer-python", str(python), "--tasks", "conll", "--shares", "1", "0.1", "--arms", "transformer"]
    write = srsly.write_json

    def full(path: Path, one: Any) -> None:
        if isinstance(one, dict) and one.get("share") == 0.1 and "machine" in one:
            raise OSError(28, "No space left on device")
        write(path, one)

    monkeypatch.setattr(srsly, "write_json", full)
    with pytest.raises(SystemExit, match=r"1 runs failed: conll-0\.1-transformer-0"):
        downstream.main([*given, "--jobs", "1"])
    assert "its result cannot be kept: " in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out" / "results").iterdir()] == ["conll-1-transformer-0.json"]


def test_a_run_that_fails_is_named(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no spacy-transformers here\nexit 1\n")
    python.chmod(0o755)
    (tmp_path / "minilm").mkdir()
    given = ["--data", str(data), "--output", str(tmp_path / "out"), "--transformer", str(tmp_path / "minilm")]
    given += ["--transformer-python", str(python), "--tasks", "conll", "--shares", "0.1", "--arms", "transformer"]
    with pytest.raises(SystemExit, match=r"1 runs failed: conll-0\.1-transformer-0"):
        downstream.main([*given, "--seeds", "1"])
    log = (tmp_path / "out" / "runs" / "conll-0.1-transformer-0" / "train.log").read_text()
    assert log == "no spacy-transformers here\n"
    # What is done is reported all the same.
    assert capsys.readouterr().out == ""
    done = tmp_path / "out" / "results" / "conll-0.1-spacy-0.json"
    done.parent.mkdir()
    srsly.write_json(done, result_of("conll", 0.1, "spacy", 0, 70.0))
    with pytest.raises(SystemExit, match="1 runs failed"):
        downstream.main([*given, "--seeds", "1", "--speed"])
    assert "| 10% | spacy | 1 | 70.0 | 70.0 |" in capsys.readouterr().out


def test_a_run_ends_with_the_grid(data: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho begun\ncat\necho ended\n")
    python.chmod(0o755)
    (tmp_path / "minilm").mkdir()
    (tmp_path / "minilm" / "config.json").write_text("{}")
    given = ["--data", str(data), "--output", str(tmp_path / "out"), "--transformer", str(tmp_path / "minilm")]
    grid = downstream.Grid(options(*given, "--transformer-python", str(python)))
    run = downstream.Run("conll", 0.1, ARMS["transformer"], 0)
    config, paths, _ = grid.prepare(run)
    process = grid._start(run, config, paths)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert process.stdin is not None
    process.stdin.close()  # as it is when the process that holds it is killed
    assert process.wait(30) == 0
    assert (grid.folder(run) / "train.log").read_text() == "begun\nended\n"


def test_text_that_is_timed_is_new(data: Path, bilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    splits = prepared(TASKS["conll"], data, tmp_path / "data", 1.0, 0)
    config = config_of(ARMS["elmo"], TASKS["conll"], data=splits, material=bilm, steps=3, evaluations=1, seed=0)
    init_nlp(config).to_disk(tmp_path / "elmo")
    read: list[tuple[BiLM, int]] = []
    encode = BiLM.encode

    def counted(self: BiLM, sentences: list[list[str]], *args: Any, **kwargs: Any) -> Any:
        if sentences:
            read.append((self, sum(map(len, sentences))))
        return encode(self, sentences, *args, **kwargs)

    monkeypatch.setattr(BiLM, "encode", counted)
    pipelines = {"elmo": str(tmp_path / "elmo")}
    jobs, _ = downstream_worker.load(threads=1, pipelines=pipelines, test=str(splits["test"]))
    assert [jobs["annotate"](pipeline="elmo")["amount"] for _ in range(2)] == [200, 200]
    # In each round, after a word that is not timed, the biLM reads each of the four texts once; nor has it kept words.
    assert [words for _, words in read] == [1, 20, 1, 20]
    assert read[1][0] is not read[3][0]


def test_a_pipeline_is_scored_with_what_lies_on_the_disk(
    data: Path, bilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = prepared(TASKS["conll"], data, tmp_path / "data", 1.0, 0)
    config = config_of(ARMS["elmo"], TASKS["conll"], data=splits, material=bilm, steps=1, evaluations=1, seed=0)
    config["components"]["elmo"]["cache_dir"] = str(tmp_path / "cache")
    config.to_disk(tmp_path / "config.cfg", interpolate=False)
    first = downstream_worker.run(tmp_path / "config.cfg", tmp_path / "first", splits["test"])
    read: list[list[str]] = []
    encode = BiLM.encode

    def counted(self: BiLM, sentences: list[list[str]], *args: Any, **kwargs: Any) -> Any:
        read.extend(sentences)
        return encode(self, sentences, *args, **kwargs)

    monkeypatch.setattr(BiLM, "encode", counted)
    second = downstream_worker.run(tmp_path / "config.cfg", tmp_path / "second", splits["test"])
    assert read == []
    assert second["test_scores"]["ents_f"] == first["test_scores"]["ents_f"]


@pytest.mark.parametrize(("task", "arm"), [("wnut", "top"), ("ewt", "both"), ("sst5", "uniform")])
def test_every_task_trains(task: str, arm: str, data: Path, bilm: Path, tmp_path: Path) -> None:
    result, nlp = small(ARMS[arm], task, data, tmp_path, bilm)
    for metric in TASKS[task].metrics:
        assert 0 <= result["test_scores"][metric] <= 1
        # Dev and test are the same sentences here.
        assert result["dev_scores"][metric] == pytest.approx(result["test_scores"][metric], abs=1e-6)
    if task == "ewt":  # where a tokenizer would find others
        assert result["test_scores"]["token_acc"] == 1.0
    weights = [mix["weights"] for mix in result["mixes"]]
    last = len(weights[0]) - 1
    expected = {"top": [[0.0] * last + [1.0]], "uniform": [[1 / (last + 1)] * (last + 1)]}.get(arm, weights)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    assert len(weights) == (2 if arm == "both" else 1)
    assert nlp.get_pipe("elmo").bilm.config == random_bilm(seed=0).config


# --------------------------------------------------------------------------------------------------------- material


def parameters(model: Model[Any, Any]) -> list[np.ndarray]:
    """Copies of a model's parameters."""
    return [np.array(node.get_param(name)) for node in model.walk() for name in node.param_names]


@pytest.mark.parametrize("task", ["conll", "ewt", "sst5"])
def test_pretrained_by_spacy_and_begun_with_that(
    task: str, data: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "tok2vec.bin"  # one for all tasks
    if not path.exists():
        text = tmp_path / "text.txt"
        text.write_text("The river bank was muddy. Nobody swims there.\n\nThe bank lent us money.\n" * 200)
        material.main(["tok2vec", "--raw", str(text), "--minutes", "0.02", "--output", str(path)])
        log = list(srsly.read_jsonl(path.with_suffix(".jsonl")))
        assert log[-1]["words"] == log[-1]["nr_word"] > 500
        assert log[-1]["minutes"] > 0.0199
    # Of no rate, training leaves it as it was.
    still = {"training.optimizer.learn_rate": 0.0, "training.optimizer.L2": 0.0}
    arm = Arm(name="still", base="pretrain", material="init_tok2vec", settings=still)
    _, nlp = small(arm, task, data, tmp_path, path)
    (model,) = [node for _, pipe in nlp.pipeline for node in downstream_worker.tok2vecs(pipe.model)]
    found = parameters(model)
    assert len(found) > 10
    for trained, begun in zip(found, parameters(model.from_bytes(path.read_bytes())), strict=True):
        np.testing.assert_array_equal(trained, begun)


def test_a_tok2vec_that_was_killed_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The river bank number {i} was muddy." for i in range(1000)))
    path = tmp_path / "tok2vec.bin"
    given = ["tok2vec", "--raw", str(text), "--minutes", "4", "--output", str(path)]
    monkeypatch.setattr(material, "PART", 1.0)
    ticks = itertools.count()  # of a clock by which a piece of text takes 0.6 seconds
    monkeypatch.setattr(material, "time", SimpleNamespace(process_time=lambda: 0.6 * next(ticks)))
    read = material.TimedText.__call__
    begun: list[list[str]] = []
    resumed: list[bytes] = []

    def dies(self: material.TimedText, nlp: Any) -> Any:
        for doc in read(self, nlp):
            if self.part == 2:
                raise KeyboardInterrupt
            yield doc

    def noted(self: material.TimedText, nlp: Any) -> Any:
        for i, doc in enumerate(read(self, nlp)):
            if i == 0:
                begun.append([token.text for token in doc])
            yield doc

    with monkeypatch.context() as patch:
        patch.setattr(material.TimedText, "__call__", dies)
        with pytest.raises(KeyboardInterrupt):
            material.main(given)
    parts = material.parts_done(tmp_path / "tok2vec.bin.parts")
    assert list(parts) == [0, 1]
    kept = (tmp_path / "tok2vec.bin.parts" / "model1.bin").read_bytes()
    with pytest.raises(SystemExit, match="of other settings"):
        material.main([*given, "--minutes", "8"])
    pretrain = material.pretrain

    def spied(*args: Any, **kwargs: Any) -> None:
        resumed.append(kwargs["resume_path"].read_bytes())
        pretrain(*args, **kwargs)

    monkeypatch.setattr(material, "pretrain", spied)
    monkeypatch.setattr(material.TimedText, "__call__", noted)
    material.main(given)
    assert resumed == [kept]
    log = list(srsly.read_jsonl(path.with_suffix(".jsonl")))
    assert [line["epoch"] for line in log] == [0, 1, 2, 3]
    assert [line["minutes"] for line in log] == sorted(line["minutes"] for line in log)
    # It read on where it had stopped.
    assert log[1]["words"] == parts[1]["words"]
    assert log[2]["nr_word"] == log[2]["words"] - log[1]["words"] > 0
    order = random.Random(0).sample(range(1000), 1000)
    assert begun[0][:5] == ["The", "river", "bank", "number", str(order[log[1]["words"] // len(begun[0])])]
    assert path.read_bytes() != kept
    assert not (tmp_path / "tok2vec.bin.parts").exists()


def test_documents_of_all_files_come_in_random_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("books", "wiki"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(f"{name} {i}" for i in range(100)))
    ticks = itertools.count()  # a piece takes a second
    monkeypatch.setattr(material, "time", SimpleNamespace(process_time=lambda: float(next(ticks))))
    text = material.TimedText(str(tmp_path / "*.txt"), 400 / 60, tmp_path)
    read = [doc.text for doc in text(spacy.blank("en"))]
    first, second = read[:200], read[200:]
    assert set(first) == {f"{name} {i}" for name in ("books", "wiki") for i in range(100)}
    assert 20 < sum(name.startswith("wiki") for name in first[:100]) < 80
    assert first[: len(second)] != second


def test_a_tok2vec_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda path, words, env: begun.append((words, env)))
    monkeypatch.setattr(sys, "argv", ["material.py", "tok2vec", "--minutes", "1"])
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    material.one_thread()
    ((words, env),) = begun
    assert words == [sys.executable, "-m", "benchmarks.material", "tok2vec", "--minutes", "1"]
    assert {env[name] for name in material.THREAD_VARIABLES} == {"1"}
    for name in material.THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    material.one_thread()
    assert len(begun) == 1


def test_static_vectors_of_words_and_their_pieces(data: Path, tmp_path: Path) -> None:
    rows = 20
    table = np.random.default_rng(0).normal(size=(rows, 4))
    lines = [" ".join([str(i), *(f"{value:.4f}" for value in row)]) for i, row in enumerate(table)]
    (tmp_path / "vectors.floret").write_text(f"{rows} 4 4 5 2 0 < >\n" + "\n".join(lines) + "\n")
    material.init_vectors(tmp_path / "vectors.floret", tmp_path / "vectors")
    result, nlp = small(ARMS["vectors"], "conll", data, tmp_path, tmp_path / "vectors")
    assert nlp.vocab.vectors.shape == (rows, 4)
    assert any(node.name == "static_vectors" for node in nlp.get_pipe("ner").model.walk())
    assert result["mixes"] == []


def test_floret_trains(tmp_path: Path) -> None:
    pytest.importorskip("floret", reason="needs floret: pip install floret")
    (tmp_path / "text.txt").write_text("The river bank was muddy. The bank lent us money.\n" * 100)
    given = ["--raw", str(tmp_path / "text.txt"), "--output", str(tmp_path / "vectors"), "--dim", "8", "--rows", "100"]
    material.main(["floret", *given])
    assert spacy.load(tmp_path / "vectors").vocab.vectors.shape == (100, 8)


def test_glove_of_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    data = tmp_path / "package" / "data"
    data.mkdir(parents=True)
    np.save(data / "emb.npy", np.array([[1, 2], [3, 4]], dtype=np.float32))
    parquet.write_table(pyarrow.table({"index": ["the", "bank"]}), data / "index.parquet")
    given = ["glove", "--package", str(tmp_path / "package"), "--output", str(tmp_path / "glove")]
    material.main(given)
    doc = spacy.load(tmp_path / "glove")("The Bank lent THE bank")
    assert [token.vector.tolist() for token in doc] == [[1, 2], [3, 4], [0, 0], [1, 2], [3, 4]]
    material.main(given)
    assert "is there" in capsys.readouterr().err


def test_a_form_of_two_words_is_that_of_the_frequent_one(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "emb.npy", np.array([[1, 2], [3, 4]], dtype=np.float32))
    parquet.write_table(pyarrow.table({"index": ["ss", "ß"]}), tmp_path / "data" / "index.parquet")
    material.main(["glove", "--package", str(tmp_path), "--output", str(tmp_path / "glove")])
    vocab = spacy.load(tmp_path / "glove").vocab
    assert [vocab[form].vector.tolist() for form in ("ss", "SS", "Ss", "ß")] == [[1, 2], [1, 2], [1, 2], [3, 4]]


@pytest.mark.slow
def test_adapted_to_the_words_of_a_task(
    data: Path, bilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--data", str(data), "--weights", str(bilm), "--output", str(tmp_path / "adapted"), "--tasks", "conll"]
    material.main(["adapt", *given, "--steps", "2", "--rows", "2"])
    adapted = spacy_elmo.load_bilm(tmp_path / "adapted" / "conll" / "model-best")
    assert adapted.config == random_bilm(seed=0).config
    model = tmp_path / "adapted" / "conll" / "model-best"
    assert "Oslo" in (model / "vocabulary.txt").read_text().split("\n")
    meta = srsly.read_json(model / "meta.json")
    assert (meta["adapted"], meta["adapted_from"]) == (True, bilm_fingerprint(bilm))
    assert "| conll | no output layer |" in capsys.readouterr().out

    # A grid takes what came from its own biLM, and nothing else.
    out = ["--data", str(data), "--output", str(tmp_path / "out")]
    run = downstream.Run("conll", 0.1, ARMS["adapted"], 0)
    path = str(tmp_path / "adapted" / "{task}" / "model-best")
    _, _, notes = downstream.Grid(options(*out, "--elmo", str(bilm), "--adapted", path)).prepare(run)
    assert notes["material"]["sha256"] == bilm_fingerprint(model)
    for given_bilm, given_adapted in ((str(model), path), (str(bilm), str(bilm))):
        with pytest.raises(SystemExit, match=r"adapted: .* was not adapted from the biLM of --elmo"):
            downstream.Grid(options(*out, "--elmo", given_bilm, "--adapted", given_adapted)).prepare(run)

    # Rates that spoil it leave it as it was.
    given = ["--data", str(data), "--weights", str(model), "--output", str(tmp_path / "spoilt"), "--tasks", "conll"]
    material.main(["adapt", *given, "--steps", "1", "--rows", "2", "--learn-rate", "0.5"])
    spoilt = tmp_path / "spoilt" / "conll" / "model-best"
    assert bilm_fingerprint(spoilt) == bilm_fingerprint(model)
    meta = srsly.read_json(spoilt / "meta.json")
    assert (meta["adapted"], meta["adapted_from"]) == (False, bilm_fingerprint(model))
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("| conll |"))
    _, before, after, taken = row.strip("| ").split(" | ")
    assert float(before) < float(after)
    assert taken == "not adapted"


def test_an_untrained_bilm_of_the_same_sizes(tmp_path: Path) -> None:
    trained = random_bilm(lstm_dim=32, seed=1)  # as if
    spacy_elmo.save_bilm(trained, tmp_path / "trained")
    material.main(["random", "--weights", str(tmp_path / "trained"), "--output", str(tmp_path / "random")])
    untrained = spacy_elmo.load_bilm(tmp_path / "random")
    assert untrained.config == trained.config
    for (name, value), other in zip(trained.state_dict().items(), untrained.state_dict().values(), strict=True):
        assert not name.endswith("kernel") or not np.allclose(value, other)
    line = {"name": "random", "base": "elmo", "material": str(tmp_path / "random")}
    (tmp_path / "plan.jsonl").write_text(json.dumps(line))
    (arm,) = read_plan(tmp_path / "plan.jsonl")
    assert made(arm, material=tmp_path / "random")["paths"]["elmo"] == str(tmp_path / "random")


def test_what_is_being_made_is_not_there_yet(tmp_path: Path) -> None:
    def make() -> None:
        with material.whole(tmp_path / "vectors") as new:
            (new / "vocab").mkdir(parents=True)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_made_is_told(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for given, said in (
        (["random", "--weights", "nothing", "--output", str(tmp_path / "file" / "x")], "File exists"),
        (["glove", "--package", str(tmp_path), "--output", str(tmp_path / "x")], "no package of GloVe"),
    ):
        with pytest.raises(SystemExit, match=said):
            material.main(given)
    # What `elmo pretrain` found wrong, it has told.
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: SimpleNamespace(returncode=3))
    monkeypatch.setattr(material, "bilm_fingerprint", lambda path: "of a biLM")
    given = ["--data", str(data), "--weights", str(tmp_path), "--output", str(tmp_path / "adapted")]
    with pytest.raises(SystemExit, match="conll: `elmo pretrain` ended with status 3"):
        material.main(["adapt", *given, "--tasks", "conll"])


@pytest.mark.parametrize("minutes", ["0", "-5", "nan", "inf"])
def test_no_time_is_no_pretraining(minutes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--raw", "text.txt", f"--minutes={minutes}", "--output", str(tmp_path / "tok2vec.bin")]
    with pytest.raises(SystemExit):
        material.main(["tok2vec", *given])
    assert "--minutes: must be above 0" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------- statistics


def result_of(task: str, share: float, arm: str, seed: int, score: float) -> dict[str, Any]:
    values = {metric: score / 100 for metric in TASKS[task].metrics}
    run = {"task": task, "share": share, "arm": arm, "seed": seed, "mixes": [], "epochs": 2.0}
    run["adapted"] = arm == "adapted"
    if arm == "elmo":
        place = "model.tok2vec.elmo"
        mix = {"component": "ner", "place": place, "weights": [0.2, 0.3 + seed / 10, 0.5 - seed / 10], "gamma": 1.5}
        run["mixes"] = [{**mix, "learned": True}]
    times = {"seconds": 60.0 * (1 + seed), "seconds_per_epoch": 4.0, "processor_seconds_per_epoch": 3.0}
    times |= {"processor_seconds": 30.0 * (1 + seed)}
    material = None if arm == "spacy" else {"path": arm, "sha256": f"of {arm}"}
    about = {"material": material, "steps": 1000, "settings": {}, "versions": {"spacy": "3.8.18"}}
    return {**run, "dev_scores": values, "test_scores": values, **times, **about}


def test_differences_are_paired() -> None:
    found = difference({0: 70.0, 1: 74.0, 2: 72.0}, {0: 68.0, 1: 70.0, 2: 69.0, 3: 10.0})
    # 2, 4, 3: sd 1, over three seeds; of 31 points of error 3 are gone
    assert (found.mean, found.n) == (3.0, 3)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert found.reduction == pytest.approx(3 / 31)
    assert found.verdict == "yes"
    assert difference({0: 1.0, 1: 3.0}, {0: 2.0, 1: 2.0}).verdict == "no"  # 0 ± 1
    assert difference({0: 1.0, 1: 1.5}, {0: 2.0, 1: 2.0}).verdict == "worse"
    assert difference({0: 1.0}, {0: 0.0}).verdict == "-"
    assert difference({0: 1.0}, {1: 0.0}).n == 0


def test_the_report_of_made_up_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_up = {"spacy": (68.0, 70.0), "elmo": (72.0, 73.0), "normed": (72.5, 74.5)}
    results = [
        result_of("conll", share, arm, seed, score - (20 if share == 0.01 else 0))
        for share in (0.1, 0.01)
        for arm, several in reversed(made_up.items())
        for seed, score in enumerate(several)
    ]
    results += [result_of("ewt", 0.1, arm, 0, score) for arm, score in (("elmo", 80.0), ("adapted", 81.0))]
    assert list(cells_of(results))[:4] == [
        Cell("conll", 0.01, "spacy"),
        Cell("conll", 0.01, "elmo"),
        Cell("conll", 0.01, "normed"),
        Cell("conll", 0.1, "spacy"),
    ]
    timed = {"material": "of elmo", "rates": [900.0, 1000.0, 1200.0]}
    found = summary(results, {"conll": {"elmo": timed, "normed": {**timed, "material": "of another"}}})
    assert found["warnings"] == []
    json.dumps(found, allow_nan=False)
    (row,) = (row for row in found["cells"] if (row["task"], row["share"], row["arm"]) == ("conll", 0.1, "elmo"))
    assert (row["test_mean"], row["test_sd"]) == pytest.approx((72.5, math.sqrt(0.5)))
    assert row["against"]["spacy"] == {
        "mean": pytest.approx(3.5),
        "error": pytest.approx(0.5),
        "n": 2,
        "reduction": pytest.approx(3.5 / 31),
        "better": "yes",
    }
    assert row["seconds"] == 90.0

    print_report(found)
    lines = capsys.readouterr().out.splitlines()
    assert "| 10% | elmo | 2 | 72.5 ± 0.7 | 72.5 ± 0.7 | +3.5 ± 0.5 | 11% | yes | 3 | 1.5 |" in lines
    assert "| 10% | spacy | 2 | 69.0 ± 1.4 | 69.0 ± 1.4 |  |  |  | 3 | 1.5 |" in lines
    assert "| conll, F | 10% | normed | 2 | -1.0 ± 0.5 | -4% | worse |" in lines
    assert "| 10% | elmo | 1 | 80.0 | 80.0 |  |  |  | 3 | 1.0 |" in lines
    assert "| 10% | adapted † | 1 | 81.0 | 81.0 |  |  |  | 3 | 1.0 |" in lines
    assert [line.split(" has read ")[0] for line in lines if line.startswith("†")] == ["† The biLM"]
    assert "| conll | 10% | elmo | ner, input | 0.20 0.35 0.45 | 1.50 |" in lines
    assert "| conll | elmo | 1,000 | (900 - 1,200) |" in lines
    assert not any(line.startswith("| conll | normed | 1,000") for line in lines)  # of other weights
    assert summary(results, {"conll": {"normed": {**timed, "material": "of another"}}})["speed"] == {}

    pytest.importorskip("matplotlib")
    draw(found, tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert "spacy" in drawn
    assert "normed" not in drawn


def printed(results: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a report."""
    print_report(summary(results, {}))
    return capsys.readouterr().out.splitlines()


def test_layers_and_places_are_compared_by_the_same_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    arms = {"elmo": (70.0, 71.0, 72.0, 90.0), "top": (69.0, 69.0, 69.0), "both": (71.0, 73.0, 72.5)}
    results = [result_of("conll", 0.1, arm, seed, one) for arm, many in arms.items() for seed, one in enumerate(many)]
    lines = printed(results, capsys)
    # Of the fourth seed, which the others have not, nothing.
    assert "| conll, F | 10% | top | the top one | input | 3 | 69.0 ± 0.0 | -2.0 ± 0.6 | worse |" in lines
    assert "| conll, F | 10% | elmo | learned | input | 3 | 71.0 ± 1.0 |  |  |" in lines
    assert "| conll, F | 10% | both | learned | both | 3 | 72.2 ± 1.0 | +1.2 ± 0.4 | yes |" in lines
    assert not any(line.startswith("| conll, F | 10% | both | 3") for line in lines)
    # One seed has no error; ELMo alone no table.
    lines = printed([one for one in results if one["seed"] == 0], capsys)
    assert "| conll, F | 10% | top | the top one | input | 1 | 69.0 | -1.0 | - |" in lines
    assert not any("plain mean" in line or "Layers and places" in line for line in printed(results[:4], capsys))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"material": {"path": "x", "sha256": "y"}}, 'conll, elmo: material "of elmo" in 2 of the runs, but "y" in'),
        ({"versions": {"spacy": "3.9"}}, 'conll, elmo: spacy "3.8.18" in 2 of the runs, but "3.9" in'),
        ({"settings": {"a": 1}}, 'conll, elmo: settings {} in 2 of the runs, but {"a": 1} in'),
        ({"steps": 7}, "conll, 10%: steps 1000 in 3 of the runs, but 7 in"),
    ],
)
def test_runs_that_are_not_alike_are_named(
    changed: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [result_of("conll", 0.1, "elmo", seed, 70.0) for seed in range(3)]
    results.append(result_of("conll", 0.1, "spacy", 0, 60.0))
    assert not any("Not alike" in line for line in printed(results, capsys))
    results[1] |= changed
    assert f"**Not alike:** {said} conll-0.1-elmo-1" in printed(results, capsys)


def test_what_ended_at_its_best_and_what_was_not_adapted(capsys: pytest.CaptureFixture[str]) -> None:
    results = [result_of("conll", 0.1, arm, seed, 70.0) for arm in ("elmo", "adapted") for seed in range(3)]
    for run, best in zip(results, (9, 9, 6, 9, 6, 6), strict=True):
        run |= {"best_step": best, "evaluations": [{"step": step, "score": 0.5} for step in (0, 3, 6, 9)]}
    results.append(result_of("wnut", 0.1, "elmo", 0, 70.0))  # of a time when this was not noted
    lines = printed(results, capsys)
    (line,) = (line for line in lines if line.startswith("The last evaluation"))
    assert line.endswith(": conll 10% elmo (2 of 3)")
    assert not any(line.startswith("Not adapted") for line in lines)
    for run in results[3:6]:
        run["material"] = results[0]["material"]
    (line,) = (line for line in printed(results, capsys) if line.startswith("Not adapted"))
    assert line.startswith("Not adapted: conll. ")


def test_hours_are_those_of_what_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--output", str(tmp_path), "--elmo", "bilm", "--arms", "spacy", "elmo", "--seeds", "2", "--dry-run"]
    given += ["--tasks", "conll", "sst5", "--shares", "0.1"]
    downstream.main(given)
    assert capsys.readouterr().out.splitlines()[-1] == "8 runs, 8 not done"
    (tmp_path / "results").mkdir()
    for arm, seconds in (("spacy", 1200.0), ("elmo", 3600.0)):  # of 1,000 steps; CoNLL's 10% have 3,000, SST-5's 1,000
        run = result_of("conll", 0.1, arm, 0, 70.0) | {"processor_seconds": seconds}
        srsly.write_json(tmp_path / "results" / f"conll-0.1-{arm}-0.json", run)
    downstream.main(given)
    lines = capsys.readouterr().out.splitlines()
    assert "conll-0.1-spacy-0: done" in lines
    assert lines[-3:] == [
        "sst5, 10%: 4 runs, 2.7 core hours",  # 2/3 each, by the median of the two
        "conll, 10%: 2 runs, 4.0 core hours",  # 1 and 3
        "8 runs, 6 not done, 6.7 core hours by those that are done",
    ]


# ------------------------------------------------------------------------------------------------------- our own runs


def test_what_the_documents_say_is_of_the_runs_that_are_kept(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_report(srsly.read_json(root / "benchmarks" / "downstream.json"))
    printed = capsys.readouterr().out
    gains, card, english = (
        (root / path).read_text(encoding="utf8")
        for path in ("docs/gains.md", "spacy_elmo/models/en/README.md", "docs/models/en.md")
    )
    rows = re.findall(r"^\| (?:1|10|100)% \|.*|^\| (?:conll|wnut|ewt|sst5)\b.*", gains, re.MULTILINE)
    assert len(rows) > 10
    assert [row for row in rows if row not in printed.splitlines()] == []
    measured = re.compile(r"\d+\.\d ± \d+\.\d")
    for text in (card, english.partition("### Downstream\n")[2]):
        assert len(found := measured.findall(text)) >= 4
        assert set(found) <= set(measured.findall(printed))
