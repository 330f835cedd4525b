"""A pipeline over weights of ELMoForManyLangs: loaded, stored, listened to and fine-tuned like any others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy

from spacy_elmo import load_bilm
from tests.pipeline.toys import blank, examples, getter, listener, tagger_config
from tests.reference.numpy_many_langs import NumpyManyLangs
from tests.weights.many_langs_folder import write_model

TEXT = "The cat , naïve . 日本語 the unseen 🦆🦆 <bos> !"


@pytest.fixture
def reference(tmp_path: Path) -> NumpyManyLangs:
    return write_model(tmp_path / "weights")


@pytest.fixture
def nlp(reference: NumpyManyLangs, tmp_path: Path) -> Any:
    nlp = blank()
    nlp.add_pipe("elmo", config={"span_getter": {"@misc": "spacy-elmo.doc_spans.v1"}}).load_weights(
        tmp_path / "weights"
    )
    return nlp


def test_vectors_are_those_of_the_reference(nlp: Any, reference: NumpyManyLangs) -> None:
    doc = nlp(TEXT)
    expected = reference.layers([token.text for token in doc])
    assert doc._.elmo.layers.shape == (3, len(doc), 10)
    np.testing.assert_allclose(doc._.elmo.layers, expected, rtol=0, atol=2e-6)


def test_a_saved_pipeline_needs_the_folder_no_more(nlp: Any, tmp_path: Path) -> None:
    expected = nlp(TEXT)._.elmo.layers
    data = nlp.to_bytes()
    nlp.to_disk(tmp_path / "pipeline")
    (tmp_path / "weights").rename(tmp_path / "gone")
    loaded = spacy.load(tmp_path / "pipeline")
    other = blank()
    other.add_pipe("elmo", config={"span_getter": {"@misc": "spacy-elmo.doc_spans.v1"}})
    pipelines: list[Any] = [loaded, other.from_bytes(data)]
    for pipeline in pipelines:
        np.testing.assert_array_equal(pipeline(TEXT)._.elmo.layers, expected)
        bilm = pipeline.get_pipe("elmo").bilm
        assert bilm.config == load_bilm(tmp_path / "gone").config
        assert bilm.characters == load_bilm(tmp_path / "gone").characters


def test_a_component_listens_and_the_bilm_learns(reference: NumpyManyLangs, tmp_path: Path) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", config={"frozen": False})
    nlp.config["initialize"]["components"]["elmo"] = {"weights": str(tmp_path / "weights")}
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(getter(nlp))
    bilm = nlp.get_pipe("elmo").bilm
    before = {name: value.clone() for name, value in bilm.state_dict().items()}
    vectors = nlp(TEXT)._.elmo.layers.copy()
    losses = []
    for _ in range(8):
        step: dict[str, float] = {}
        nlp.update(examples(nlp), sgd=optimizer, losses=step)
        losses.append(step["tagger"])
    assert losses[-1] < losses[0]
    same = [name for name, value in bilm.state_dict().items() if (value == before[name]).all()]
    assert not same
    assert np.abs(nlp(TEXT)._.elmo.layers - vectors).max() > 1e-3
