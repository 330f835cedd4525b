from __future__ import annotations

from typing import Any

import pytest
import torch

from spacy_elmo.bilm import BiLM
from spacy_elmo.layers.bilm_model import random_bilm
from tests.pipeline.toys import blank


@pytest.fixture(scope="session")
def bilm() -> BiLM:
    """Small, with vectors of 16 numbers in three layers, all at a scale a component can learn from."""
    bilm = random_bilm(lstm_dim=16, projection_dim=8, filters=[[1, 8], [2, 8], [3, 8]], char_dim=4)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.mul_(4.0)
    bilm.invalidate()
    return bilm


@pytest.fixture
def nlp(bilm: BiLM) -> Any:
    """A pipeline of `elmo` alone, with weights."""
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    return nlp
