"""Paths that are none, names that break lines, an output that is the input: each ends in one clear line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spacy_elmo import BiLM, BiLMConfig, load_bilm, save_bilm, weights
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.cli import elmo_cli
from spacy_elmo.errors import WeightsError

V01 = Path(__file__).resolve().parents[1] / "weights" / "fixtures" / "v0.1" / "characters"


def bilm() -> BiLM:
    return BiLM(BiLMConfig(lstm_dim=4, projection_dim=3, filters=((1, 4),), char_dim=2)).initialize(0)


def elmo(*arguments: Any) -> Result:
    return CliRunner().invoke(elmo_cli, [str(argument) for argument in arguments])


def said(result: Result) -> str:
    return " ".join(result.output.split())


TAKES_PATHS: dict[str, Callable[[Any], object]] = {
    "load_bilm": load_bilm,
    "load_bilm, weights": lambda path: load_bilm(V01 / "config.json", path),
    "load_bilm_hdf5": lambda path: weights.load_bilm_hdf5(path, V01),
    "load_many_langs": weights.load_many_langs,
    "load_native": weights.load_native,
    "load_softmax": weights.load_softmax,
    "load_tf_checkpoint": lambda path: weights.load_tf_checkpoint(V01 / "config.json", path),
    "load_tf_softmax": weights.load_tf_softmax,
    "load_vocabulary": weights.load_vocabulary,
    "summary": weights.summary,
    "save_bilm": lambda path: save_bilm(bilm(), path),
    "save_bilm, hdf5": lambda path: save_bilm(bilm(), path, "bilm-hdf5"),
    "save_softmax": lambda path: weights.save_softmax(FullSoftmax(4, 3), path),
    "save_vocabulary": lambda path: weights.save_vocabulary(["<S>", "</S>", "<UNK>"], path),
    "save_token_embeddings": lambda path: weights.save_token_embeddings(bilm(), ["a"], path),
}


@pytest.mark.parametrize("path", [None, "", b"bytes", 3, ["a"]])
@pytest.mark.parametrize("function", list(TAKES_PATHS))
def test_what_is_no_path(function: str, path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if function == "load_bilm, weights" and path is None:
        pytest.skip("means: not given")
    if "hdf5" in function or function == "save_token_embeddings":
        pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WeightsError, match="a path is a string that is not empty, or a pathlib"):
        TAKES_PATHS[function](path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments",
    [("convert", V01, ""), ("convert", "", "out"), ("info", ""), ("perplexity", "", "text"), ("perplexity", V01, "")],
)
def test_empty_arguments_are_not_the_working_folder(
    arguments: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(V01, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir())
    result = elmo(*arguments)
    assert result.exit_code == 1, result.output
    assert "a path is a string that is not empty" in said(result) or "No path of raw text is given" in said(result)
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("arguments", [("convert", "x" * 300, "out"), ("convert", V01, "x" * 300), ("info", "x" * 300)])
def test_names_that_are_too_long(arguments: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = elmo(*arguments)
    assert result.exit_code == 1
    assert "[Errno" not in result.output
    assert os.strerror(36) in said(result) or "too long" in said(result)


def test_messages_are_one_line_and_not_endless(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    save_bilm(bilm(), tmp_path, "bilm-hdf5")
    with h5py.File(tmp_path / "weights.hdf5", "r+") as file:
        file["a\nb\r\x1b[31m" + "c" * 4000] = [1.0]
    with pytest.raises(WeightsError, match=r"options do not ask for: a\\nb\\r\\x1b\[31mccc") as error:
        load_bilm(tmp_path)
    assert len(str(error.value)) < 1600
    options = json.loads((tmp_path / "options.json").read_text())
    options["char_cnn"]["n_characters"] = ["line\nbreak"] * 2000
    (tmp_path / "options.json").write_text(json.dumps(options))
    with pytest.raises(WeightsError, match="n_characters is ") as error:
        load_bilm(tmp_path)
    assert len(str(error.value)) < 600 + len(str(tmp_path))
    odd = tmp_path / "na me\nü 😀"
    with pytest.raises(WeightsError, match="na me\\\\nü 😀: no such file or folder"):
        load_bilm(odd)
    with pytest.raises(WeightsError) as error:
        load_bilm("x/" * 3000)
    assert len(str(error.value)) <= 1405


@pytest.mark.parametrize("word", ["a\rb", "\ud800"])
def test_words_that_fit_no_line_are_refused_before_the_model_is_written(word: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    vocabulary = tmp_path / "words.json"
    vocabulary.write_text(json.dumps(["fine", word]))
    target = tmp_path / "target"
    result = elmo("convert", V01, target, "--to", "bilm-hdf5", "--token-embeddings", vocabulary)
    assert result.exit_code == 1
    assert "does not fit a line" in said(result) or "lone surrogate" in said(result)
    assert not target.exists()


def test_a_foreign_vocabulary_is_refused_before_the_model_is_written(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    (tmp_path / "vocabulary.txt").write_text("mine\n")
    arguments = ("--to", "bilm-hdf5", "--token-embeddings", tmp_path / "vocabulary.txt")
    result = elmo("convert", V01, tmp_path, *arguments)
    assert result.exit_code == 1
    assert os.listdir(tmp_path) == ["vocabulary.txt"]
    assert (tmp_path / "vocabulary.txt").read_text() == "mine\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text("the cat .\nthe .\n", encoding="utf8")
    return tmp_path / "text.txt"


def test_figures_go_over_no_other_file(text: Path, tmp_path: Path) -> None:
    model = shutil.copytree(V01, tmp_path / "model")
    (tmp_path / "other.json").write_text('{"mine": 1}')
    for output in (text, tmp_path / "other.json", model / "model.safetensors", model / "config.json"):
        before = output.read_bytes()
        result = elmo("perplexity", model, text, "--pretokenized", "--output", output)
        assert result.exit_code == 1
        assert "is there already, and holds no figures: give another name" in said(result)
        assert output.read_bytes() == before
    output = tmp_path / "new" / "figures.json"
    for _ in range(2):
        result = elmo("perplexity", model, text, "--pretokenized", "--output", output)
        assert result.exit_code == 0, result.output
        assert json.loads(output.read_text())["targets"] > 0
        output.write_text('{"joint_perplexity": 1}')
    result = elmo("perplexity", model, text, "--pretokenized", "--output", tmp_path / ("x" * 300))
    assert result.exit_code == 1
    assert "[Errno" not in result.output
    assert "joint" not in result.output  # before the work


@pytest.mark.skipif(os.name == "nt", reason="needs /dev/null")
def test_a_text_that_is_a_device() -> None:
    result = elmo("perplexity", V01, os.devnull, "--pretokenized")
    assert result.exit_code == 1
    assert "is a device or a pipe" in said(result)
