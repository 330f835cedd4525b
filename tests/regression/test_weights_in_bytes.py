"""More than 4 GB of bytes cannot be serialised, and pickles are not read: what is saved is the biLM, as safetensors."""

from __future__ import annotations

import pickletools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from spacy_elmo import BiLM, BiLMConfig
from spacy_elmo.layers.bilm_model import BiLM_v1, get_bilm, set_bilm
from tests.pipeline.toys import blank


def is_pickle(data: bytes) -> bool:
    try:
        return sum(1 for _ in pickletools.genops(data)) > 1
    except ValueError:
        return False


def test_a_saved_pipeline_holds_no_pickle_and_the_weights_are_safetensors(nlp: Any, trained: Path) -> None:
    assert is_pickle(b"\x80\x04}\x94.")
    for path in trained.rglob("*"):
        if path.is_file():
            assert not is_pickle(path.read_bytes()), path
    shim = nlp.get_pipe("elmo").model.shims[0]
    tensors = load(shim.to_bytes())
    expected = nlp.get_pipe("elmo").bilm.state_dict()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())
    assert len(nlp.get_pipe("elmo").to_bytes()) < 1.2 * 4 * sum(t.numel() for t in expected.values()) + 10_000


@pytest.mark.slow
def test_the_largest_public_model_round_trips() -> None:
    bilm = BiLM(BiLMConfig(lstm_dim=4096, projection_dim=512, n_highway=2)).initialize(0)
    assert sum(parameter.numel() for parameter in bilm.parameters()) == 93_600_848
    expected = bilm.encode([["It", "fits", "."]])[0].numpy()
    model, other = BiLM_v1(), BiLM_v1()
    set_bilm(model, bilm)
    other.from_bytes(model.to_bytes())
    np.testing.assert_array_equal(get_bilm(other).encode([["It", "fits", "."]])[0].numpy(), expected)


def test_a_pipeline_with_listeners_goes_through_bytes(nlp: Any) -> None:
    other = blank().from_config(nlp.config).from_bytes(nlp.to_bytes())
    doc = other("Ann went to Rome .")
    assert [(ent.text, ent.label_) for ent in doc.ents] == [("Ann", "PER"), ("Rome", "LOC")]
    np.testing.assert_array_equal(doc._.elmo.layers, nlp("Ann went to Rome .")._.elmo.layers)
