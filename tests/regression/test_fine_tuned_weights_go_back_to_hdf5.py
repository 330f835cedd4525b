"""Weights that were fine-tuned inside a component could not be taken out again for other programs."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import spacy

from spacy_elmo import BiLM, load_bilm
from spacy_elmo.weights import save_bilm_hdf5
from tests.pipeline.toys import blank, examples, getter, listener, tagger_config

pytest.importorskip("h5py")


def test_fine_tuned_weights_exported_and_loaded_give_equal_vectors(bilm: BiLM, tmp_path: Path) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", config={"frozen": False}).load_weights(copy.deepcopy(bilm))
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(getter(nlp))
    before = nlp("Ann went to Rome .")._.elmo.layers.copy()
    for _ in range(5):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    tuned = nlp("Ann went to Rome .")._.elmo.layers
    assert np.abs(tuned - before).max() > 1e-3
    save_bilm_hdf5(nlp.get_pipe("elmo").bilm, tmp_path)
    other = blank()
    other.add_pipe("elmo").load_weights(tmp_path)
    np.testing.assert_allclose(other("Ann went to Rome .")._.elmo.layers, tuned, atol=1e-6)
    assert load_bilm(tmp_path).config == bilm.config
