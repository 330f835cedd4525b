from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from spacy_elmo.weights import load_bilm

Call = Callable[..., Result]
Arguments = Callable[..., list[str]]


def test_overrides_reach_the_run(model: Path) -> None:
    bilm = load_bilm(model)
    assert bilm.config.lstm_dim == 16
    assert bilm.config.filters == ((1, 8), (2, 8))
    assert len((model.parent / "losses.jsonl").read_text().splitlines()) == 4


def test_the_command_line_is_on_the_card(model: Path) -> None:
    command = json.loads((model / "meta.json").read_text(encoding="utf8"))["command"]
    assert command.startswith("python -m spacy elmo pretrain ")
    assert "--training.rows 4" in command


def test_dry_run(call: Call, arguments: Arguments, tmp_path: Path) -> None:
    result = call(*arguments("pretrain", tmp_path / "out", training__max_steps=7), "--dry-run")
    assert result.exit_code == 0, result.output
    assert "7 of 4 rows x 6 = 24 tokens" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_default_config_passes_a_dry_run(call: Call, root: Path, tmp_path: Path) -> None:
    limits = ["--corpora.train.limit_words", "30000", "--corpora.dev.limit_words", "3000"]
    config = root / "configs" / "pretrain.cfg"
    result = call("pretrain", config, tmp_path / "out", "--dry-run", "--paths.cache", tmp_path / "cache", *limits)
    assert result.exit_code == 0, result.output
    assert "vectors of 256 in 3 layers" in result.output


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"training__rowz": 3}, "training.rowz"),
        ({"training__rows": "many"}, "training.rows"),
        ({"paths__raw": "/nowhere/x.txt"}, "/nowhere/x.txt"),
        ({"model__projection_dim": 64}, "projection_dim"),
    ],
)
def test_errors_are_messages(
    call: Call, arguments: Arguments, tmp_path: Path, overrides: dict[str, object], named: str
) -> None:
    result = call(*arguments("pretrain", tmp_path / "out", **overrides))
    assert result.exit_code == 1
    assert named in result.output
    assert "Traceback" not in result.output


def test_a_run_is_continued_only_when_asked(call: Call, arguments: Arguments, model: Path) -> None:
    result = call(*arguments("pretrain", model.parent))
    assert result.exit_code == 1
    assert "--resume" in result.output
    result = call(*arguments("pretrain", model.parent), "--resume")
    assert result.exit_code == 0
    assert "Nothing to do" in result.output


def test_corpus_encodes_once(call: Call, arguments: Arguments, tmp_path: Path) -> None:
    command = arguments("corpus", paths__cache=tmp_path / "cache")
    result = call(*command)
    assert result.exit_code == 0, result.output
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    assert files
    assert call(*command).output == result.output
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == files


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM to catch")
@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_on_spacys_command_line_a_signal_saves_and_stops(
    arguments: Arguments, tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    output = tmp_path / "out"
    command = arguments("pretrain", output, training__max_steps=100_000, training__eval_frequency=100_000)
    # Entry points of this checkout, without the user's overrides.
    environment = {key: value for key, value in os.environ.items() if key != "SPACY_CONFIG_OVERRIDES"}
    with subprocess.Popen(
        [sys.executable, "-m", "spacy", "elmo", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        losses = output / "losses.jsonl"
        while process.poll() is None and not (losses.exists() and losses.read_bytes().count(b"\n") >= 5):
            time.sleep(0.01)
        process.send_signal(sent)
        printed, _ = process.communicate()
    assert process.returncode == code, printed
    assert "--resume" in printed
    done = losses.read_bytes().count(b"\n")
    state = json.loads((output / "checkpoints" / f"step-{done:06d}" / "state.json").read_text(encoding="utf8"))
    assert state["step"] == done
