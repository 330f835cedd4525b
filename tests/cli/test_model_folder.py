"""The folder of a pretrained model is what every other command and the component take."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import spacy
import torch
from typer.testing import Result

from spacy_elmo import load_bilm
from spacy_elmo.weights import load_softmax, load_vocabulary

Call = Callable[..., Result]
FILES = {
    "README.md",
    "config.json",
    "meta.json",
    "model.safetensors",
    "pretrain.cfg",
    "softmax.safetensors",
    "vocabulary.txt",
}


def test_it_holds_all_that_is_told_of_it(model: Path) -> None:
    assert {path.name for path in model.iterdir()} == FILES
    n_words = len(load_vocabulary(model / "vocabulary.txt"))
    assert load_softmax(model).n_words == n_words
    assert json.loads((model / "meta.json").read_text(encoding="utf8"))["vocabulary"] == n_words


def test_the_component_takes_it(model: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo").load_weights(model)  # type: ignore[attr-defined]
    (expected,) = load_bilm(model).encode([["Ann", "sees", "us", "."]])
    found = torch.from_numpy(nlp("Ann sees us.")._.elmo.layers)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("to", ["native", "bilm-hdf5"])
def test_convert_takes_it(call: Call, model: Path, tmp_path: Path, to: str) -> None:
    if to == "bilm-hdf5":
        pytest.importorskip("h5py")
    result = call("convert", model, tmp_path / "there", "--to", to)
    assert result.exit_code == 0, result.output
    found, expected = (load_bilm(path).state_dict() for path in (tmp_path / "there", model))
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_perplexity_and_info_take_it(call: Call, model: Path) -> None:
    meta = json.loads((model / "meta.json").read_text(encoding="utf8"))
    result = call("perplexity", model)
    assert result.exit_code == 0, result.output
    lines = {line[:20].strip(): line[20:].strip() for line in result.output.splitlines()}
    assert float(lines["joint perplexity"].replace(",", "")) == pytest.approx(
        meta["metrics"]["joint_perplexity"], rel=1e-4
    )
    assert float(lines["bits per character"]) == pytest.approx(meta["metrics"]["bits_per_character"], abs=1e-3)
    result = call("info", model)
    assert result.exit_code == 0, result.output
    assert "bits per character" in result.output


def test_pretrain_goes_on_from_it_in_one_command(
    call: Call, model: Path, arguments: Callable[..., list[str]], tmp_path: Path
) -> None:
    result = call(*arguments("pretrain", tmp_path / "out", initialize__weights=model))
    assert result.exit_code == 0, result.output
    table = result.output[result.output.index("Dev perplexity") :]
    assert "before, with its own vocabulary" in table
    assert "after, step 4" in table
    card = (tmp_path / "out" / "model-last" / "README.md").read_text(encoding="utf8")
    assert f"`{model}` (spacy-elmo, SHA-256" in card
    assert f"--initialize.weights {model}" in card  # the command line


def test_weights_that_are_not_there(call: Call, arguments: Callable[..., list[str]], tmp_path: Path) -> None:
    result = call(*arguments("pretrain", tmp_path / "out", initialize__weights=tmp_path / "none"))
    assert result.exit_code == 1
    assert "none: no such file or folder" in " ".join(result.output.split())


def test_by_position(call: Call, model: Path, tmp_path: Path) -> None:
    result = call("perplexity", model, "--by-position", "--output", tmp_path / "p.json")
    assert result.exit_code == 0, result.output
    header, *rows = [line.split("\t") for line in result.output.splitlines() if "\t" in line]
    assert header == ["position", "joint", "forward", "backward", "targets"]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "1-5", "all"]  # sentences of four words
    figures = json.loads((tmp_path / "p.json").read_text(encoding="utf8"))
    assert figures["joint_perplexity_at_all"] == pytest.approx(figures["joint_perplexity"], rel=1e-6)
    assert float(rows[0][1]) == pytest.approx(figures["joint_perplexity_at_1"], abs=0.01)


def test_curve(call: Call, model: Path, tmp_path: Path) -> None:
    result = call("curve", tmp_path)
    assert result.exit_code == 1
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        assert '"spacy-elmo[plot]"' in result.output
        return
    assert "holds no run" in result.output
    result = call("curve", model.parent)
    assert result.exit_code == 0, result.output
    assert result.output.split() == [str(model.parent / f"training_curve.{kind}") for kind in ("svg", "png")]
