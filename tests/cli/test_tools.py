"""`elmo init-config`, `elmo mix` and `elmo neighbors`: options arrive, output is what is said, errors are one line."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
import torch
from spacy.training import Example
from spacy.util import load_config_from_str, load_model_from_config
from typer.testing import Result

from spacy_elmo import BiLM, BiLMConfig, load_bilm
from spacy_elmo.cli.neighbors import neighbors as neighbors_command
from spacy_elmo.embedding import neighbors
from spacy_elmo.pipeline.mixes import mixes_of
from spacy_elmo.pipeline.saved_bilm import saved_bilm
from spacy_elmo.pipeline.training_config import training_config
from tests.pipeline.toys import WITHOUT_BUILTIN

Call = Callable[..., Result]


def refused(result: Result) -> str:
    assert result.exit_code == 1, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def pipeline(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved pipeline whose biLM reads words in small letters."""
    nlp: Any = spacy.blank("en")
    nlp.add_pipe("elmo", config={"text": "lower"}).load_weights(model)
    tok2vec = {"@architectures": "spacy-elmo.ElmoListener.v1"}
    nlp.add_pipe("tagger", config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec}})
    example = Example.from_dict(nlp.make_doc("Ann swims"), {"tags": ["NNP", "VBZ"]})
    optimizer = nlp.initialize(lambda: [example])
    for _ in range(3):
        nlp.update([example], sgd=optimizer)
    folder = tmp_path_factory.mktemp("pipeline")
    nlp.to_disk(folder)
    return folder


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("Ann sees us .\nBob hears us .\nEve sees US !\n", encoding="utf8")
    return path


def test_config_to_a_file_or_stdout(call: Call, model: Path, tmp_path: Path) -> None:
    options = ["--lang", "de", "--pipeline", "ner, parser", "--optimize", "accuracy", "--weights", model]
    output = tmp_path / "train.cfg"
    result = call("init-config", *options, output)
    assert result.exit_code == 0, result.output
    assert f"train {output} --output training/{output.stem} --paths.train" in result.output
    assert "--paths.elmo" not in result.output
    right = training_config(lang="de", pipeline=["ner", "parser"], optimize="accuracy", weights=model)
    config = load_config_from_str(output.read_text(encoding="utf8"))
    assert load_model_from_config(config).config == right
    assert config["paths"]["elmo"] == str(model)
    printed = call("init-config", *options, "-").output
    assert load_config_from_str(printed) == config  # nothing but the config
    assert "exists: give another name" in refused(call("init-config", output))
    result = call("init-config", output, "--force", "--lang", WITHOUT_BUILTIN)
    assert "--paths.elmo WEIGHTS" in result.output
    assert load_config_from_str(output.read_text(encoding="utf8"))["nlp"]["pipeline"][2:] == ["tagger", "parser", "ner"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pipeline", "nothing"], "no component 'nothing'"),
        (["--pipeline", ","], "pipeline is empty"),
        (["--optimize", "all"], "not 'all'"),
        (["--lang", "qq"], "language 'qq'"),
        (["--weights", "nothing"], "nothing: no such file or folder"),
    ],
)
def test_config_that_cannot_be_made(call: Call, tmp_path: Path, options: list[str], message: str) -> None:
    assert message in refused(call("init-config", *options, tmp_path / "train.cfg"))
    assert list(tmp_path.iterdir()) == []


def test_mix_as_a_table_and_as_json(call: Call, pipeline: Path) -> None:
    (right,) = mixes_of(spacy.load(pipeline))
    header, row = call("mix", pipeline).output.splitlines()
    assert header.split() == ["listener", "layer", "0", "layer", "1", "layer", "2", "γ"]
    assert row.split() == ["tagger", *(f"{weight:.3f}" for weight in right.weights), f"{right.gamma:.3f}", "learned"]
    (printed,) = json.loads(call("mix", pipeline, "--json").output)
    assert printed == {
        "component": "tagger",
        "number": 1,
        "place": "model.tok2vec",
        "weights": list(right.weights),
        "gamma": right.gamma,
        "learned": True,
    }


def test_mix_as_a_picture(call: Call, pipeline: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = call("mix", pipeline, "--plot", tmp_path / "mix.svg")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "mix.svg").read_bytes().startswith(b"<?xml")
    assert ".svg or .png" in refused(call("mix", pipeline, "--plot", tmp_path / "mix.jpg"))


def test_mix_of_what_has_none(call: Call, model: Path) -> None:
    assert "is not the config of a pipeline" in refused(call("mix", model))
    for name in ("nothing", ""):
        assert f"{name}: there is no such folder of a pipeline, nor an installed package" in refused(call("mix", name))


def test_neighbors_of_weights(call: Call, model: Path, lines: Path) -> None:
    result = call("neighbors", model, lines, "--word", "us", "--n", 1, "--ignore-case")
    assert result.exit_code == 0, result.output
    asked = neighbors(lines, model, "us", n=1, ignore_case=True)
    assert len(asked) == 3
    right = []
    for one in asked:
        (near,) = one.nearest
        right += [
            f"{one.number}. {lines}, line {one.number}: {one.occurrence}",
            f"  {near.similarity:.5f}  {lines}, line {near.occurrence.line}: {near.occurrence}",
        ]
    assert result.output.splitlines() == right
    assert right[0].endswith("line 1: Ann sees [us] .")


def test_neighbors_has_the_numbers_of_the_function() -> None:
    command, function = inspect.signature(neighbors_command).parameters, inspect.signature(neighbors).parameters
    for name in ("n", "first", "limit", "context"):
        assert command[name].default.default == function[name].default, name


def test_neighbors_as_json_with_all_options(call: Call, model: Path, lines: Path) -> None:
    options = "--layer 1 --n 2 --any --occurrence 2 --limit 2 --context 1 --precision bfloat16 --state zero"
    more = "--pretokenized --text lower --lang de --json"
    result = call("neighbors", model, lines, lines, "--word", "us", *options.split(), *more.split())
    assert result.exit_code == 0, result.output
    (printed,) = json.loads(result.output)
    (right,) = neighbors(
        [lines, lines],
        load_bilm(model),
        "us",
        layer=1,
        n=2,
        any_word=True,
        occurrences=[2],
        limit=2,
        context=1,
        precision="bfloat16",
        state="zero",
        pretokenized=True,
        text="lower",
    )
    assert printed["number"] == 2
    assert printed["occurrence"]["before"] == "… hears"
    assert [near["similarity"] for near in printed["nearest"]] == [near.similarity for near in right.nearest]
    first = json.loads(call("neighbors", model, lines, "--word", "us", "--first", 1, "--json").output)
    assert [one["number"] for one in first] == [1]


def test_neighbors_of_a_pipeline_reads_words_as_it_does(call: Call, pipeline: Path, model: Path, lines: Path) -> None:
    sentence = ["--word", "us", "--sentence", "EVE SEES us !", "--layer", "0", "--ignore-case", "--json"]
    (printed,) = json.loads(call("neighbors", pipeline, lines, *sentence).output)
    assert printed["number"] is None
    assert printed["occurrence"]["file"] is None
    similarities = {near["occurrence"]["word"]: near["similarity"] for near in printed["nearest"]}
    assert similarities["US"] == pytest.approx(1, abs=1e-6)  # in small letters they are one
    (printed,) = json.loads(call("neighbors", pipeline, lines, *sentence, "--text", "orth").output)
    similarities = {near["occurrence"]["word"]: near["similarity"] for near in printed["nearest"]}
    assert similarities["US"] < 1 - 1e-5
    text = call("neighbors", pipeline, lines, "--word", "us", "--sentence", "us", "--component", "elmo").output
    assert text.startswith("the sentence: [us]\n  ")
    assert "--component is for pipelines" in refused(
        call("neighbors", model, lines, "--word", "us", "--component", "a")
    )


def test_neighbors_of_a_pipeline_starts_where_it_does(call: Call, lines: Path, tmp_path: Path) -> None:
    config = {"lstm_dim": 8, "projection_dim": 4, "filters": ((1, 4),), "char_dim": 2, "state": "warm"}
    bilm = BiLM(BiLMConfig(**config)).initialize(0)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, start in bilm.named_buffers():
            if name.startswith("start_"):
                start.fill_(0.5)
    nlp: Any = spacy.blank("en")
    nlp.add_pipe("elmo", config={"state": "zero"}).load_weights(bilm)
    nlp.to_disk(tmp_path / "pipeline")
    assert saved_bilm(tmp_path / "pipeline").state == "zero"

    def printed(*options: str) -> str:
        result = call("neighbors", tmp_path / "pipeline", lines, "--word", "us", "--json", *options)
        assert result.exit_code == 0, result.output
        return result.output

    assert printed() == printed("--state", "zero")
    assert printed() != printed("--state", "warm")


def test_neighbors_that_cannot_be_found(call: Call, model: Path, lines: Path) -> None:
    assert "'them' does not occur" in refused(call("neighbors", model, lines, "--word", "them"))
    assert "not 'high'" in refused(call("neighbors", model, lines, "--word", "us", "--layer", "high"))
    assert "cannot be read" in refused(call("neighbors", model, lines.parent / "none.txt", "--word", "us"))
    result = call("neighbors", model, lines, "--word", "Ann")
    assert result.output.splitlines()[1] == "  no other occurrence"
