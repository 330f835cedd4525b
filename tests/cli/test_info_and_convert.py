from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import Result

from spacy_elmo.weights import load_bilm, summary
from tests.weights.many_langs_folder import write_model as write_many_langs_model
from tests.weights.writers import Model, files_of, write_checkpoint_model, write_hdf5_model, write_zip

Call = Callable[..., Result]


def test_info(call: Call, model: Path) -> None:
    result = call("info", model)
    assert result.exit_code == 0, result.output
    n = sum(parameter.numel() for parameter in load_bilm(model).parameters())
    printed = [" ".join(line.split()) for line in result.output.splitlines()]
    assert printed[:3] == [f"path {model / 'model.safetensors'}", "family spacy-elmo", f"parameters {n:,}"]
    assert "vectors 3 layers of width 16" in printed
    assert printed[-1].startswith("meta.json spacy elmo 0.1.0, lang en, step 4, words ")
    assert ", joint perplexity " in printed[-1]
    assert len(printed) < 20
    assert max(map(len, printed)) < 300  # nobody wants to see the versions of all packages


def test_info_as_json(call: Call, model: Path) -> None:
    result = call("info", model, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found == summary(model).as_dict()
    assert found["meta"] == json.loads((model / "meta.json").read_text(encoding="utf8"))


def test_info_of_every_format(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    options, weights = tmp_path / "a" / "x.json", tmp_path / "b" / "w.hdf5"
    write_hdf5_model(tmp_path / "hdf5", Model("no_clip"))
    write_checkpoint_model(tmp_path / "checkpoint", Model("tanh"))
    write_many_langs_model(tmp_path / "144")
    for path in (options, weights):
        path.parent.mkdir()
    (tmp_path / "hdf5" / "options.json").rename(options)
    (tmp_path / "hdf5" / "weights.hdf5").rename(weights)

    def printed(*arguments: Any) -> str:
        result = call("info", *arguments)
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    found = printed(options, "--weights", weights)
    assert "family bilm-tf HDF5" in found
    assert "LSTMs 2 layers a direction, 9 cells, outputs of 6 with skip connections" in found
    assert "; clips: cells none, outputs none" in found
    assert "softmax none, so no perplexity can be measured" in found
    found = printed(write_zip(tmp_path / "checkpoint.zip", files_of(tmp_path / "checkpoint")))
    assert "family bilm-tf checkpoint" in found
    assert "at most 50 a word; tanh, 2 highways filters 12: 3 of width 1, 4 of width 2, 5 of width 3" in found
    assert "softmax over 10 words, 70 parameters more; it cannot be used: problem" in found
    assert "checkpoint.zip: has no vocabulary" in found
    found = printed(write_zip(tmp_path / "144.zip", files_of(tmp_path / "144")))
    assert "family ELMoForManyLangs" in found
    assert "code points" in found
    assert "word table 13 words: '<oov>', '<bos>', " in found


def test_convert_to_bilm_hdf5_and_back(call: Call, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    assert call("convert", model, tmp_path / "hdf5", "--to", "bilm-hdf5").exit_code == 0
    assert (tmp_path / "hdf5" / "options.json").is_file()
    assert not list((tmp_path / "hdf5").glob("*.safetensors"))
    assert call("convert", tmp_path / "hdf5", tmp_path / "native").exit_code == 0
    expected, found = load_bilm(model), load_bilm(tmp_path / "native")
    assert found.config == expected.config
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name


@pytest.mark.parametrize("command", [["info"], ["convert", "--to", "bilm-hdf5"]])
def test_no_weights_is_a_message(call: Call, tmp_path: Path, command: list[str]) -> None:
    rest = [tmp_path / "target"] if command[0] == "convert" else []
    result = call(command[0], tmp_path / "nothing", *rest, *command[1:])
    assert result.exit_code == 1
    assert "nothing" in result.output


def test_spacys_command_line_stays_light() -> None:
    """spaCy imports our commands with each of its own: that must not bring the training code along."""
    code = "import spacy.cli, sys; before = set(sys.modules); import spacy_elmo.cli; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    added = {name.strip("{}' \n") for name in done.stdout.split(",")}
    assert "spacy_elmo.cli" in added
    heavy = ("spacy_elmo.pretraining", "spacy_elmo.layers", "spacy_elmo.pipeline", "h5py")
    assert not {name for name in added if name.startswith(heavy)}
