"""Where the LSTMs start was lost after training and saving, and the vectors were others from then on."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch

from spacy_elmo import BiLM, BiLMConfig
from tests.pipeline.toys import blank, examples, getter, listener, tagger_config

WORDS = ["Ann", "went", "to", "Rome", "."]


@pytest.fixture(scope="module")
def warm() -> BiLM:
    """Weights with a start state, far from zero."""
    bilm = BiLM(BiLMConfig(lstm_dim=16, projection_dim=8, filters=((1, 8), (2, 8)), state="warm")).initialize(1)
    generator = torch.Generator().manual_seed(2)
    for name, tensor in bilm.named_buffers():
        if name.startswith("start_"):
            tensor.normal_(0.0, 2.0, generator=generator)
    bilm.invalidate()
    return bilm


@pytest.mark.parametrize("state", [None, "warm", "zero"])
def test_the_policy_is_that_of_the_config_after_training_and_saving(warm: BiLM, tmp_path: Path, state: Any) -> None:
    expected = {name: warm.encode([WORDS], name)[0].numpy() for name in ("warm", "zero")}
    assert np.abs(expected["warm"] - expected["zero"]).max() > 0.1
    nlp = blank()
    nlp.add_pipe("elmo", config={"state": state}).load_weights(copy.deepcopy(warm))
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    optimizer = nlp.initialize(getter(nlp))
    nlp.update(examples(nlp), sgd=optimizer, losses={})
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert loaded.config["components"]["elmo"]["state"] == state
    for one in (nlp, loaded, spacy.blank("en").from_config(loaded.config).from_bytes(loaded.to_bytes())):
        np.testing.assert_allclose(one(" ".join(WORDS))._.elmo.layers, expected[state or "warm"], atol=1e-6)
    other = "zero" if state != "zero" else "warm"
    changed = spacy.load(tmp_path, config={"components": {"elmo": {"state": other}}})
    np.testing.assert_allclose(changed(" ".join(WORDS))._.elmo.layers, expected[other], atol=1e-6)
