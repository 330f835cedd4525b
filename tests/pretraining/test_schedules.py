from __future__ import annotations

import json
import math
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from thinc.api import warmup_linear

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.config import TrainingSettings, load_config, resolve
from spacy_elmo.pretraining.schedules import SCHEDULES, LearnRate, Progress, learn_rate_factor

from .conftest import MakeConfig

STEPS = st.integers(1, 10**6)
SHARES = st.floats(0.0, 1.0)


def reference(steps: np.ndarray, schedule: str, max_steps: int, warmup: int, end: float) -> np.ndarray:
    """All factors at once, in float64."""
    n = steps + 1.0
    p = np.clip((steps - warmup) / max(1, max_steps - warmup), 0.0, 1.0)
    after = {
        "cosine": end + (1 - end) * np.cos(0.5 * np.pi * p) ** 2,
        "linear": end * p + 1.0 - p,
        "inverse_sqrt": max(1, warmup) ** 0.5 * n**-0.5,
        "constant": np.ones_like(n),
        "plateau": np.ones_like(n),
    }[schedule]
    return np.where(steps < warmup, n / max(1, warmup), after)


@given(schedule=st.sampled_from(SCHEDULES), max_steps=STEPS, warmup=st.integers(0, 10**4), end=SHARES, data=st.data())
def test_every_factor_is_the_formula(schedule: str, max_steps: int, warmup: int, end: float, data: Any) -> None:
    steps = np.array(data.draw(st.lists(st.integers(0, 2 * 10**6), min_size=1, max_size=5)), dtype=float)
    expected = reference(steps, schedule, max_steps, warmup, end)
    for step, factor in zip(steps, expected, strict=True):
        found = learn_rate_factor(int(step), max_steps=max_steps, warmup_steps=warmup, schedule=schedule, end=end)
        assert found == pytest.approx(factor, rel=1e-9, abs=1e-12)


@given(schedule=st.sampled_from(SCHEDULES), max_steps=st.integers(1, 60), warmup=st.integers(0, 20), end=SHARES)
def test_it_rises_to_1_and_falls_no_lower_than_its_end(schedule: str, max_steps: int, warmup: int, end: float) -> None:
    def factor(step: int) -> float:
        return learn_rate_factor(step, max_steps=max_steps, warmup_steps=warmup, schedule=schedule, end=end)

    factors = [factor(step) for step in range(warmup + max_steps + 5)]
    rise, rest = factors[:warmup], factors[warmup:]
    assert rise == sorted(rise)
    assert max(factors) == pytest.approx(1.0)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(rest))
    if schedule in ("cosine", "linear"):
        assert factors[-1] == pytest.approx(end if max_steps > warmup else factors[-1])
        assert min(rest) >= end - 1e-12


@given(scores=st.lists(st.integers(-5, 5)), patience=st.integers(1, 4), kept=st.integers(0, 30))
def test_plateau(scores: list[float], patience: int, kept: int) -> None:
    """Against a count that looks back over all scores; and a checkpoint at any time changes nothing."""
    progress = Progress()
    cuts, since = 0, 0
    for n, score in enumerate(scores):
        if n == kept:
            progress = Progress.model_validate(json.loads(json.dumps(progress.model_dump())))
        progress.evaluated(score, factor=0.5, patience=patience)
        since = 0 if all(score > before for before in scores[:n]) else since + 1
        if since == patience:
            cuts, since = cuts + 1, 0
        assert progress.plateau == 0.5**cuts
        assert progress.best_score == max(scores[: n + 1])


def test_halvings_and_the_plateau_multiply_the_rate() -> None:
    rate = LearnRate(TrainingSettings(schedule="plateau", warmup_steps=4, max_steps=10))
    assert rate(0, Progress()) == 0.25
    assert rate(9, Progress(plateau=0.1, halved=3)) == 0.1 * 0.125


def test_a_registered_schedule_is_asked_step_by_step_and_a_resumed_run_passes_over_what_it_had() -> None:
    def schedule() -> Any:
        return warmup_linear(1.0, 3, 10)

    expected = list(islice(schedule(), 9))
    rate = LearnRate(TrainingSettings(schedule=schedule()))
    assert [rate(step, Progress()) for step in (0, 1, 1, 2)] == [expected[n] for n in (0, 1, 1, 2)]
    resumed = LearnRate(TrainingSettings(schedule=schedule()))
    assert resumed(8, Progress()) == expected[8] > 0.0


@pytest.mark.parametrize(
    ("values", "said"),
    [([1.0, 0.5], "ended after 2 steps, before step 3"), ([1.0, 1.0, math.nan], "gives nan at step 3")],
)
def test_a_registered_schedule_that_gives_no_rate_is_one_error(values: list[float], said: str) -> None:
    rate = LearnRate(TrainingSettings(schedule=iter(values)))
    with pytest.raises(PretrainingError, match=said):
        rate(2, Progress())


def test_a_registered_schedule_in_the_config(toy_config: MakeConfig, tmp_path: Any) -> None:
    block = {"@schedules": "compounding.v1", "start": 1.0, "stop": 0.25, "compound": 0.5}
    settings, filled = resolve(toy_config(training__schedule=block, training__warmup_steps=0))
    assert filled["training"]["schedule"] == {**block, "t": 0.0}
    filled.to_disk(tmp_path / "c.cfg")
    settings, again = resolve(load_config(tmp_path / "c.cfg"))
    assert again == filled
    rate = LearnRate(settings.training)
    assert [rate(step, Progress()) for step in range(4)] == [1.0, 0.5, 0.25, 0.25]
    with pytest.raises(PretrainingError, match="warmup_steps is of no use to a registered schedule"):
        resolve(toy_config(training__schedule=block, training__warmup_steps=3))


@pytest.mark.parametrize("value", ["no", 3, None, [1.0]])
def test_something_else_is_no_schedule(value: Any) -> None:
    with pytest.raises(ValidationError, match="must be cosine, linear"):
        TrainingSettings(schedule=value)
