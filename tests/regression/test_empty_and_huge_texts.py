"""Empty texts misaligned or crashed others' components; a token of 50,000 characters exhausted their memory."""

from __future__ import annotations

import copy
import tracemalloc
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc
from spacy.training import Example

from spacy_elmo import BiLM
from tests.pipeline.toys import blank, examples, getter, listener, ner_config, tagger_config, with_elmo


def two_listeners(bilm: BiLM, **config: Any) -> Any:
    nlp = blank()
    nlp.add_pipe("elmo", config=config).load_weights(copy.deepcopy(bilm))
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.add_pipe("ner", config=ner_config(with_elmo()))
    return nlp


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_empty_texts_between_others_in_a_pipeline_that_listens(bilm: BiLM, batch_size: int) -> None:
    nlp = two_listeners(bilm)
    nlp.initialize(getter(nlp))
    docs = list(nlp.pipe(["", "a", "", "b"], batch_size=batch_size))
    assert [doc.text for doc in docs] == ["", "a", "", "b"]
    assert [doc._.elmo.layers.shape for doc in docs] == [(3, 0, 16), (3, 1, 16), (3, 0, 16), (3, 1, 16)]
    assert [[token.tag_ for token in doc] for doc in docs] == [
        [t.tag_ for t in nlp(text)] for text in ["", "a", "", "b"]
    ]
    for doc, text in zip(docs, ["", "a", "", "b"], strict=True):
        np.testing.assert_allclose(doc._.elmo.layers, nlp(text)._.elmo.layers, atol=1e-5)
    assert [doc._.elmo.layers.shape for doc in nlp.pipe(["", ""], batch_size=batch_size)] == [(3, 0, 16)] * 2


@pytest.mark.parametrize("annotates", [[], ["elmo"]])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("texts", [[""], ["", ""], [" ", "\n\n"], ["", " "]])
def test_a_batch_without_a_word_is_an_update_that_harms_nothing(
    bilm: BiLM, texts: list[str], frozen: bool, annotates: list[str]
) -> None:
    nlp = two_listeners(bilm, frozen=frozen)
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(getter(nlp))
    before = {name: value.clone() for name, value in nlp.get_pipe("elmo").loaded_bilm.state_dict().items()}
    batch = [Example.from_dict(nlp.make_doc(text), {}) for text in texts]
    losses = nlp.update(batch, sgd=optimizer, losses={}, annotates=annotates)
    assert np.isfinite(list(losses.values())).all()
    for name, value in nlp.get_pipe("elmo").loaded_bilm.state_dict().items():
        assert torch.equal(value, before[name]), name  # nothing was read, so there is nothing to learn
    losses = nlp.update([*batch, *examples(nlp)], sgd=optimizer, losses={}, annotates=annotates)
    assert losses["tagger"] > 0.0
    for mix in (one.layers[0] for one in nlp.get_pipe("elmo").listeners):
        assert np.isfinite(mix.get_param("scalars")).all()
        assert np.isfinite(mix.get_param("gamma")).all()


def test_a_token_of_fifty_thousand_characters_costs_no_memory_of_its_length(nlp: Any) -> None:
    words = ["é" * 50_000, "Ann", "went"]
    doc = Doc(nlp.vocab, words=words)
    nlp(Doc(nlp.vocab, words=["a", *words[1:]]))  # what is made once
    tracemalloc.start()
    nlp.get_pipe("elmo")(doc)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert doc._.elmo.layers.shape == (3, 3, 16)
    assert np.isfinite(doc._.elmo.layers).all()
    # Its text is 100,000 bytes; a row of ids, a float for each of 50,000 characters, would be megabytes.
    assert peak < 400_000
    assert [token.text for token in nlp(doc)] == words
