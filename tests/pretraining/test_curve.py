"""The picture of a run."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.curve import CURVES, draw_curve
from spacy_elmo.pretraining.loop import pretrain

from .conftest import MakeConfig


def write_run(folder: Path, n: int) -> None:
    losses = [{"step": i + 1, "loss": None if i % 7 == 3 else 5.0 - i / n, "learn_rate": 0.1} for i in range(n)]
    del losses[-1]["learn_rate"]
    (folder / "losses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in losses) + '{"st', encoding="utf8")
    names = ("forward_perplexity", "backward_perplexity", "joint_perplexity")
    lines = [{"step": step, **dict.fromkeys(names, 100.0 - step / n)} for step in (0, n)]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf8")


@pytest.mark.parametrize("n", [5, 3000])
def test_a_run_is_drawn_the_same_each_time(tmp_path: Path, n: int) -> None:
    pytest.importorskip("matplotlib")
    write_run(tmp_path, n)
    paths = draw_curve(tmp_path)
    assert [path.name for path in paths] == list(CURVES)
    svg, png = (path.read_bytes() for path in paths)
    assert svg.startswith(b"<?xml")
    assert png.startswith(b"\x89PNG")
    draw_curve(tmp_path)
    assert paths[0].read_bytes() == svg
    write_run(tmp_path, n + 1)
    draw_curve(tmp_path)
    assert paths[0].read_bytes() != svg


def test_all_losses_may_be_null_and_evaluations_missing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "losses.jsonl").write_text('{"step": 1, "loss": null, "skipped": "loss"}\n', encoding="utf8")
    assert all(path.stat().st_size > 1000 for path in draw_curve(tmp_path))
    (tmp_path / "evaluations.jsonl").write_text('{"step": 0, "joint_loss": 0.5}\n', encoding="utf8")
    draw_curve(tmp_path)


def test_training_ends_with_it_or_a_line(
    toy_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy_config(training__max_steps=2, training__schedule="constant")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        stderr = io.StringIO()
        assert pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=stderr).step == 2
        (line,) = [line for line in stderr.getvalue().splitlines() if "training curve" in line]
        assert 'pip install "spacy-elmo[plot]"' in line
        assert not (tmp_path / "out" / CURVES[0]).exists()
    pytest.importorskip("matplotlib")
    config["training"]["max_steps"] = 3
    pretrain(config, tmp_path / "out", resume=True, stdout=io.StringIO(), stderr=io.StringIO())
    assert all((tmp_path / "out" / name).is_file() for name in CURVES)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "holds no run of `elmo pretrain`: it has no losses.jsonl"),
        ("", "there are no steps to draw"),
        ("junk\n", "cannot be read"),
        ("[1]\n", "not a line of a run"),
        ('{"step": "x"}\n', "not a line of a run"),
    ],
)
def test_what_is_no_run_is_named(tmp_path: Path, content: str | None, says: str) -> None:
    pytest.importorskip("matplotlib")
    if content is not None:
        (tmp_path / "losses.jsonl").write_text(content, encoding="utf8")
    with pytest.raises(PretrainingError, match=says):
        draw_curve(tmp_path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_run(tmp_path, 3)
    (tmp_path / CURVES[0]).mkdir()
    with pytest.raises(PretrainingError, match=f"cannot write .*{CURVES[0]}"):
        draw_curve(tmp_path)
