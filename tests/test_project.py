"""project.yml: its workflows run, from nothing to their results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import srsly
from weasel.cli.run import project_run
from weasel.util import load_project_config

import spacy_elmo
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.pipeline.saved_bilm import bilm_of_pipeline
from spacy_elmo.weights import bilm_to_bytes

ROOT = Path(__file__).resolve().parents[1]
NER = "Ann B-PER\nvisits O\nOslo B-LOC\n. O\n\nBob B-PER\nleaves O\nRome B-LOC\n. O\n\n"
CONLLU = """1\tAnn\tAnn\tPROPN\tNNP\t_\t2\tnsubj\t_\t_
2\tvisits\tvisit\tVERB\tVBZ\t_\t0\troot\t_\t_
3\tOslo\tOslo\tPROPN\tNNP\t_\t2\tobj\t_\tSpaceAfter=No
4\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that holds what a checkout holds of the project."""
    for name in ("configs", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name, target_is_directory=True)
    (tmp_path / "project.yml").symlink_to(ROOT / "project.yml")
    return tmp_path


def few_steps(project: Path, **changes: Any) -> dict[str, Any]:
    """Overrides for a short run on a text of our own, the model as small as the config allows."""
    text = project / "my_text.txt"
    if not text.exists():
        # Which documents are held out goes by the hash of their text: a text that never changes.
        lines = [f"Bank number {i} lent the people at the river money, and nobody swam there." for i in range(300)]
        text.write_text("\n\n".join(lines), encoding="utf8")
    return {"vars.raw": "my_text.txt", "vars.max_steps": 2, **{f"vars.{key}": value for key, value in changes.items()}}


def test_pretrain_runs_from_nothing_and_goes_on(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    project_run(project, "pretrain", overrides=few_steps(project))
    printed = capfd.readouterr().out
    assert re.search(r"joint perplexity +\d", printed)
    assert json.loads((project / "training" / "bilm" / "perplexity.json").read_text())["joint_perplexity"] > 1
    assert spacy_elmo.load_bilm(project / "training" / "bilm" / "model-best").config.width > 0
    assert len(list(srsly.read_jsonl(project / "training" / "bilm" / "losses.jsonl"))) == 2

    # Nothing changed: nothing is trained again.
    project_run(project, "fit", overrides=few_steps(project))
    assert "Nothing to do: 2 of 2 steps are done" in capfd.readouterr().out

    # More steps: it goes on where it was.
    project_run(project, "fit", overrides=few_steps(project, max_steps=3))
    assert "Resuming at step 2" in capfd.readouterr().out
    assert len(list(srsly.read_jsonl(project / "training" / "bilm" / "losses.jsonl"))) == 3


@pytest.mark.slow
def test_pretrain_runs_in_full(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")  # all cores, as for a user
    project_run(project, "pretrain")
    vocabulary = (
        (project / "training" / "bilm" / "model-best" / "vocabulary.txt").read_text(encoding="utf8").split("\n")
    )
    figures = json.loads((project / "training" / "bilm" / "perplexity.json").read_text())
    # far from a guess among all words
    assert 1 < figures["joint_perplexity"] < len(vocabulary) / 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "suffix", "text", "score"),
    [
        ("ner", "ner", NER, "ents_f"),
        ("tagger_parser", "conllu", CONLLU, "dep_las"),
    ],
    ids=["ner", "tagger_parser"],
)
def test_downstream_compares_both(
    project: Path, capfd: pytest.CaptureFixture[str], task: str, suffix: str, text: str, score: str
) -> None:
    (project / "assets" / task).mkdir(parents=True)
    for name in ("train", "dev", "test"):
        # more than the parser's min_action_freq of each label
        (project / "assets" / task / f"{name}.{suffix}").write_text(text * 40, encoding="utf8")
    bilm = random_bilm(seed=0)
    spacy_elmo.save_bilm(bilm, project / "weights")
    overrides = {"vars.task": task, "vars.weights": "weights", "vars.train_steps": 2}
    project_run(project, "downstream", overrides=overrides)
    assert re.search(rf"^{score} .*\d", capfd.readouterr().out, re.MULTILINE)
    for name in (task, f"{task}_elmo"):
        assert json.loads((project / "metrics" / f"{name}.json").read_text())[score] is not None
    # The weights that were named, and none that are built in.
    assert bilm_to_bytes(bilm_of_pipeline(project / "training" / f"{task}_elmo" / "model-best")) == bilm_to_bytes(bilm)

    if task == "tagger_parser":  # the same step for either
        return
    project_run(project, "package", overrides=overrides)
    (package,) = (project / "packages").glob("*/dist/*.tar.gz")
    assert f"{task}_elmo" in package.name


def test_project_file_says_what_is_meant(project: Path) -> None:
    config = load_project_config(project, interpolate=False)
    assets = config["assets"]
    assert all(asset["extra"] and asset["git"]["repo"].startswith("https://github.com/") for asset in assets)
    assert {Path(asset["dest"]).parent.name for asset in assets} == {"ner", "tagger_parser"}
    # spaCy makes them, but not the folder of an asset that it clones.
    load_project_config(project)
    assert all((project / asset["dest"]).parent.is_dir() for asset in assets)
    # confection makes one string of two items where one ends and the next begins with a variable
    interpolated = load_project_config(project)["commands"]
    for before, after in zip(config["commands"], interpolated, strict=True):
        for key in ("deps", "outputs", "script"):
            assert len(before.get(key) or []) == len(after.get(key) or []), (before["name"], key)
    assert not {command["name"] for command in config["commands"]} & set(config["workflows"])
