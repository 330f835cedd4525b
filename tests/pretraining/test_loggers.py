from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from spacy import registry

from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.loggers import clock
from spacy_elmo.pretraining.loop import pretrain

from .conftest import MakeConfig


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_row_an_evaluation_and_a_bar_with_tokens(toy_config: MakeConfig, tmp_path: Path) -> None:
    stdout, stderr = io.StringIO(), Terminal()
    pretrain(toy_config(), tmp_path / "out", stdout=stdout, stderr=stderr)
    lines = stdout.getvalue().splitlines()
    header = next(i for i, line in enumerate(lines) if "DEV FWD PPL" in line)
    rows = [line.split() for line in lines[header + 2 :]]
    assert [row[1] for row in rows] == ["0", "20", "40"]
    joint = float(rows[-1][5])
    assert joint == pytest.approx((float(rows[-1][3]) * float(rows[-1][4])) ** 0.5, rel=1e-2)
    assert "tok/s" in stderr.getvalue()
    assert "960" in stderr.getvalue()  # 40 steps of 24 tokens


def test_the_bar_can_be_left_out(toy_config: MakeConfig, tmp_path: Path) -> None:
    stderr = Terminal()
    config = toy_config(logger__progress_bar=False, training__max_steps=2)
    resolve(config)
    pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=stderr)
    assert "tok/s" not in stderr.getvalue()


@pytest.mark.parametrize("name", ["spacy.ConsoleLogger.v1", "spacy.ConsoleLogger.v2", "spacy.ConsoleLogger.v3"])
def test_spacys_own_logger_works(toy_config: MakeConfig, tmp_path: Path, name: str) -> None:
    logger: dict[str, Any] = {"@loggers": name}
    if name != "spacy.ConsoleLogger.v1":
        logger["output_file"] = str(tmp_path / "log.jsonl")
    stdout = io.StringIO()
    config = toy_config(logger=logger, training__max_steps=4, training__eval_frequency=2)
    result = pretrain(config, tmp_path / "out", stdout=stdout, stderr=io.StringIO())
    assert result.dev is not None
    assert f"{result.dev.score:.2f}" in stdout.getvalue()
    if name != "spacy.ConsoleLogger.v1":
        entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [entry["step"] for entry in entries] == [0, 2, 4]
        assert entries[-1]["score"] == pytest.approx(result.dev.score)


def test_loggers_see_the_runs_config(toy_config: MakeConfig, tmp_path: Path) -> None:
    seen: list[Any] = []

    @registry.loggers("test.seeing.v1")
    def seeing() -> Any:
        def setup_logger(nlp: Any, stdout: Any, stderr: Any) -> Any:
            seen.append(nlp.config)
            return seen.append, lambda: seen.append("end")

        return setup_logger

    config = toy_config(logger={"@loggers": "test.seeing.v1"}, training__max_steps=3, training__eval_frequency=2)
    pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    config_seen, at_0, step_1, step_2, at_2, step_3, at_3, end = seen
    assert config_seen["model"]["lstm_dim"] == 16
    assert config_seen["training"]["rows"] == 4
    assert [info["step"] for info in (at_0, at_2, at_3)] == [0, 2, 3]
    assert step_1 is step_2 is step_3 is None
    assert at_0["losses"] == {}
    assert at_3["losses"]["bilm"] > 0
    assert at_3["checkpoints"][0][0] == max(at_2["score"], at_3["score"])
    assert end == "end"


def test_spacy_loggers_get_every_figure(toy_config: MakeConfig, tmp_path: Path) -> None:
    logger = {"@loggers": "spacy.LookupLogger.v1", "patterns": ["other_scores", "seconds"]}
    stdout = io.StringIO()
    config = toy_config(logger=logger, training__max_steps=2)
    pretrain(config, tmp_path / "out", stdout=stdout, stderr=io.StringIO())
    assert "other_scores.joint_perplexity -> " in stdout.getvalue()


def test_clock() -> None:
    assert clock(3661.4) == "1:01:01"
