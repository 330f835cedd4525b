"""Keys changed on an upgrade, and pipelines that users had trained loaded no more: those of all versions must."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy

from tests.pipeline.toys import examples
from tests.regression.make_saved_pipeline import FOLDER, predictions

FILES = sorted(FOLDER.glob("pipeline-*.zip"))


def test_there_is_one_of_the_first_version() -> None:
    assert "pipeline-0.1.zip" in [path.name for path in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_it_loads_and_predicts_what_it_did(file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path)
    nlp: Any = spacy.load(tmp_path / "pipeline")
    assert nlp.pipe_names == ["elmo", "ner", "tagger", "own"]
    expected = json.loads((tmp_path / "predictions.json").read_text(encoding="utf8"))
    found = predictions(nlp)
    assert len(expected["layers"]) == 3
    np.testing.assert_allclose(found.pop("layers"), expected.pop("layers"), rtol=2e-3, atol=2e-3)  # float16
    assert found == expected
    assert [label for _, label in expected["entities"]] == ["PER", "LOC", "PER", "LOC"]
    # and it trains on
    losses = nlp.update(examples(nlp), sgd=nlp.resume_training(), losses={})
    assert np.isfinite(list(losses.values())).all()


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_what_its_files_say_of_settings_does_not_go_over_the_config(file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        archive.extractall(tmp_path)
    settings = {"grad_factor": 0.25, "elmo_dropout": 0.75}
    config = {"components": {"tagger": {"model": {"tok2vec": settings}}}}
    nlp: Any = spacy.load(tmp_path / "pipeline", config=config)
    (_, listener) = nlp.get_pipe("elmo").listeners
    docs = [nlp.make_doc("word " * 200)]
    ((dropped,), _) = listener.begin_update(docs)
    assert 0.65 < (dropped == 0.0).mean() < 0.85
    again: Any = spacy.load(tmp_path / "pipeline")
    ((whole,), _) = again.get_pipe("elmo").listeners[1].begin_update(docs)
    np.testing.assert_array_equal(whole, again.get_pipe("elmo").listeners[1].predict(docs)[0])
