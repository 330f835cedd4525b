"""Early stopping."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.checkpoint import load_checkpoint
from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.loop import PretrainingResult, pretrain
from spacy_elmo.weights import load_bilm

from .conftest import MakeConfig


def run(config: Any, output: Path, **kwargs: Any) -> tuple[PretrainingResult, str]:
    stdout = io.StringIO()
    result = pretrain(config, output, stdout=stdout, stderr=io.StringIO(), **kwargs)
    return result, stdout.getvalue()


@pytest.fixture
def worsening(toy_config: MakeConfig) -> MakeConfig:
    """It learns for some steps, and then the rate is far too high."""
    far_too_high = {"@schedules": "constant.v1", "rate": 300.0}
    rates = {"@schedules": "constant_then.v1", "rate": 1.0, "steps": 12, "schedule": far_too_high}

    def make(**overrides: Any) -> Any:
        options = {"training__schedule": rates, "training__warmup_steps": 0, "training__eval_frequency": 4}
        return toy_config(**{**options, "training__patience": 2, "training__max_steps": 60, **overrides})

    return make


def test_it_ends_after_so_many_evaluations_without_a_better_one(worsening: MakeConfig, tmp_path: Path) -> None:
    result, text = run(worsening(), tmp_path / "out")
    assert result.best_step == 12
    assert result.step == 20
    assert result.stopped_early
    assert result.stopped_by is None
    assert "Stopped early at step 20: 2 evaluations without a better one than step 12's" in text
    scores = {}
    for line in (tmp_path / "out" / "evaluations.jsonl").read_text(encoding="utf8").splitlines():
        entry = json.loads(line)
        scores[entry["step"]] = entry["score"]
    assert list(scores) == [0, 4, 8, 12, 16, 20]
    assert max(scores[16], scores[20]) < scores[12]
    for name, step in (("model-best", 12), ("model-last", 20)):
        assert json.loads((tmp_path / "out" / name / "meta.json").read_text(encoding="utf8"))["step"] == step
    assert load_checkpoint(tmp_path / "out" / "checkpoints" / "step-000020").step == 20


def test_its_count_survives_a_stop(worsening: MakeConfig, tmp_path: Path) -> None:
    whole, _ = run(worsening(), tmp_path / "whole")
    run(worsening(training__max_steps=16), tmp_path / "out")  # one evaluation without a better one
    resumed, _ = run(worsening(), tmp_path / "out", resume=True)
    assert resumed == whole
    again, text = run(worsening(), tmp_path / "out", resume=True)
    assert "Nothing to do" in text
    assert again == whole
    # More patience goes on.
    more, _ = run(worsening(training__patience=3), tmp_path / "out", resume=True)
    assert more.step == 24
    load_bilm(tmp_path / "out" / "model-best")


def test_0_is_never(worsening: MakeConfig, tmp_path: Path) -> None:
    result, _ = run(worsening(training__patience=0, training__max_steps=28), tmp_path / "out")
    assert result.step == 28
    assert not result.stopped_early


def test_less_is_refused(toy_config: MakeConfig) -> None:
    with pytest.raises(PretrainingError, match=r"training\.patience"):
        resolve(toy_config(training__patience=-1))
