"""Wrong options, folders, files and terminals: a message and an exit status, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import Result

from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.weights import load_softmax, save_softmax

Call = Callable[..., Result]
Arguments = Callable[..., list[str]]


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    """A model's folder to spoil."""
    return Path(shutil.copytree(model, tmp_path / "model"))


def refused(result: Result) -> str:
    """What a command printed that ended with a message."""
    assert result.exit_code == 1, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


# ------------------------------------------------------------------------------------------------------------ options


@pytest.mark.parametrize("option", [["--rows", "3"], ["--rows=3"], ["--rows=0.5"], ["--dry_run"], ["--training"]])
@pytest.mark.parametrize("command", ["pretrain", "corpus"])
def test_an_option_without_a_section(
    call: Call, arguments: Arguments, tmp_path: Path, command: str, option: list[str]
) -> None:
    output = [tmp_path / "out"] if command == "pretrain" else []
    printed = refused(call(*arguments(command, *output), *option))
    assert f"no such option: {option[0]}" in printed
    assert "--section.key" in printed


def test_a_config_that_cannot_be_read(call: Call, tmp_path: Path) -> None:
    (tmp_path / "c.cfg").write_text("[paths]\n[paths]\n", encoding="utf8")
    assert "section 'paths' already exists" in refused(call("pretrain", tmp_path / "c.cfg", tmp_path / "out"))
    assert "no config file" in refused(call("corpus", tmp_path))


# ------------------------------------------------------------------------------------------------------------ folders


def test_an_output_that_is_a_file(call: Call, arguments: Arguments, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine", encoding="utf8")
    assert "cannot write to the folder" in refused(call(*arguments("pretrain", tmp_path / "out")))
    assert "cannot write to the folder" in refused(call(*arguments("pretrain", tmp_path / "out" / "below")))
    assert (tmp_path / "out").read_text(encoding="utf8") == "mine"


def test_figures_are_not_written_to_a_folder_and_that_is_said_first(call: Call, tmp_path: Path) -> None:
    printed = refused(call("perplexity", tmp_path / "no_model", "--output", tmp_path))
    assert "is a folder" in printed
    (tmp_path / "file").write_text("mine", encoding="utf8")
    printed = refused(call("perplexity", tmp_path / "no_model", "--output", tmp_path / "file" / "p.json"))
    assert "no_model" not in printed  # the work was not begun
    assert "file" in printed


# -------------------------------------------------------------------------------------------------------------- models


def test_a_vocabulary_of_another_model(call: Call, copy: Path) -> None:
    with (copy / "vocabulary.txt").open("a", encoding="utf8") as file:
        file.write("more\n")
    rows = len(load_softmax(copy).stored()["b"])
    printed = refused(call("perplexity", copy))
    assert f"its softmax predicts {rows} words, but its vocabulary has {rows + 1}" in printed


def test_a_softmax_of_another_width(call: Call, copy: Path) -> None:
    softmax = load_softmax(copy)
    wider = FullSoftmax(len(softmax.stored()["b"]), 12)
    with torch.no_grad():
        wider.W.zero_()
    save_softmax(wider, copy)
    printed = refused(call("perplexity", copy))
    assert f"{copy}: its softmax reads vectors of 12 numbers, but its biLM gives 8" in printed


def test_a_meta_json_that_is_not_utf8(call: Call, copy: Path) -> None:
    (copy / "meta.json").write_bytes('{"author": "Größe"}'.encode("latin1"))
    result = call("info", copy)
    assert result.exit_code == 0, result.output
    assert "meta.json: is not text in UTF-8" in " ".join(result.output.split())


@pytest.mark.parametrize("how", ["no config", "no section", "no key"])
def test_the_language_is_the_models_where_its_config_does_not_say(
    call: Call, copy: Path, tmp_path: Path, how: str
) -> None:
    path = copy / "pretrain.cfg"
    text = path.read_text(encoding="utf8")
    assert '[nlp]\nlang = "en"\n' in text
    if how == "no config":
        path.unlink()
    else:
        path.write_text(text.replace('[nlp]\nlang = "en"\n', "[nlp]\n" if how == "no key" else ""), encoding="utf8")
    meta = json.loads((copy / "meta.json").read_text(encoding="utf8"))
    (tmp_path / "t.txt").write_text("Ann sees us.\n", encoding="utf8")

    def measured(lang: Any) -> Result:
        (copy / "meta.json").write_text(json.dumps({**meta, "lang": lang}), encoding="utf8")
        return call("perplexity", copy, tmp_path / "t.txt")

    assert measured("de").exit_code == 0
    assert "language 'zzz'" in refused(measured("zzz"))
    assert measured(None).exit_code == 0  # the default of a config
    (copy / "meta.json").unlink()
    assert call("perplexity", copy, tmp_path / "t.txt").exit_code == 0


def test_a_config_that_is_not_there_is_not_passed_over(call: Call, copy: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("Ann sees us.\n", encoding="utf8")
    printed = refused(call("perplexity", copy, tmp_path / "t.txt", "--config", tmp_path / "none.cfg"))
    assert "none.cfg" in printed


def test_a_language_that_does_not_work(call: Call, model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("Ann sees us.\n", encoding="utf8")
    assert "language 'zzz'" in refused(call("perplexity", model, tmp_path / "t.txt", "--lang", "zzz"))


# ----------------------------------------------------------------------------------------------------------- terminals


@pytest.mark.slow
def test_a_terminal_that_cannot_show_the_text(model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("Ann sees 東京 and Größe.\n", encoding="utf8")
    environment = {**os.environ, "PYTHONIOENCODING": "latin1"}

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "spacy", "elmo", "perplexity", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, encoding="latin1", env=environment)

    done = run(model, tmp_path / "t.txt", "--per-sentence")
    assert done.returncode == 0, done.stderr
    assert "Ann sees ?? and Größe ." in done.stdout
    done = run(model, tmp_path / "Größe-東京.txt")
    assert done.returncode == 1
    assert "Gr??e-??.txt" in done.stdout
    assert "Traceback" not in done.stderr
