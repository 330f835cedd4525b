"""`retokenizer.merge` and `Doc.from_docs` leave a Doc without rows for its tokens: whoever listens must still read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from spacy.language import Language
from spacy.tokens import Doc

from spacy_elmo import BiLM, ElmoError
from tests.pipeline.toys import blank, getter, listener, tagger_config


@Language.component("test_merge_names")
def merge_names(doc: Doc) -> Doc:
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[0:2])
    return doc


@pytest.mark.parametrize("store", ["layers", "mean", "none"])
def test_a_merge_before_a_listener_gives_it_vectors_of_the_merged_tokens(bilm: BiLM, store: str) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", config={"store": store}).load_weights(bilm)
    nlp.add_pipe("test_merge_names")
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.initialize(getter(nlp))
    doc = nlp("New York slept .")
    assert [token.text for token in doc] == ["New York", "slept", "."]
    assert all(token.tag_ for token in doc)
    (one,) = nlp.get_pipe("elmo").listeners
    expected = bilm.encode([["New York", "slept", "."]])[0].numpy().mean(axis=0)
    np.testing.assert_allclose(one.predict([doc])[0], expected, atol=1e-5)
    if store == "none":
        assert doc._.elmo is None
    else:
        with pytest.raises(ElmoError, match="4 rows on a Doc that now has 3 tokens"):
            _ = doc._.elmo.mean
        nlp.get_pipe("elmo")(doc)
        assert doc._.elmo.mean.shape == (3, 16)


def test_docs_put_together_are_read_anew(nlp: Any) -> None:
    parts = list(nlp.pipe(["Ann went to Rome .", "", "I live in Paris ."]))
    with pytest.warns(UserWarning, match="W102"):
        whole = Doc.from_docs(parts)
    assert whole._.elmo is None
    whole = nlp.get_pipe("ner")(whole)  # the listener pulls what is not there
    assert [ent.text for ent in whole.ents] == ["Ann", "Rome", "Paris"]
    nlp.get_pipe("elmo")(whole)
    expected = np.concatenate([part._.elmo.layers for part in parts], axis=1)  # each sentence as it was alone
    np.testing.assert_allclose(whole._.elmo.layers, expected, atol=1e-5)
