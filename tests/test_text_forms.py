from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.tokens import Doc

from spacy_elmo import ElmoError
from spacy_elmo.text_forms import (
    checked_text_form,
    doc_words,
    ptb_brackets,
    text_form_config,
    text_form_named,
    words_key,
)

NLP = spacy.blank("en")
TEXTS = st.text(st.sampled_from("aB. \n\t'ntcıİß東()"), max_size=30) | st.text(max_size=10)


@settings(deadline=None)
@given(TEXTS)
def test_words_are_the_tokens_attributes(text: str) -> None:
    doc = NLP.make_doc(text)
    tokens = [token for token in doc if not token.is_space]
    for form, attribute in (("orth", "orth_"), ("lower", "lower_"), ("norm", "norm_")):
        words, is_space = doc_words(doc, form)
        assert words == [getattr(token, attribute) for token in tokens]
        assert is_space.dtype == bool
        assert is_space.tolist() == [token.is_space for token in doc]


def test_norms_of_the_tokenizer_and_of_a_token() -> None:
    doc = NLP.make_doc("I can't")
    assert doc_words(doc, "norm")[0] == ["i", "can", "not"]
    key = words_key(doc, "norm")
    doc[1].norm_ = "could"
    assert doc_words(doc, "norm")[0] == ["i", "could", "not"]
    assert words_key(doc, "norm") != key
    assert words_key(doc, "lower") == words_key(NLP.make_doc("I can't"), "lower")


def test_a_function_gets_the_words_in_order_and_no_white_space() -> None:
    seen = []

    def numbered(words: Any) -> list[str]:
        seen.append(list(words))
        return [f"{i}{word}" for i, word in enumerate(words)]

    words, is_space = doc_words(NLP.make_doc("Ann \n swims  ."), numbered)
    assert seen == [["Ann", "swims", "."]]
    assert words == ["0Ann", "1swims", "2."]
    np.testing.assert_array_equal(is_space, [False, True, False, True, False])


def test_keys_tell_forms_apart() -> None:
    doc = NLP.make_doc("Ann swims")
    forms = ["orth", "lower", "norm", ptb_brackets(), lambda words: list(words)]
    assert len({words_key(doc, form) for form in forms}) == len(forms)
    assert words_key(doc, "orth") != words_key(NLP.make_doc("ann swims"), "orth")


def test_brackets_of_the_penn_treebank() -> None:
    normalizer = text_form_named("spacy-elmo.ptb_brackets.v1")
    doc = Doc(NLP.vocab, words=["(", ")", "[", "]", "{", "}", "((", "a"])
    right = ["-LRB-", "-RRB-", "-LSB-", "-RSB-", "-LCB-", "-RCB-", "((", "a"]
    for form in (normalizer, copy.deepcopy(normalizer), pickle.loads(pickle.dumps(normalizer))):
        assert doc_words(doc, form)[0] == right
        assert text_form_config(form) == {"@misc": "spacy-elmo.ptb_brackets.v1"}


@pytest.mark.parametrize("given", [["a"], ["a", "b", "c"], ("a", "b"), ["a", 1], None, "ab"])
def test_functions_that_give_something_else(given: Any) -> None:
    with pytest.raises(ElmoError, match="must give a list of 2 strings"):
        doc_words(NLP.make_doc("Ann swims"), lambda words: given)


@pytest.mark.parametrize("text", ["Lower", "", None, 3, str, ["lower"]])
def test_other_forms(text: Any) -> None:
    with pytest.raises(ElmoError, match="text is one of 'orth', 'lower', 'norm'"):
        checked_text_form(text)


@pytest.mark.parametrize("name", ["upper", "spacy-elmo.doc_spans", "spacy.MultiHashEmbed.v2"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(ElmoError, match=f"registered in @misc .* not {name!r}"):
        text_form_named(name)


def test_a_function_that_does_not_say_how_it_is_made() -> None:
    assert text_form_config("norm") == "norm"
    with pytest.raises(ElmoError, match="no attribute `config`"):
        text_form_config(lambda words: list(words))
