"""Settings and files that ended `elmo pretrain` in a traceback, or in a message about something else."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import spacy
import torch
from thinc.api import Config
from torch import nn

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.checkpoint import newest_checkpoint
from spacy_elmo.pretraining.config import load_config
from spacy_elmo.pretraining.curve import draw_curve
from spacy_elmo.pretraining.loop import PretrainingResult, pretrain
from spacy_elmo.pretraining.optimizers import adamw

DEEP = "[" * 100_000  # json gives up with a RecursionError


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(f"The cat {n} sat .\nA dog ran ." for n in range(40)), encoding="utf8")
    return path


def config(root: Path, text: Path, **overrides: Any) -> Config:
    """configs/pretrain-tiny.cfg made a run of two steps; ``training__rows=2``."""
    small = {
        "paths.raw": str(text),
        "paths.cache": str(text.parent / "cache"),
        "model.lstm_dim": 4,
        "model.projection_dim": 4,
        "model.filters": [[1, 4]],
        "model.max_characters_per_token": 6,
        "system.n_process": 1,
        "vocabulary.min_count": 1,
        "training.rows": 2,
        "training.unroll_steps": 4,
        "training.max_steps": 2,
        "training.warmup_steps": 0,
        "training.holdout": 2,
        "training.schedule": "constant",
        "training.threads": 1,
        "logger.progress_bar": False,
    }
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(root / "configs" / "pretrain-tiny.cfg", {**small, **overrides})


def run(config: Config, output: Path, *, resume: bool = False) -> PretrainingResult:
    return pretrain(config, output, resume=resume, stdout=io.StringIO(), stderr=io.StringIO())


def test_vocabulary_without_a_word(root: Path, text: Path, tmp_path: Path) -> None:
    """All was ``<UNK>``, and the perplexity splendid."""
    with pytest.raises(PretrainingError, match=r"no word of the text.*lower vocabulary\.min_count"):
        run(config(root, text, vocabulary__min_count=1000), tmp_path / "output")


def test_betas_that_are_whole_numbers() -> None:
    """torch refuses to mix them with others, and did so when the text had been read."""
    weight = nn.Parameter(torch.ones(2, 2))
    optimizer = adamw(learn_rate=0.5, beta1=0.9, beta2=0, weight_decay=0)([weight])
    weight.grad = torch.full((2, 2), 3.0)
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((2, 2), 0.5))


def test_averages_that_begin_with_a_resume_can_be_taken_back(root: Path, text: Path, tmp_path: Path) -> None:
    """The checkpoint was called damaged: its copy for ``halve`` has no averages."""
    first = run(config(root, text, training__non_finite="halve"), tmp_path)
    assert first.step == 2
    settings = {"training__non_finite": "halve", "training__ema": 0.9, "training__max_steps": 3}
    assert run(config(root, text, **settings), tmp_path, resume=True).step == 3
    checkpoint = newest_checkpoint(tmp_path / "checkpoints", print)
    assert checkpoint is not None
    n_weights = len(checkpoint.group("bilm")) + len(checkpoint.group("softmax"))
    assert len(checkpoint.group("undo_weights")) == 2 * n_weights


def test_weights_tied_in_the_midst_of_a_run_are_named(root: Path, text: Path, tmp_path: Path) -> None:
    """The message spoke of a damaged file."""
    run(config(root, text, model__filters=None, objective__tie_weights=True), tmp_path)
    with pytest.raises(PretrainingError, match=r"cannot go on with another objective\.tie_weights"):
        run(config(root, text, model__filters=None, training__max_steps=3), tmp_path, resume=True)


def test_a_resume_with_other_sentences_to_measure_is_told_what_to_do(root: Path, text: Path, tmp_path: Path) -> None:
    """The best figure stayed that of others: model-best might never be written again."""
    run(config(root, text), tmp_path)
    with pytest.raises(PretrainingError, match=r"another training\.eval_tokens.*Set it to 5000 as before"):
        run(config(root, text, training__eval_tokens=7, training__max_steps=3), tmp_path, resume=True)


def test_damaged_json_in_an_output_folder(root: Path, text: Path, tmp_path: Path) -> None:
    """A traceback of json's, or a KeyError after the last step."""
    settings = {"training__reset": "document", "training__max_steps": 2}
    run(config(root, text, **settings), tmp_path)
    meta, losses = tmp_path / "model-last" / "meta.json", tmp_path / "losses.jsonl"
    lines = losses.read_bytes()

    meta.write_text(json.dumps({"spacy_elmo": "0.1.0"}), encoding="utf8")
    with pytest.raises(PretrainingError, match=r"meta\.json is damaged \(KeyError: 'step'\)"):
        run(config(root, text, **settings, training__start_state="warm"), tmp_path, resume=True)
    meta.write_text(DEEP, encoding="utf8")
    with pytest.raises(PretrainingError, match="is not a model that `elmo pretrain` wrote"):
        run(config(root, text, **settings), tmp_path, resume=True)
    assert (tmp_path / "checkpoints" / "step-000002").is_dir()

    (tmp_path / "other").mkdir()
    for output in (tmp_path, tmp_path / "other"):
        (output / "losses.jsonl").write_bytes(DEEP.encode() + b"\n" + lines)
        with pytest.raises(PretrainingError, match=r"losses\.jsonl.*cannot be read"):
            draw_curve(output)
    with pytest.raises(PretrainingError, match=r"losses\.jsonl, line 1: not the losses of a step"):
        run(config(root, text), tmp_path / "other", resume=True)


def test_log_of_another_program(root: Path, text: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(DEEP + "\n", encoding="utf8")
    asked = config(root, text)
    asked["logger"] = {"@loggers": "spacy-elmo.jsonl_logger.v1", "path": str(log)}
    with pytest.raises(PretrainingError, match=r"logger\.path: .* is no log of evaluations"):
        run(asked, tmp_path / "output")
    assert log.read_text(encoding="utf8") == DEEP + "\n"


@spacy.registry.loggers("test.failing_logger.v1")
def failing_logger(when: str) -> Any:
    def fail(now: str) -> None:
        if now == when:
            raise KeyError(now)

    def setup(nlp: Any, stdout: Any, stderr: Any) -> tuple[Any, Any]:
        fail("setup")
        return lambda info: fail("step" if info is None else f"evaluation at {info['step']}"), lambda: fail("finish")

    return setup


@pytest.mark.parametrize("when", ["setup", "step", "evaluation at 2", "finish"])
def test_logger_of_others_that_fails(root: Path, text: Path, tmp_path: Path, when: str) -> None:
    """A traceback, which did not say what is kept."""
    asked = config(root, text, training__checkpoint_frequency=2)
    asked["logger"] = {"@loggers": "test.failing_logger.v1", "when": when}
    kept = "step-000002" if when in ("evaluation at 2", "finish") else "There was no checkpoint yet"
    with pytest.raises(PretrainingError, match=rf"the logger failed: KeyError: '{when}'\. .*{kept}"):
        run(asked, tmp_path)
    assert run(config(root, text), tmp_path, resume=True).step == 2


def test_logger_that_fails_at_the_end_hides_no_error(root: Path, text: Path, tmp_path: Path) -> None:
    asked = config(root, text, optimizer__learn_rate=1e300)
    asked["logger"] = {"@loggers": "test.failing_logger.v1", "when": "finish"}
    with pytest.raises(PretrainingError, match="loss at step 2 is nan"):
        run(asked, tmp_path)
