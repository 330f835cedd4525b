"""`spacy train` with a config without weights, or with wrong ones, ended in a traceback through spaCy's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.cli import app
from spacy.tokens import DocBin, Span
from typer.testing import CliRunner

from spacy_elmo import BiLM, BiLMConfig, ElmoError, save_bilm
from spacy_elmo.errors import WeightsError
from spacy_elmo.pipeline.saved_bilm import bilm_of_pipeline
from spacy_elmo.weights import bilm_to_bytes
from tests.pipeline.toys import WITHOUT_BUILTIN, blank, getter, listener, ner_config, toy_bilm


@pytest.fixture
def train(tmp_path: Path) -> Path:
    nlp = spacy.blank("en")
    docs = DocBin()
    for _ in range(4):
        doc = nlp.make_doc("Ann sees us .")
        doc.ents = [Span(doc, 0, 1, "PER")]
        docs.add(doc)
    docs.to_disk(tmp_path / "train.spacy")
    return tmp_path / "train.spacy"


CASES: dict[str, tuple[list[str], str]] = {
    "none": (
        ["--nlp.lang", WITHOUT_BUILTIN],
        f"component 'elmo' has no ELMo weights, and none are built in for the language '{WITHOUT_BUILTIN}'",
    ),
    "no such folder": (["--paths.elmo", "nowhere"], "weights: nowhere: no such file or folder"),
    "a name that is too long": (["--paths.elmo", "x" * 300], "cannot be read: "),
    "frozen before it has any": (
        ["--nlp.lang", WITHOUT_BUILTIN, "--training.frozen_components", '["elmo"]'],
        "component 'elmo' has no ELMo weights",
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_it_is_one_message(case: str, root: Path, train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, says = CASES[case]
    monkeypatch.chdir(tmp_path)
    paths = ["--paths.train", str(train), "--paths.dev", str(train)]
    result = CliRunner().invoke(app, ["train", str(root / "configs" / "ner_elmo.cfg"), *paths, *options])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    said = " ".join(result.output.split())
    assert "The weights of ELMo" in said
    assert said.count(says) == 1


@pytest.mark.parametrize("standalone", [True, False], ids=["a biLM of its own", "its elmo is gone"])
def test_a_config_of_a_trained_pipeline_trained_from_nothing(standalone: bool, train: Path, tmp_path: Path) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(toy_bilm())
    nlp.add_pipe("ner", config=ner_config(listener()))
    nlp.initialize(getter(nlp))
    if standalone:
        nlp.replace_listeners("elmo", "ner", ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    config = nlp.config
    config["corpora"] = {
        name: {"@readers": "spacy.Corpus.v1", "path": "${paths." + name + "}"} for name in ("train", "dev")
    }
    config.to_disk(tmp_path / "again.cfg")
    paths = ["--paths.train", str(train), "--paths.dev", str(train)]
    result = CliRunner().invoke(app, ["train", str(tmp_path / "again.cfg"), *paths])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    said = " ".join(result.output.split())
    if standalone:
        assert "has no ELMo weights" in said
        assert "`source = <the saved pipeline>`" in said
        assert "spacy-elmo.ElmoListener.v1" in said
    else:
        assert "an ElmoListener is connected to nothing" in said


@pytest.mark.parametrize(
    ("weights", "says"), [("nowhere", "nowhere: no such file or folder"), (3, "weights are a path or a BiLM, not int")]
)
def test_in_python_it_is_an_error_of_weights(weights: Any, says: str) -> None:
    nlp = spacy.blank(WITHOUT_BUILTIN)
    elmo: Any = nlp.add_pipe("elmo")
    with pytest.raises(WeightsError, match=rf"^\[initialize\.components\.elmo\] weights: .*{says}") as error:
        elmo.initialize(lambda: [], nlp=nlp, weights=weights)
    assert "\n" not in str(error.value)
    with pytest.raises(ElmoError, match=r"^component 'elmo' has no ELMo weights") as missing:
        nlp("Ann sees us .")
    assert "\n" not in str(missing.value)


def test_training_goes_on_with_weights(root: Path, train: Path, tmp_path: Path) -> None:
    config = BiLMConfig(lstm_dim=4, projection_dim=3, filters=((1, 4),), char_dim=2)
    bilm = BiLM(config).initialize(0)
    save_bilm(bilm, tmp_path / "bilm")
    options = ["--paths.elmo", str(tmp_path / "bilm"), "--training.max_steps", "1", "--training.eval_frequency", "1"]
    paths = ["--paths.train", str(train), "--paths.dev", str(train), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["train", str(root / "configs" / "ner_elmo.cfg"), *paths, *options])
    assert result.exit_code == 0, result.output
    # These, and none that are built in.
    assert bilm_to_bytes(bilm_of_pipeline(tmp_path / "out" / "model-last")) == bilm_to_bytes(bilm)
