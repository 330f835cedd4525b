from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spacy_elmo.cli import elmo_cli

OPTIONS = {
    "model.lstm_dim": 16,
    "model.projection_dim": 8,
    "model.filters": "[[1,8],[2,8]]",
    "training.rows": 4,
    "training.unroll_steps": 6,
    "training.max_steps": 4,
    "training.holdout": 4,
    "training.eval_frequency": 2,
    "training.checkpoint_frequency": 2,
    "training.threads": 1,
}


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "text.txt"
    lines = [f"{draw.choice(['Ann', 'Bob', 'Eve'])} {draw.choice(['sees', 'hears'])} us ." for _ in range(160)]
    path.write_text("\n".join(f"{line}\n" if i % 8 == 7 else line for i, line in enumerate(lines)), encoding="utf8")
    return path


@pytest.fixture(scope="session")
def arguments(root: Path, text: Path) -> Callable[..., list[str]]:
    """Arguments of `elmo pretrain` or `elmo corpus` for a run of a moment."""

    def make(*positional: Any, **overrides: Any) -> list[str]:
        options = {**OPTIONS, "paths.raw": text, "paths.cache": text.parent / "cache"}
        options |= {key.replace("__", "."): value for key, value in overrides.items()}
        pairs = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        command, *rest = map(str, positional)
        return [command, str(root / "configs" / "pretrain.cfg"), *rest, *pairs]

    return make


@pytest.fixture(scope="session")
def call() -> Callable[..., Result]:
    """Run an `elmo` command in this process."""

    def run(*arguments: Any) -> Result:
        return CliRunner().invoke(elmo_cli, [str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session")
def model(
    tmp_path_factory: pytest.TempPathFactory, call: Callable[..., Result], arguments: Callable[..., list[str]]
) -> Path:
    """A pretrained model's folder."""
    output = tmp_path_factory.mktemp("run") / "out"
    result = call(*arguments("pretrain", output))
    assert result.exit_code == 0, result.output
    return output / "model-best"
