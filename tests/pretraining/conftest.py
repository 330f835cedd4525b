from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Protocol

import pytest
from thinc.api import Config

from spacy_elmo.pretraining.config import load_config

VERBS = {"cat": "purrs", "dog": "barks", "bird": "sings", "frog": "leaps"}


def toy_documents(n: int, seed: int) -> list[list[str]]:
    """Documents of eight sentences that a model can learn: the animal decides the verb."""
    draw = random.Random(seed)
    return [
        [
            f"The {animal} {VERBS[animal]} at the {draw.choice(['red', 'blue'])} house ."
            for animal in draw.choices(list(VERBS), k=8)
        ]
        for _ in range(n)
    ]


class MakeConfig(Protocol):
    def __call__(self, **overrides: Any) -> Config: ...


@pytest.fixture(scope="session")
def toy_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy") / "toy.txt"
    path.write_text("\n\n".join("\n".join(lines) for lines in toy_documents(60, 0)), encoding="utf8")
    return path


@pytest.fixture(scope="session")
def toy_overrides(toy_text: Path) -> dict[str, Any]:
    """What makes configs/pretrain.cfg a run of a second."""
    return {
        "paths.raw": str(toy_text),
        "paths.cache": str(toy_text.parent / "cache"),
        "model.lstm_dim": 16,
        "model.projection_dim": 8,
        "model.filters": [[1, 8], [2, 8]],
        "model.max_characters_per_token": 10,
        "objective.n_samples": 4096,
        "objective.unigram_bias": False,
        "optimizer.learn_rate": 0.01,
        "training.rows": 4,
        "training.unroll_steps": 6,
        "training.max_steps": 40,
        "training.warmup_steps": 3,
        "training.holdout": 6,
        "training.eval_frequency": 20,
        "training.eval_tokens": 400,
        "training.checkpoint_frequency": 10,
        "training.threads": 1,
        "training.dropout": 0.1,
        "training.precision": "float32",
    }


@pytest.fixture(scope="session")
def toy_config(root: Path, toy_overrides: dict[str, Any]) -> MakeConfig:
    """configs/pretrain.cfg made small; keyword arguments are further overrides, ``training__rows=2``.

    A block of registered functions is replaced whole.
    """

    def make(**overrides: Any) -> Config:
        config = load_config(root / "configs" / "pretrain.cfg", toy_overrides)
        for key, value in overrides.items():
            *sections, name = key.split("__")
            section: Any = config
            for part in sections:
                section = section[part]
            section[name] = value
        return config

    return make


@pytest.fixture(autouse=True)
def no_picture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the picture of its course, which test_curve.py draws: it takes half of a toy run's time."""
    if request.path.name != "test_curve.py":
        monkeypatch.setattr("spacy_elmo.pretraining.loop.draw_curve", lambda output: [])
