"""`spacy package` of a pipeline with `elmo`: the package must hold the weights, predict alike and require us."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from packaging.requirements import Requirement
from packaging.version import Version
from spacy.cli import app
from typer.testing import CliRunner

from spacy_elmo import __version__
from tests.pipeline.toys import SENTENCES

TEXTS = [text for text, _, _ in SENTENCES]
PREDICTED = [[("Ann", "PER"), ("Rome", "LOC")], [("Paris", "LOC")], [("Paris", "LOC"), ("Bob", "PER")]]


def entities(nlp: Any) -> list[list[tuple[str, str]]]:
    return [[(ent.text, ent.label_) for ent in doc.ents] for doc in nlp.pipe(TEXTS)]


@pytest.fixture(scope="module")
def package(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("packages")
    arguments = ["package", trained, output, "--build", "none", "--name", "elmo_toy", "--version", "1.2.3"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return output / "en_elmo_toy-1.2.3"


def test_weights_and_predictions_are_those_of_the_pipeline(nlp: Any, package: Path) -> None:
    packaged: Any = spacy.load(package / "en_elmo_toy" / "en_elmo_toy-1.2.3")
    expected = nlp.get_pipe("elmo").loaded_bilm.state_dict()
    found = packaged.get_pipe("elmo").loaded_bilm.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name
    for text in TEXTS:
        np.testing.assert_array_equal(packaged(text)._.elmo.layers, nlp(text)._.elmo.layers)
    assert entities(packaged) == entities(nlp) == PREDICTED


def test_it_is_a_module_that_loads(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # as its setup.py does when it is built
    shutil.copy(package / "meta.json", package / "en_elmo_toy")
    monkeypatch.syspath_prepend(package)
    module = importlib.import_module("en_elmo_toy")
    assert module.__version__ == "1.2.3"
    assert entities(module.load()) == PREDICTED


def test_it_requires_this_package(package: Path) -> None:
    meta = json.loads((package / "meta.json").read_text(encoding="utf8"))
    (ours,) = [requirement for requirement in meta["requirements"] if requirement.startswith("spacy-elmo")]
    assert Version(__version__) in Requirement(ours).specifier
