"""What a saved model says of itself."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import spacy
import torch
from thinc.api import Config

from spacy_elmo import __version__
from spacy_elmo.pretraining.card import hardware, model_card
from spacy_elmo.pretraining.loop import pretrain

from .conftest import MakeConfig


def cells(text: str) -> dict[str, list[str]]:
    """The rows of the tables, by their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows}


def test_the_card_has_all_that_the_run_was(toy_config: MakeConfig, toy_text: Path, tmp_path: Path) -> None:
    config = toy_config(training__max_steps=4, training__eval_frequency=2)
    command = "python -m spacy elmo pretrain configs/pretrain.cfg out --training.rows 4"
    result = pretrain(config, tmp_path / "out", command=command, stdout=io.StringIO(), stderr=io.StringIO())
    assert result.dev is not None
    folder = tmp_path / "out" / "model-last"
    card = (folder / "README.md").read_text(encoding="utf8")
    meta = json.loads((folder / "meta.json").read_text(encoding="utf8"))
    found = cells(card)
    train = meta["corpora"]["train"]
    assert found["train"][0] == f"{train['n_documents']}"
    assert found["train"][3] == f"{train['n_words']:,}"
    assert found["train"][5] == f"`{train['sha256'][:16]}`"
    assert str(toy_text) in card
    assert "dev: held out of train" in card
    figures = [result.dev.forward, result.dev.backward, result.dev.joint]
    assert found["this model"][:3] == [f"{figure:.2f}" for figure in figures]
    assert found["this model"][3] == f"{result.dev.scores()['bits_per_character']:.4f}"
    assert f"Of {result.dev.n_targets} targets in the dev text, after 4 steps (96 tokens)" in card
    assert found["command"] == [f"`{command}`"]
    assert found["versions"][0].startswith(f"spacy-elmo {__version__}, Python ")
    assert f"torch {torch.__version__}" in found["versions"][0]
    assert f"spacy {spacy.__version__}" in found["versions"][0]
    assert found["hardware"][0].startswith(str(meta["hardware"]["processor"]))
    assert found["vectors"] == ["3 layers of width 16"]
    assert found["predicted words"] == [f"{meta['vocabulary']:,}"]
    assert float(found["time"][0].split()[0]) == round(meta["seconds"])
    assert 'nlp = spacy.blank("en")' in card


def test_what_was_not_called_from_a_command_line_says_so(toy_config: MakeConfig, tmp_path: Path) -> None:
    pretrain(toy_config(training__max_steps=1), tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    card = (tmp_path / "out" / "model-last" / "README.md").read_text(encoding="utf8")
    assert cells(card)["command"] == ["none: called from Python"]


def test_gpus_are_counted(monkeypatch: pytest.MonkeyPatch, toy_config: MakeConfig, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA X")
    found = hardware(torch.device("cuda:1"), 3)
    assert (found["gpu"], found["gpus"]) == ("NVIDIA X", 3)
    pretrain(toy_config(training__max_steps=1), tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    folder = tmp_path / "out" / "model-last"
    meta = json.loads((folder / "meta.json").read_text(encoding="utf8"))
    config = Config().from_disk(folder / "pretrain.cfg")
    card = cells(model_card({**meta, "processes": 3, "hardware": found}, config))
    assert card["processes"] == ["3"]
    assert card["hardware"][0].startswith("3 x NVIDIA X, ")
    # What an earlier version saved.
    old = {key: value for key, value in meta.items() if key not in ("processes", "precision")}
    assert not {"processes", "precision"} & set(cells(model_card(old, config)))


def test_hardware_is_named() -> None:
    found = hardware(torch.device("cpu"))
    assert found["processor"]
    assert found["threads"] == torch.get_num_threads()
    assert "gpu" not in found
