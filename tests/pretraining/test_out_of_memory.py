"""Out of memory: the message must name all that can be lowered, the samples of the softmax too."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import spacy
import torch
from torch import Tensor

from spacy_elmo.bilm.softmax import SampledSoftmax
from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining.loop import pretrain

from .conftest import MakeConfig


class TooLarge(SampledSoftmax):
    def loss(self, hidden: Tensor, targets: Tensor, *, seed: int) -> Tensor:
        return super().loss(hidden, targets, seed=seed) + torch.empty(1 << 60).sum()  # the allocator refuses


@spacy.registry.misc("test.too_large_softmax.v1")
def too_large_softmax(n_samples: int) -> Callable[[int, int], SampledSoftmax]:
    return lambda n_words, width: TooLarge(n_words, width, n_samples=n_samples)


def test_rows_steps_and_samples_are_named(toy_config: MakeConfig, tmp_path: Path) -> None:
    config = toy_config(objective={"@misc": "test.too_large_softmax.v1", "n_samples": 5})
    with pytest.raises(
        PretrainingError,
        match=r"out of memory: lower training\.rows \(4\), training\.unroll_steps \(6\) or objective\.n_samples \(5\)"
        r", or the sizes of the model: model\.lstm_dim \(16\), model\.projection_dim \(8\), "
        r"vocabulary\.max_words \(50000\)",
    ):
        pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())


@pytest.mark.parametrize("lstm_dim", [10**9, 10**17])
def test_a_model_that_no_machine_holds(toy_config: MakeConfig, tmp_path: Path, lstm_dim: int) -> None:
    with pytest.raises(PretrainingError, match=rf"out of memory.*model\.lstm_dim \({lstm_dim}\)"):
        pretrain(
            toy_config(model__lstm_dim=lstm_dim, model__projection_dim=10**6),
            tmp_path / "out",
            stdout=io.StringIO(),
            stderr=io.StringIO(),
        )
