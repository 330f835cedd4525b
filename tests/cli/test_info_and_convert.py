from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from spacy_elmo.weights import load_bilm

Call = Callable[..., Result]


def test_info(call: Call, model: Path) -> None:
    result = call("info", model)
    assert result.exit_code == 0, result.output
    n = sum(parameter.numel() for parameter in load_bilm(model).parameters())
    assert f"{n:,} parameters" in result.output
    assert "3 layers of vectors of width 16" in result.output
    assert '"lstm"' in result.output
    assert '"joint_perplexity"' in result.output


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
