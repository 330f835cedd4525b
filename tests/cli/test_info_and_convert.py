from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
import torch
from typer.testing import Result

from spacy_elmo import BiLM, BiLMConfig, builtin_models, load_bilm, save_bilm
from spacy_elmo.bilm import AdaptiveSoftmax, ContinuousOutput
from spacy_elmo.weights import load_softmax, save_softmax, summary
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
    assert "numpy" not in result.output  # nobody wants to see the versions of all packages


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


# What else goes along, and other sources


def test_the_softmax_and_its_vocabulary_go_along(call: Call, model: Path, text: Path, tmp_path: Path) -> None:
    result = call("convert", model, tmp_path / "native")
    assert result.exit_code == 0, result.output
    rows = len((model / "vocabulary.txt").read_text(encoding="utf8").splitlines())
    assert f"with its softmax over {rows} words" in result.output
    measured = [call("perplexity", folder, text).output for folder in (model, tmp_path / "native")]
    assert "joint perplexity" in measured[0]
    assert measured[0] == measured[1]


def test_the_softmax_can_be_left_out(call: Call, model: Path, tmp_path: Path) -> None:
    result = call("convert", model, tmp_path / "alone", "--dtype", "float16", "--no-softmax")
    assert result.exit_code == 0, result.output
    assert "with its softmax" not in result.output
    names = {path.name for path in (tmp_path / "alone").iterdir()}
    assert names == {"README.md", "config.json", "meta.json", "model.safetensors", "pretrain.cfg"}
    found = load_bilm(tmp_path / "alone").state_dict()
    assert all(torch.equal(found[name], value.half().float()) for name, value in load_bilm(model).state_dict().items())
    target = Path(shutil.copytree(model, tmp_path / "target"))
    result = call("convert", model, target, "--no-softmax")
    assert result.exit_code == 1
    assert "holds the output layer of another model" in " ".join(result.output.split())


CARD = ("README.md", "meta.json", "pretrain.cfg")


def test_what_pretraining_wrote_about_a_model_goes_along(call: Call, model: Path, tmp_path: Path) -> None:
    zipped = write_zip(tmp_path / "model.zip", files_of(model))
    for source, target in ((model, tmp_path / "native"), (zipped, tmp_path / "unzipped")):
        result = call("convert", source, target)
        assert result.exit_code == 0, result.output
        assert "with its meta.json, pretrain.cfg, README.md" in result.output
        assert {path.name: path.read_bytes() for path in target.iterdir()} == {
            path.name: path.read_bytes() for path in model.iterdir()
        }
    assert call("info", tmp_path / "native").output.splitlines()[1:] == call("info", model).output.splitlines()[1:]


def test_the_licence_of_the_built_in_weights_goes_along(call: Call, tmp_path: Path) -> None:
    result = call("convert", "en", tmp_path / "passed-on", "--dtype", "float16")
    assert result.exit_code == 0, result.output
    assert "with its meta.json, pretrain.cfg, README.md, LICENSE" in result.output
    (model,) = [model for model in builtin_models() if model.full_name == "en@spacy-elmo"]
    there = {path.name: path.read_bytes() for path in model.path().iterdir() if path.suffix not in (".py", "")}
    assert {name: (tmp_path / "passed-on" / name).read_bytes() for name in there} == there
    assert (tmp_path / "passed-on" / "LICENSE").read_bytes() == (model.path() / "LICENSE").read_bytes()


def test_the_card_of_another_model_does_not_stay(call: Call, model: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(model, tmp_path / "target"))
    (target / "notes.txt").write_text("mine")
    for source in ("plain", "carded"):
        shutil.copytree(model, tmp_path / source)
    for name in CARD:
        (tmp_path / "plain" / name).unlink()
    assert call("convert", tmp_path / "plain", target).exit_code == 0
    assert not [name for name in CARD if (target / name).exists()]
    meta = tmp_path / "carded" / "meta.json"
    meta.write_text(json.dumps({"spacy_elmo": "0.1.0", "lang": "de"}))
    (tmp_path / "carded" / "README.md").unlink()
    for _ in range(2):
        assert call("convert", tmp_path / "carded", target).exit_code == 0
        assert (target / "meta.json").read_bytes() == meta.read_bytes()
        assert not (target / "README.md").exists()
    assert (target / "notes.txt").read_text() == "mine"


def test_files_of_others_that_are_called_like_a_card(call: Call, model: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "README.md").write_text("my project")
    result = call("convert", model, mine)
    assert result.exit_code == 1
    assert "README.md: is there already, and not part of a biLM" in " ".join(result.output.split())
    assert [path.name for path in mine.iterdir()] == ["README.md"]
    save_bilm(load_bilm(model), tmp_path / "plain")
    (tmp_path / "plain" / "meta.json").write_text('{"lang": "de"}')  # of a pipeline, say: does not go along
    assert call("convert", tmp_path / "plain", mine).exit_code == 0
    assert (mine / "README.md").read_text() == "my project"
    assert not (mine / "meta.json").exists()


def test_a_checkpoint_becomes_a_folder_that_perplexity_measures(call: Call, root: Path, tmp_path: Path) -> None:
    # Written by TensorFlow, with the vocabulary beside it.
    source = shutil.copytree(root / "tests" / "weights" / "fixtures" / "tf_checkpoint", tmp_path / "checkpoint")
    (source / "vocab.txt").rename(tmp_path / "vocab.txt")
    without = call("convert", source, tmp_path / "native")
    assert without.exit_code == 0, without.output
    assert "bilm-tf checkpoint" in without.output
    assert "has no vocabulary, but a softmax over 10 words" in " ".join(without.output.split())
    (tmp_path / "vocab.txt").rename(source / "vocab.txt")
    result = call("convert", source, tmp_path / "native")
    assert result.exit_code == 0, result.output
    assert "with its softmax over 10 words" in result.output
    (tmp_path / "text.txt").write_text("the café , and the unseen .\n", encoding="utf8")
    result = call("perplexity", tmp_path / "native", tmp_path / "text.txt")
    assert result.exit_code == 0, result.output
    assert re.search(r"unknown words +1\n", result.output)
    assert re.search(r"joint perplexity +\d", result.output)


def test_a_softmax_never_stays_beside_other_weights(call: Call, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    target = Path(shutil.copytree(model, tmp_path / "target"))
    assert call("convert", model, tmp_path / "hdf5", "--to", "bilm-hdf5").exit_code == 0
    result = call("convert", tmp_path / "hdf5", target)
    assert result.exit_code == 1
    assert "holds the output layer of another model (softmax.safetensors)" in " ".join(result.output.split())


def test_token_embeddings(call: Call, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    words = tmp_path / "words.txt.gz"
    words.write_bytes(gzip.compress(b"Ann\nsees\nus\n.\n</S>\n"))
    convert = ("convert", model, tmp_path / "hdf5", "--token-embeddings", words)
    result = call(*convert)
    assert result.exit_code == 1
    assert "add --to bilm-hdf5" in " ".join(result.output.split())
    for _ in range(2):  # over its own
        result = call(*convert, "--to", "bilm-hdf5")
        assert result.exit_code == 0, result.output
        assert "with token embeddings of 7 words" in result.output
        assert "put first: <S>, <UNK>" in " ".join(result.output.split())
    found = load_bilm(tmp_path / "hdf5" / "elmo_token_embeddings.hdf5")
    assert found.vocabulary == ["<S>", "<UNK>", "Ann", "sees", "us", ".", "</S>"]
    sentence = [["Ann", "sees", "us", "."]]
    torch.testing.assert_close(found.encode(sentence)[0], load_bilm(model).encode(sentence)[0], rtol=0, atol=1e-6)


def test_the_bilm_of_a_pipeline(call: Call, model: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", name="first").load_weights(model)  # type: ignore[attr-defined]
    nlp.to_disk(tmp_path / "pipeline")
    result = call("convert", tmp_path / "pipeline", tmp_path / "native")
    assert result.exit_code == 0, result.output
    assert f"pipeline: {tmp_path / 'pipeline'}" in result.output
    found = load_bilm(tmp_path / "native").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in load_bilm(model).state_dict().items())
    nlp.add_pipe("elmo", name="second").load_weights(model)  # type: ignore[attr-defined]
    nlp.to_disk(tmp_path / "pipeline")
    result = call("convert", tmp_path / "pipeline", tmp_path / "native")
    assert result.exit_code == 1
    assert "several components have a biLM (first, second)" in " ".join(result.output.split())
    assert call("convert", tmp_path / "pipeline", tmp_path / "native", "--component", "second").exit_code == 0
    result = call("convert", model, tmp_path / "other", "--component", "second")
    assert result.exit_code == 1
    assert "--component is for pipelines" in result.output


def test_what_is_lost_is_said(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    config = BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 3),), state="warm")
    save_bilm(BiLM(config).initialize(0), tmp_path / "warm")
    result = call("convert", tmp_path / "warm", tmp_path / "hdf5", "--to", "bilm-hdf5")
    assert result.exit_code == 0, result.output
    assert "no place for the start state of these weights" in " ".join(result.output.split())
    result = call("convert", tmp_path / "warm", tmp_path / "native")
    assert "start state" not in result.output


def test_output_layers_of_other_kinds(call: Call, model: Path, tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for file in model.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    rows = len(load_softmax(model).stored()["b"])
    width = load_bilm(model).config.projection_dim

    def lines(*arguments: Any) -> str:
        result = call(*arguments)
        assert result.exit_code == 0, result.output
        return " ".join(result.output.split())

    adaptive = AdaptiveSoftmax(rows, width, cutoffs=[3], div_value=2.0).initialize(0)
    save_softmax(adaptive, source)
    n_parameters = width * (3 + 1) + width * (width // 2) + (width // 2) * (rows - 3)
    assert f"softmax over {rows} words, {n_parameters} parameters more vocabulary" in lines("info", source)
    assert f"with its softmax over {rows} words" in lines("convert", source, tmp_path / "adaptive")
    assert type(load_softmax(tmp_path / "adaptive")) is AdaptiveSoftmax
    save_softmax(ContinuousOutput(30, width).initialize(0), source)
    n_parameters = 30 * (width + 1)
    expected = f"softmax none: {n_parameters} parameters that predict vectors, so no perplexity can be measured"
    assert expected in lines("info", source)
    assert "with its output layer" in lines("convert", source, tmp_path / "continuous")
    assert type(load_softmax(tmp_path / "continuous")) is ContinuousOutput


def test_info_of_a_pipeline(call: Call, model: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", name="mine").load_weights(load_bilm(model))  # type: ignore[attr-defined]
    nlp.to_disk(tmp_path / "pipeline")
    done = call("info", tmp_path / "pipeline")
    assert done.exit_code == 0
    assert "pipeline of spaCy" in done.output
    assert re.search(r"vectors +3 layers of width 16", done.output)
    assert call("info", tmp_path / "pipeline", "--component", "other").exit_code == 1
    done = call("info", model, "--component", "mine")
    assert "is for pipelines" in done.output


def test_what_was_meant_is_said(call: Call, model: Path, tmp_path: Path) -> None:
    done = call("info", model.parent)
    assert f"did you mean {model}?" in " ".join(done.output.split()).replace("/ ", "/")
    spacy.blank("en").to_disk(tmp_path / "pipeline")
    done = call("perplexity", tmp_path / "pipeline")
    assert "whose biLM `python -m spacy elmo convert` takes out" in " ".join(done.output.split())
