from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from spacy import registry
from thinc.api import Config

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.config import resolve
from spacy_elmo.pretraining.loggers import chain_logger, clock, jsonl_logger
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
    rows = [line.split() for line in lines[header + 2 :] if line[:8].strip().isdigit()]
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


def chain(**loggers: Any) -> dict[str, Any]:
    return {"@loggers": "spacy-elmo.chain_logger.v1", "*": loggers}


def test_several_loggers_and_lines_of_json(toy_config: MakeConfig, tmp_path: Path) -> None:
    path = tmp_path / "logs" / "log.jsonl"
    logger = chain(
        console={"@loggers": "spacy-elmo.console_logger.v1"},
        file={"@loggers": "spacy-elmo.jsonl_logger.v1", "path": str(path)},
        spacys={"@loggers": "spacy.ConsoleLogger.v3", "output_file": str(tmp_path / "spacy.jsonl")},
    )
    options = {"logger": logger, "training__eval_frequency": 2, "training__schedule": "constant"}
    stdout = io.StringIO()
    result = pretrain(
        toy_config(**options, training__max_steps=4), tmp_path / "out", stdout=stdout, stderr=io.StringIO()
    )
    assert "DEV FWD PPL" in stdout.getvalue()
    assert len((tmp_path / "spacy.jsonl").read_text().splitlines()) == 3
    entries = [json.loads(line) for line in path.read_text(encoding="utf8").splitlines()]
    assert [entry["step"] for entry in entries] == [0, 2, 4]
    assert result.dev is not None
    assert entries[-1]["joint_perplexity"] == result.dev.joint
    assert entries[-1]["bits_per_character"] == result.dev.scores()["bits_per_character"]
    assert entries[-1]["loss_bilm"] > 0
    assert entries[-1]["learn_rate"] == 0.01
    assert "learn_rate" not in entries[0]

    # What a killed run wrote after its checkpoint is written again.
    with path.open("a", encoding="utf8") as file:
        file.write('{"step": 6}\n{"st')
    pretrain(
        toy_config(**options, training__max_steps=6),
        tmp_path / "out",
        resume=True,
        stdout=io.StringIO(),
        stderr=io.StringIO(),
    )
    assert [json.loads(line)["step"] for line in path.read_text(encoding="utf8").splitlines()] == [0, 2, 4, 6]


def test_a_log_that_is_not_ours_stays(toy_config: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine\n", encoding="utf8")
    config = toy_config(logger={"@loggers": "spacy-elmo.jsonl_logger.v1", "path": str(tmp_path / "notes.txt")})
    with pytest.raises(PretrainingError, match=r"notes\.txt is no log of evaluations"):
        pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    assert (tmp_path / "notes.txt").read_text() == "mine\n"
    config["logger"]["path"] = str(tmp_path / "notes.txt" / "log.jsonl")
    with pytest.raises(PretrainingError, match=r"logger\.path: cannot write"):
        pretrain(config, tmp_path / "other", stdout=io.StringIO(), stderr=io.StringIO())


def test_the_documents_fragment_is_a_logger(root: Path, toy_config: MakeConfig, tmp_path: Path) -> None:
    text = (root / "docs" / "pretraining-settings.md").read_text(encoding="utf8")
    (code,) = re.findall(r"^```ini\n(\[logger\].*?)^```$", text, re.MULTILINE | re.DOTALL)
    block = Config().from_str(code)["logger"]
    block["*"]["file"]["path"] = str(tmp_path / "log.jsonl")
    config = toy_config(logger=block, training__max_steps=2)
    pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    assert len((tmp_path / "log.jsonl").read_text(encoding="utf8").splitlines()) == 2


def test_a_chain_of_nothing_is_refused() -> None:
    with pytest.raises(PretrainingError, match="give it loggers"):
        chain_logger()


def test_what_is_not_finite_is_null_in_the_log(tmp_path: Path) -> None:
    log, _ = jsonl_logger(str(tmp_path / "l.jsonl"))(None, io.StringIO(), io.StringIO())  # type: ignore[arg-type]
    log({"step": 0, "losses": {}, "other_scores": {"joint_perplexity": float("inf")}, "output_path": None})
    log(None)
    assert json.loads((tmp_path / "l.jsonl").read_text()) == {"step": 0, "joint_perplexity": None}


def test_tensorboard(toy_config: MakeConfig, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = {"@loggers": "spacy-elmo.tensorboard_logger.v1", "folder": str(tmp_path / "runs")}
    options = {"logger": logger, "training__eval_frequency": 2}
    pretrain(toy_config(**options, training__max_steps=4), tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    result = pretrain(
        toy_config(**options, training__max_steps=6),
        tmp_path / "out",
        resume=True,
        stdout=io.StringIO(),
        stderr=io.StringIO(),
    )
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    values = {event.step: event.value for event in events.Scalars("joint_perplexity")}
    assert list(values) == [0, 2, 4, 6]
    assert result.dev is not None
    assert values[6] == pytest.approx(result.dev.joint, rel=1e-6)
    assert {"loss_bilm", "learn_rate", "bits_per_character"} <= set(events.Tags()["scalars"])


def test_a_missing_tensorboard_names_the_install_line(
    toy_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    config = toy_config(logger={"@loggers": "spacy-elmo.tensorboard_logger.v1", "folder": str(tmp_path / "runs")})
    with pytest.raises(PretrainingError, match=r"spacy-elmo\[tensorboard\]"):
        pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_logger_of_mlflow(
    toy_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    config = toy_config(logger={"@loggers": f"spacy.MLflowLogger.{version}"}, training__max_steps=4)
    result = pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    (found,) = mlflow.search_runs(output_format="list")
    assert result.dev is not None
    assert found.data.metrics["joint_perplexity"] == result.dev.joint
    assert found.data.params["model.lstm_dim"] == "16"


@pytest.mark.parametrize("version", ["v4", "v5"])
def test_the_logger_of_weights_and_biases(
    toy_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    logger = {"@loggers": f"spacy.WandbLogger.{version}", "project_name": "toy", "model_log_interval": 2}
    config = toy_config(logger=logger, training__max_steps=4)
    result = pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    assert result.step == 4
    wandb.teardown()  # it keeps the folder of its first run in mind
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))


def test_the_time_left_counts_evaluations_too(toy_config: MakeConfig, tmp_path: Path) -> None:
    infos: list[Any] = []

    @registry.loggers("test.times.v1")
    def times() -> Any:
        return lambda nlp, stdout, stderr: (lambda info: infos.append(info) if info else None, lambda: None)

    config = toy_config(logger={"@loggers": "test.times.v1"}, training__max_steps=6, training__eval_frequency=2)
    pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
    assert [info["seconds_left"] is None for info in infos] == [True, False, False, False]
    assert infos[-1]["seconds_left"] == 0.0
    # At step 2: two evaluations of about what the first took, and four steps.
    assert infos[1]["seconds_left"] > 4 * 24 / infos[1]["other_scores"]["tokens_per_second"]


def test_clock() -> None:
    assert clock(3661.4) == "1:01:01"


def test_a_new_run_leaves_the_log_of_another(tmp_path: Path) -> None:
    """It erased all lines of an earlier run with the same config."""
    path = tmp_path / "log.jsonl"

    def logged(*infos: dict[str, Any]) -> str:
        stdout = io.StringIO()
        log, _ = jsonl_logger(str(path))(None, stdout, io.StringIO())  # type: ignore[arg-type]
        for info in infos:
            log({"losses": {}, "other_scores": {}, **info})
        return stdout.getvalue()

    def steps(file: Path) -> list[int]:
        return [json.loads(line)["step"] for line in file.read_text(encoding="utf8").splitlines()]

    assert logged({"step": 0}, {"step": 5}, {"step": 10}) == ""
    assert f"moved to {path.resolve()}.1" in logged({"step": 0}, {"step": 7})
    assert steps(tmp_path / "log.jsonl.1") == [0, 5, 10]
    assert logged({"step": 7, "resumed_at": 8}, {"step": 14}) == ""
    assert steps(path) == [0, 7, 14]
    logged({"step": 0})
    assert steps(tmp_path / "log.jsonl.2") == [0, 7, 14]
    assert steps(path) == [0]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
