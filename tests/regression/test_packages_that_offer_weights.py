"""Packages that offer weights, and names that others have too, ended in tracebacks, or in other weights than meant."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spacy.language import Language
from typer.testing import CliRunner, Result

from spacy_elmo import BiLM, builtin_models, load_bilm, save_bilm
from spacy_elmo.cli import elmo_cli
from spacy_elmo.errors import WeightsError
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.weights import bilm_to_bytes, summary
from tests.pipeline.toys import WITHOUT_BUILTIN, blank
from tests.weights.offering import install

NAME = "tlh"  # no installed package has weights for it
READS: dict[str, Callable[[str], object]] = {"load_bilm": load_bilm, "summary": summary}


@pytest.fixture
def folder(bilm: BiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights. The working folder is an empty one beside them."""
    save_bilm(bilm, tmp_path / "weights")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "weights"


def elmo(*arguments: Any) -> Result:
    return CliRunner().invoke(elmo_cli, [str(argument) for argument in arguments])


# Packages that do not say where their weights are

RAISES = """
class NoLicence(Exception):
    def __repr__(self):
        raise RuntimeError("no words")

def weights():
    raise NoLicence
"""


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module", "gives no path: ModuleNotFoundError(\"No module named 'no_such_module'\")"),
        (RAISES, "gives no path: something of type NoLicence"),
        ("weights = ''", "gives '', which is no absolute path"),
        ("weights = 'models/en'", "gives 'models/en', which is no absolute path"),
        ("weights = '/no/such/folder'", "/no/such/folder is not there: install the package again"),
    ],
    ids=["a module is missing", "an error without repr", "nothing", "a relative path", "a path where nothing is"],
)
@pytest.mark.parametrize("read", list(READS))
def test_one_message_that_names_the_package_once(
    read: str, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offering = install(tmp_path, monkeypatch, NAME, "", code=code)
    if message.startswith("gives"):
        message = f"its entry point {offering.module}:weights {message}"
    message = f"built-in weights '{NAME}' of the package acme-elmo: {message}"
    with pytest.raises(WeightsError) as caught:
        READS[read](NAME)
    assert str(caught.value) == message
    listed = elmo("info")
    assert listed.exit_code == 0
    assert message in listed.output


def test_a_package_that_does_not_say_its_version(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, monkeypatch, WITHOUT_BUILTIN, folder)
    (metadata,) = tmp_path.glob("site-*/acme_elmo-1.0.dist-info/METADATA")
    metadata.write_text("Metadata-Version: 2.1\nName: acme-elmo\n", encoding="utf8")
    (model,) = [model for model in builtin_models() if model.name == WITHOUT_BUILTIN]
    assert model.version == "of unknown version"
    nlp = blank(WITHOUT_BUILTIN)
    nlp.add_pipe("elmo")
    with caplog.at_level(logging.INFO, "spacy"):
        nlp("Ann swims")
    assert f"the built-in weights '{WITHOUT_BUILTIN}' of acme-elmo of unknown version ({folder})" in caplog.text


# Names that are somebody else's too


@pytest.mark.parametrize("command", ["info {}", "convert {} out", "neighbors {} ../text.txt --word so"])
def test_weights_that_are_called_like_their_package(
    command: str, bilm: BiLM, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of any installed package was taken for that of a pipeline."""
    (tmp_path / "text.txt").write_text("so oder so\n", encoding="utf8")
    install(tmp_path, monkeypatch, "acme-elmo", folder)
    result = elmo(*command.format("acme-elmo").split())
    assert result.exit_code == 0, result.output
    if command.startswith("convert"):
        assert bilm_to_bytes(load_bilm("out")) == bilm_to_bytes(bilm)


@pytest.mark.parametrize(
    ("what", "message"),
    [("a file", "not weights of a biLM"), ("a pipeline", "looks like a pipeline"), ("a run", "did you mean")],
)
def test_what_lies_in_the_way_of_a_name(
    what: str, message: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, NAME, folder)
    if what == "a file":
        Path(NAME).write_text("a text", encoding="utf8")
    elif what == "a pipeline":
        blank().to_disk(NAME)
    else:
        (Path(NAME) / "model-best").mkdir(parents=True)
    with pytest.raises(WeightsError, match=f"{message}.*; the built-in weights of that name are '{NAME}@acme-elmo'$"):
        load_bilm(NAME)


# Pipelines


class WithoutLanguage(Language):
    """spaCy's own base class has none either."""


@pytest.mark.parametrize("kind", [Language, WithoutLanguage])
def test_a_pipeline_without_a_language(kind: type[Language]) -> None:
    nlp = kind()
    nlp.add_pipe("elmo")
    message = r"has no ELMo weights, and none are built in for a pipeline without a language \(.*load_weights"
    for use in (lambda: nlp("Ann swims"), nlp.initialize):
        with pytest.raises(WeightsError, match=message):
            use()


def test_weights_that_come_while_built_in_ones_are_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The built-in ones went over them when they were there."""
    code = f"""
import threading
asked, go_on = threading.Event(), threading.Event()

def weights():
    asked.set()
    assert go_on.wait(60)
    return {str(folder)!r}
"""
    offering = install(tmp_path, monkeypatch, WITHOUT_BUILTIN, folder, code=code)
    nlp = blank(WITHOUT_BUILTIN)
    pipe = nlp.add_pipe("elmo")
    own = random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4]], char_dim=2)
    doc = nlp.make_doc("Ann swims")
    first = threading.Thread(target=lambda: pipe.predict([doc]))
    second = threading.Thread(target=lambda: pipe.load_weights(own))
    first.start()
    module = __import__(offering.module)
    assert module.asked.wait(60)
    second.start()
    second.join(0.2)
    module.go_on.set()
    for thread in (first, second):
        thread.join()
    assert pipe.bilm is own
