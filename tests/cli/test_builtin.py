from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from spacy_elmo import load_bilm, save_bilm
from spacy_elmo.layers.bilm_model import random_bilm
from tests.weights.offering import install

Call = Callable[..., Result]
NAME = "tlh"  # no installed package has weights for it


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights that an installed package offers."""
    path = tmp_path / "weights"
    save_bilm(random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4]], char_dim=2), path)
    install(tmp_path, monkeypatch, NAME, path)
    return path


def test_info_by_name(call: Call, folder: Path) -> None:
    by_name, by_path = call("info", NAME), call("info", folder)
    assert by_name.exit_code == 0, by_name.output
    assert by_name.output == by_path.output


def test_info_without_a_model_lists_what_is_built_in(
    call: Call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "qaa", "", package="broken-elmo", code="import no_such_module")
    result = call("info")
    assert result.exit_code == 0, result.output
    rows = [line.split(maxsplit=2) for line in result.output.splitlines()]
    assert [NAME, "acme-elmo", str(folder)] in rows
    (broken,) = [row for row in rows if row[0] == "qaa"]
    assert broken[1] == "broken-elmo"
    assert "no_such_module" in broken[2]
    as_json = json.loads(call("info", "--json").output)
    assert [[row["name"], row["package"], row["path"] or row["error"]] for row in as_json] == rows
    found = {row["name"]: (row["path"], row["error"]) for row in as_json}
    assert found[NAME] == (str(folder), None)
    assert found["qaa"][0] is None
    assert "no_such_module" in found["qaa"][1]
    result = call("info", "--component", "elmo")
    assert result.exit_code == 1
    assert "are of a MODEL" in result.output


def test_convert_by_name_and_to_float16(call: Call, folder: Path, tmp_path: Path) -> None:
    result = call("convert", NAME, tmp_path / "half", "--dtype", "float16")
    assert result.exit_code == 0, result.output
    found, before = load_bilm(tmp_path / "half").state_dict(), load_bilm(folder).state_dict()
    assert all(torch.equal(found[name], before[name].half().float()) for name in before)
    result = call("convert", NAME, tmp_path / "hdf5", "--to", "bilm-hdf5", "--dtype", "float16")
    assert result.exit_code == 1
    assert "--dtype float16 is for our own format" in result.output
    assert not (tmp_path / "hdf5").exists()


def test_perplexity_says_that_a_softmax_is_missing(call: Call, folder: Path) -> None:
    result = call("perplexity", NAME)
    assert result.exit_code == 1
    message = " ".join(result.output.split())
    assert f"built-in weights '{NAME}' of the package acme-elmo: {NAME}: these weights" in message
    assert "come without a softmax" in message


def test_embed_by_name(call: Call, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two\nthree\n", encoding="utf8")
    result = call("embed", tmp_path / "text.txt", tmp_path / "vectors.npz", "--weights", NAME)
    assert result.exit_code == 0, result.output
    assert "2 sentences, 3 words" in result.output
