"""Explicit paths (`./en`) became built-in weights, and what lay beside weights was lost on the way to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from spacy_elmo import BiLM, ElmoError, builtin_models, load_bilm, save_bilm
from spacy_elmo.bilm import ContinuousOutput
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.cli import elmo_cli
from spacy_elmo.embedding import embed_file, neighbors
from spacy_elmo.errors import WeightsError
from spacy_elmo.pipeline.training_config import training_config
from spacy_elmo.pretraining.config import InitializeSettings
from spacy_elmo.pretraining.initialize import initial_weights
from spacy_elmo.pretraining.measure import measure
from spacy_elmo.weights import save_native, save_softmax
from spacy_elmo.weights.native import StoredOutput
from tests.pipeline.toys import WITHOUT_BUILTIN, blank
from tests.weights.offering import install
from tests.weights.writers import files_of, write_zip

NAME = "tlh"  # no installed package has weights for it
MARKS = ["<S>", "</S>", "<UNK>"]
TEXT = "../text.txt"


@pytest.fixture
def folder(bilm: BiLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """German weights that an installed package offers. The working folder is empty, and a text lies beside it."""
    path = tmp_path / "weights"
    save_bilm(bilm, path)
    (path / "meta.json").write_text('{"lang": "de"}', encoding="utf8")
    install(tmp_path, monkeypatch, NAME, path)
    (tmp_path / "text.txt").write_text("so z.B. dies\n", encoding="utf8")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return path


def elmo(*arguments: Any) -> Result:
    return CliRunner().invoke(elmo_cli, [str(argument) for argument in arguments])


def said(result: Result) -> str:
    return " ".join(result.output.split())


# Names and paths


def initialized(weights: str) -> None:
    nlp = blank()
    nlp.add_pipe("elmo")
    nlp.config["initialize"]["components"]["elmo"] = {"weights": weights}
    nlp.initialize()


TAKES_WEIGHTS: dict[str, Callable[[str], object]] = {
    "load_weights": lambda weights: blank().add_pipe("elmo").load_weights(weights),
    "initialize of a pipeline": initialized,
    "training_config": lambda weights: training_config(pipeline=["ner"], weights=weights),
    "embed_file": lambda weights: embed_file(TEXT, "vectors.npz", weights),
    "neighbors": lambda weights: neighbors(TEXT, weights, "so"),
    "initialize of pretraining": lambda weights: initial_weights(InitializeSettings(weights=weights)),
    "measure": lambda weights: measure(weights, text=TEXT),
}
COMMANDS = [
    "info {}",
    "convert {} out",
    f"perplexity {{}} {TEXT}",
    f"embed {TEXT} vectors.npz --weights {{}}",
    f"neighbors {{}} {TEXT} --word so",
    "init-config train.cfg --pipeline ner --weights {}",
]


@pytest.mark.parametrize("path", [f"./{NAME}", f"{NAME}/"])
@pytest.mark.parametrize("function", list(TAKES_WEIGHTS))
def test_an_explicit_path_is_no_name(function: str, path: str, folder: Path) -> None:
    with pytest.raises(WeightsError, match=rf"(^|: ){path}: no such file or folder$"):
        TAKES_WEIGHTS[function](path)
    assert os.listdir() == []


@pytest.mark.parametrize("path", [f"./{NAME}", f"{NAME}/"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_explicit_path_is_no_name_in_a_command(command: str, path: str, folder: Path) -> None:
    result = elmo(*command.format(path).split())
    assert result.exit_code == 1, result.output
    assert f" {path}: no such file or folder" in said(result)
    assert "built-in" not in said(result)
    assert os.listdir() == []


@pytest.mark.parametrize("function", [name for name in TAKES_WEIGHTS if name != "measure"])
def test_a_name_is_one(function: str, folder: Path) -> None:
    TAKES_WEIGHTS[function](NAME)


def test_a_name_of_weights_without_a_softmax(folder: Path) -> None:
    with pytest.raises(WeightsError, match=rf"^built-in weights '{NAME}' of .*come without a softmax"):
        measure(NAME, text=TEXT)


def test_an_empty_folder_whose_name_two_packages_offer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, NAME, folder, package="other-elmo")
    Path(NAME).mkdir()
    with pytest.raises(WeightsError, match=rf"holds no biLM.*: nothing\).*'{NAME}@acme-elmo' or '{NAME}@other-elmo'$"):
        load_bilm(NAME)


@pytest.mark.parametrize(("packages", "asked"), [(0, True), (1, False), (2, True)])
def test_a_command_asks_for_weights_where_none_are_built_in(
    packages: int, asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(packages):
        install(tmp_path, monkeypatch, WITHOUT_BUILTIN, "/no/such/folder", package=f"acme-{number}")
    result = elmo("init-config", tmp_path / "train.cfg", "--lang", WITHOUT_BUILTIN, "--pipeline", "ner")
    assert result.exit_code == 0, result.output
    assert ("--paths.elmo WEIGHTS" in result.output) is asked
    assert (tmp_path / "train.cfg").is_file()


# What lies beside weights


@pytest.mark.parametrize("what", ["name", "file", "archive", "name of a file", "name of an archive"])
def test_the_language_is_that_beside_the_weights(
    what: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = write_zip(tmp_path / "model.zip", files_of(folder)) if "archive" in what else folder / "model.safetensors"
    given: Path | str = NAME if what == "name" else weights
    if what.startswith("name of"):
        given = "qaa"
        install(tmp_path, monkeypatch, given, weights, package="other-elmo")
    # English knows no such abbreviation.
    assert embed_file(TEXT, "vectors.npz", given).words == 3
    (asked,) = neighbors(TEXT, given, "z.B.")
    assert str(asked.occurrence) == "so [z.B.] dies"


@pytest.mark.parametrize("function", ["embed_file", "neighbors"])
def test_damaged_weights_name_the_package(function: str, folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(WeightsError, match=rf"^built-in weights '{NAME}' of the package acme-elmo: .*not a whole"):
        TAKES_WEIGHTS[function](NAME)


def test_weights_in_a_folder_are_not_written_over(bilm: BiLM, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    save_bilm(bilm, tmp_path / "model", "bilm-hdf5")
    (tmp_path / "text.txt").write_text("so\n", encoding="utf8")
    output = tmp_path / "model" / "weights.hdf5"
    before = output.read_bytes()
    with pytest.raises(ElmoError, match=r"weights\.hdf5 is the weights"):
        embed_file(tmp_path / "text.txt", output, tmp_path / "model", resume=False, overwrite=True)
    assert output.read_bytes() == before


@pytest.mark.parametrize("what", ["a line too many", "a line twice", "an output layer without words"])
def test_converted_in_place_a_folder_keeps_its_vocabulary(what: str, bilm: BiLM, tmp_path: Path) -> None:
    model, file = tmp_path / "model", tmp_path / "model" / "vocabulary.txt"
    width = bilm.config.projection_dim
    save_native(bilm, model, StoredOutput(FullSoftmax(4, width).initialize(0), [*MARKS, "a"]))
    if what == "a line too many":
        file.write_text("".join(f"{word}\n" for word in [*MARKS, "a", "more"]), encoding="utf8")
    elif what == "a line twice":
        file.write_text("".join(f"{word}\n" for word in [*MARKS, "<UNK>"]), encoding="utf8")
    else:
        save_softmax(ContinuousOutput(30, width).initialize(0), model)
    before = file.read_bytes()
    result = elmo("convert", model, model, "--dtype", "float16")
    assert result.exit_code == 0, result.output
    assert file.read_bytes() == before
    found = load_bilm(model).state_dict()
    assert all(torch.equal(found[name], value.half().float()) for name, value in bilm.state_dict().items())
    # It does not go along, and stays nowhere else.
    save_native(bilm, tmp_path / "other", StoredOutput(FullSoftmax(4, width).initialize(1), [*MARKS, "b"]))
    assert elmo("convert", model, tmp_path / "other").exit_code == 0
    assert not (tmp_path / "other" / "vocabulary.txt").exists()


# Packages that are no whole ones


@pytest.mark.parametrize(
    "metadata", [None, "", "Metadata-Version: 2.1\nVersion: 1.0\n"], ids=["none", "empty", "without a name"]
)
def test_a_package_that_was_half_removed_offers_nothing(
    metadata: str | None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = tmp_path.glob("site-*/acme_elmo-1.0.dist-info/METADATA")
    file.unlink()
    if metadata is not None:
        file.write_text(metadata, encoding="utf8")
    assert NAME not in {model.name for model in builtin_models()}
    assert elmo("info").exit_code == 0
    with pytest.raises(WeightsError, match=f"^{NAME}: no such file or folder, nor built-in weights of that name"):
        load_bilm(NAME)
    install(tmp_path, monkeypatch, NAME, folder, package="other-elmo")
    assert [model.package for model in builtin_models() if model.name == NAME] == ["other-elmo"]
    assert load_bilm(NAME).config.width == load_bilm(folder).config.width
