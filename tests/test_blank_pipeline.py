"""The tokenizer of a language, or one clear error."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from spacy_elmo.blank_pipeline import blank_pipeline
from spacy_elmo.errors import ElmoError


@pytest.mark.parametrize(("lang", "words"), [("en", ["do", "n't", "go"]), ("de", ["don't", "go"])])
def test_words_are_those_of_the_language(lang: str, words: list[str]) -> None:
    nlp = blank_pipeline(lang)
    assert nlp.lang == lang
    assert nlp.pipe_names == []
    assert [token.text for token in nlp.make_doc("don't go")] == words


def test_another_tokenizer() -> None:
    nlp = blank_pipeline("zh", {"@tokenizers": "spacy.Tokenizer.v1"})
    assert [token.text for token in nlp.make_doc("我 爱")] == ["我", "爱"]


@pytest.mark.parametrize("lang", ["zzz", "", "en_core_web_sm"])
def test_no_such_language(lang: str) -> None:
    with pytest.raises(ElmoError, match=f"^spaCy has no tokenizer for the language '{lang}' here: "):
        blank_pipeline(lang)


@pytest.mark.parametrize(("lang", "needs"), [("ja", "sudachipy"), ("ko", "mecab_ko"), ("th", "pythainlp")])
def test_a_language_that_needs_a_package(lang: str, needs: str) -> None:
    if importlib.util.find_spec(needs):
        pytest.skip(f"{needs} is installed")
    with pytest.raises(ElmoError, match=rf"language '{lang}' here: .*pip install"):
        blank_pipeline(lang)


@pytest.mark.parametrize(
    "tokenizer", [{"@tokenizers": "nobodys.Tokenizer.v1"}, {"@tokenizers": "spacy.Tokenizer.v1", "x": 1}]
)
def test_a_tokenizer_that_does_not_work(tokenizer: dict[str, Any]) -> None:
    with pytest.raises(ElmoError, match=r"^spaCy has no tokenizer for the language 'en' and \{'@tokenizers'"):
        blank_pipeline("en", tokenizer)
