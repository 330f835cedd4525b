"""``training.accumulate``: the rows of a step in parts."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.optimizers import adagrad, adamw
from spacy_elmo.pretraining.streams import Window

from .conftest import MakeConfig
from .test_step import parts, training_step
from .test_step import window as narrow_window


def window(seed: int) -> Any:
    """Twelve rows out of four windows of three."""
    pieces = [narrow_window(4 * seed + n) for n in range(4)]
    tokens = np.stack(
        [
            np.concatenate([piece.type_rows[getattr(piece, name)] for piece in pieces])
            for name in ("forward", "backward")
        ]
    )
    type_rows, inverse = np.unique(tokens, return_inverse=True)
    forward, backward = inverse.reshape(tokens.shape)
    rest = {
        name: np.concatenate([getattr(piece, name) for piece in pieces])
        for name in ("forward_targets", "backward_targets", "starts")
    }
    return Window(type_rows=type_rows, forward=forward, backward=backward, **rest)


@pytest.mark.parametrize("make", [adagrad, adamw])
@pytest.mark.parametrize("objective", ["full", "sampled"])
@pytest.mark.parametrize("reset", ["sentence", None])
def test_so_many_parts_are_one_batch_of_all_rows_in_float64(objective: str, make: Any, reset: Any) -> None:
    runs: list[list[Any]] = []
    for accumulate in (1, 2, 4):
        bilm, softmax = parts(objective)
        bilm.double(), softmax.double()
        settings = {"rows": 12 // accumulate, "accumulate": accumulate, "reset": reset, "clip_norm": 0.5}
        step, _ = training_step(bilm, softmax, make(0.1), **settings)
        state, losses = bilm.zero_state(12), []
        for number in range(3):
            result = step(window(number), state, number)
            state = result.state
            losses += [result.forward, result.backward]
        weights = [p.detach().numpy() for p in (*bilm.parameters(), *softmax.parameters())]
        runs.append([*losses, *weights, *(tensor.numpy() for tensor in state.tensors().values())])
    for other in runs[1:]:
        for one, two in zip(other, runs[0], strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=1e-12 if make is adagrad else 1e-9)


def losses_of(output: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (output / "losses.jsonl").read_text(encoding="utf8").splitlines()]


def test_a_run_in_parts_is_the_run_of_all_rows_and_can_go_on_as_it(toy_config: MakeConfig, tmp_path: Path) -> None:
    def run(name: str, rows: int, accumulate: int, steps: int, **kwargs: Any) -> tuple[list[float], str]:
        stdout = io.StringIO()
        split = {"training__rows": rows, "training__accumulate": accumulate}
        config = toy_config(training__dropout=0.0, training__max_steps=steps, training__schedule="constant", **split)
        pretrain(config, tmp_path / name, stdout=stdout, stderr=io.StringIO(), **kwargs)
        return losses_of(tmp_path / name), stdout.getvalue()

    whole, _ = run("whole", 4, 1, 12)
    split, text = run("parts", 2, 2, 6)
    assert "6 of 2 x 2 rows x 6 = 24 tokens" in text
    assert split == pytest.approx(whole[:6], abs=1e-5)
    split, _ = run("parts", 1, 4, 12, resume=True)  # another split of as many rows
    assert split == pytest.approx(whole, abs=1e-4)
