"""The configs of several sizes that are shipped."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from spacy_elmo.bilm.model import BiLM
from spacy_elmo.pretraining.config import Settings, load_config, resolve
from spacy_elmo.pretraining.distributed import Ranks
from spacy_elmo.pretraining.loop import pretrain

NAMES = ("tiny", "small", "medium", "original")


def preset(root: Path, name: str, **overrides: Any) -> tuple[Settings, Any]:
    own = {"paths.raw": "", "paths.dev": ""}
    return resolve(load_config(root / "configs" / f"pretrain-{name}.cfg", {**own, **overrides}))


@pytest.mark.parametrize("name", NAMES)
def test_each_is_complete_and_says_what_it_costs(root: Path, name: str) -> None:
    path = root / "configs" / f"pretrain-{name}.cfg"
    text = path.read_text(encoding="utf8")
    assert load_config(path, {"paths.raw": "", "paths.dev": ""}) == preset(root, name)[1]
    assert "Expected cost" in text
    assert "measured" in text or "computed" in text
    assert f"configs/pretrain-{name}.cfg" in text  # its own command


def test_the_original_reads_the_benchmark_as_it_lies_there(root: Path) -> None:
    """A sentence a line, its words cut already: neither a tokenizer nor a rule for sentences has a say."""
    _, config = resolve(load_config(root / "configs" / "pretrain-original.cfg"))
    for name, path in (("train", "assets/1-billion-word/train/*.txt"), ("dev", "assets/1-billion-word/heldout.txt")):
        block = config["corpora"][name]
        assert (block["@readers"], block["path"]) == ("spacy-elmo.RawText.v1", path)
        assert (block["line"], block["pretokenized"]) == ("sentence", True)
    # Its rows are shared by three processes, as its comment has it.
    settings, _ = preset(root, "original", **{"training.rows": 384, "training.accumulate": 1})
    assert settings.training.step_rows == preset(root, "original")[0].training.step_rows
    assert Ranks(rank=2, size=3, local=2).rows(settings.training.rows, 1) == slice(256, 384)


def test_the_original_is_the_papers(root: Path) -> None:
    settings, config = preset(root, "original")
    training = settings.training
    assert (training.step_rows, training.unroll_steps, training.clip_norm, training.dropout) == (384, 20, 10.0, 0.1)
    assert (training.schedule, training.warmup_steps, training.reset) == ("constant", 0, None)
    # bilm-tf's own count of batches: those of its 768,648,884 tokens, ten times.
    assert training.max_steps == 768_648_884 // (384 * 20) * 10
    assert config["optimizer"] == {"@misc": "spacy-elmo.adagrad.v1", "learn_rate": 0.2, "initial_accumulator": 1.0}
    sampled = {"@misc": "spacy-elmo.sampled_softmax.v1", "n_samples": 8192}
    assert config["objective"] == {**sampled, "tie_weights": False, "unigram_bias": False}
    assert config["vocabulary"]["max_words"] == 793_471


# The published sizes; of "small" the character filters are fewer.
@pytest.mark.parametrize(("name", "parameters"), [("medium", 28_027_728), ("original", 93_600_848)])
def test_sizes_are_the_published_ones(root: Path, name: str, parameters: int) -> None:
    with torch.device("meta"):
        bilm = BiLM(preset(root, name)[0].bilm_config(5))
    assert sum(parameter.numel() for parameter in bilm.parameters()) == parameters


def test_small_is_1024_by_128(root: Path) -> None:
    config = preset(root, "small")[0].bilm_config(5)
    assert (config.lstm_dim, config.projection_dim, config.n_filters, config.n_highway) == (1024, 128, 512, 1)


def test_tiny_plans_its_run(root: Path, toy_text: Path, tmp_path: Path) -> None:
    own = {"paths.raw": str(toy_text), "paths.cache": str(tmp_path / "cache")}
    stdout = io.StringIO()
    config = load_config(root / "configs" / "pretrain-tiny.cfg", own)
    result = pretrain(config, tmp_path / "out", dry_run=True, stdout=stdout, stderr=io.StringIO())
    assert result.step == 0
    assert "700 of 32 rows x 20 = 640 tokens" in stdout.getvalue()
