"""Tokens that are objects and not strings failed deep in the character encoder, or were read as unknown words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from spacy.tokens import Doc

from spacy_elmo import BiLM, BiLMConfig, ElmoError


@pytest.fixture(scope="module")
def word_table() -> BiLM:
    """A biLM that looks its words up."""
    config = BiLMConfig(lstm_dim=8, projection_dim=4, filters=None, n_words=5)
    return BiLM(config, vocabulary=["<S>", "</S>", "<UNK>", "a", "b"]).initialize(0)


def test_the_component_reads_the_text_of_tokens(nlp: Any, bilm: BiLM) -> None:
    doc = nlp(Doc(nlp.vocab, words=["New York", "A", "a"]))
    np.testing.assert_allclose(doc._.elmo.layers, bilm.encode([["New York", "A", "a"]])[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("table", [False, True], ids=["characters", "word table"])
@pytest.mark.parametrize("kind", ["spaCy tokens", "numbers", "bytes", "None", "lists"])
def test_encode_says_that_words_are_strings(nlp: Any, bilm: BiLM, word_table: BiLM, kind: str, table: bool) -> None:
    words: dict[str, list[Any]] = {
        "spaCy tokens": list(nlp.make_doc("a b")),
        "numbers": [1, 2],
        "bytes": [b"a", b"b"],
        "None": ["a", None],
        "lists": [["a", "b"]],
    }
    for read in (word_table if table else bilm).encode, word_table if table else bilm:
        with pytest.raises(ElmoError, match="words are str"):
            read([words[kind]])
