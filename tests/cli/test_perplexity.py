from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from spacy_elmo.bilm.continuous import ContinuousOutput
from spacy_elmo.weights import save_softmax

Call = Callable[..., Result]


def test_of_the_models_own_dev_corpus(call: Call, model: Path, tmp_path: Path) -> None:
    result = call("perplexity", model, "--output", tmp_path / "metrics" / "p.json")
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "metrics" / "p.json").read_text())
    expected = json.loads((model / "meta.json").read_text())["metrics"]
    assert figures["targets"] == expected["n_targets"]
    assert figures["joint_perplexity"] == pytest.approx(expected["joint_perplexity"], rel=1e-5)
    assert f"{figures['joint_perplexity']:,.4f}" in result.output


def test_of_a_text_by_sentence(call: Call, model: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("Ann sees us.\n\nus us sees zebras zebras.\n", encoding="utf8")
    result = call("perplexity", model, tmp_path / "t.txt", "--per-sentence")
    assert result.exit_code == 0, result.output
    header, first, second, *rest = result.output.splitlines()
    assert header.split("\t") == ["joint", "forward", "backward", "targets", "sentence"]
    joint, forward, backward, targets, words = first.split("\t")
    assert (targets, words) == ("5", "Ann sees us .")
    assert float(joint) == pytest.approx((float(forward) * float(backward)) ** 0.5, rel=1e-2)
    assert second.split("\t")[3:] == ["7", "us us sees zebras zebras ."]
    assert float(second.split("\t")[0]) != float(joint)
    assert rest[-1].split() == ["unknown", "words", "2"]


def test_in_bfloat16_it_is_nearly_the_same(call: Call, model: Path, tmp_path: Path) -> None:
    values = []
    for precision in ("float32", "bfloat16"):
        result = call("perplexity", model, "--precision", precision, "--output", tmp_path / "p.json")
        assert result.exit_code == 0, result.output
        values.append(json.loads((tmp_path / "p.json").read_text())["joint_perplexity"])
    assert values[0] != values[1]
    assert values[1] == pytest.approx(values[0], rel=0.02)
    result = call("perplexity", model, "--precision", "fp16")
    assert result.exit_code == 1
    assert "precision is one of 'float32', 'bfloat16', not 'fp16'" in result.output


def test_of_a_config(call: Call, model: Path, tmp_path: Path) -> None:
    result = call("perplexity", model, "--config", model / "pretrain.cfg")
    assert result.exit_code == 0, result.output
    assert result.output == call("perplexity", model).output


def test_a_model_without_its_softmax(call: Call, model: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    result = call("perplexity", tmp_path)
    assert result.exit_code == 1
    assert "softmax.safetensors" in result.output


def test_a_text_that_is_not_there(call: Call, model: Path) -> None:
    result = call("perplexity", model, "/nowhere/x.txt")
    assert result.exit_code == 1
    assert "/nowhere/x.txt" in result.output


def test_a_model_that_predicts_vectors_has_none(call: Call, model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_softmax(ContinuousOutput(300, 8).initialize(0), tmp_path)
    result = call("perplexity", tmp_path)
    assert result.exit_code == 1
    assert "this model has no perplexity" in " ".join(result.output.split())
