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
        match=r"out of memory: lower training\.rows \(4\), training\.unroll_steps \(6\) or objective\.n_samples \(5\)",
    ):
        pretrain(config, tmp_path / "out", stdout=io.StringIO(), stderr=io.StringIO())
