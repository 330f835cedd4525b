"""Documents as readers give them, and the pipeline that tokenises them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import get_package_path, is_package, load_config

from ..errors import CorpusError, PretrainingError

if TYPE_CHECKING:
    from .config import NlpSettings

# A document as text, or as tokens (white space among them) that are kept as they are, or as a Doc: one that has
# sentence boundaries of its own.
Text = str | list[str] | Doc

_QUOTED = 60
# Where spaCy's own message has no line to copy.
_INSTALL = {lang: f'pip install "spacy[{lang}]"' for lang in ("ja", "ko", "th")}


def blank_pipeline(lang: str, tokenizer: dict[str, Any] | None = None) -> Language:
    """The pipeline whose tokenizer cuts text into words.

    tokenizer: a block of ``@tokenizers``, as in spaCy's [nlp.tokenizer]; None: the language's own.
    Raises PretrainingError for a language or a tokenizer that does not work, with the line that installs what it needs.
    """
    try:
        nlp = spacy.blank(lang, config={"nlp": {"tokenizer": tokenizer}} if tokenizer else {})
        nlp.make_doc("a")  # some load what they need at the first text
    except Exception as error:  # what a language needs, and raises without it, is its own matter
        which = f"the language {lang!r}" if tokenizer is None else f"the language {lang!r} and {tokenizer}"
        install = f". Install it: {_INSTALL[lang]}" if isinstance(error, ImportError) and lang in _INSTALL else ""
        raise PretrainingError(f"spaCy has no tokenizer for {which} here: {error}{install}") from error
    return nlp


def pipeline(settings: NlpSettings) -> Language:
    """The pipeline that [nlp] of a config describes. Raises PretrainingError if it does not work."""
    if settings.pipeline is None:
        return blank_pipeline(settings.lang, settings.tokenizer)
    if settings.tokenizer is not None:
        raise PretrainingError("[nlp] has both a pipeline and a tokenizer: a pipeline brings its own. Remove one")
    nlp = _saved_pipeline(settings.pipeline)
    if nlp.lang != settings.lang:
        raise PretrainingError(
            f"nlp.lang is {settings.lang!r}, but the pipeline {settings.pipeline!r} is of {nlp.lang!r}: "
            f"set nlp.lang to {nlp.lang!r}"
        )
    return nlp


def _saved_pipeline(name: str) -> Language:
    """A pipeline's tokenizer and vocab: its components and word vectors are left on the disk."""
    try:
        if is_package(name):
            package = get_package_path(name)
            configs = sorted(package.glob("*/config.cfg"))
            if not configs:
                raise OSError(f"no config.cfg in {package}")
            components = load_config(configs[0]).get("components", {})
        else:
            components = load_config(f"{name}/config.cfg").get("components", {})
        nlp = spacy.load(name, exclude=[*components, "vectors"])
        nlp.make_doc("a")
    except Exception as error:  # anybody's pipeline
        raise PretrainingError(f"nlp.pipeline: {name!r} cannot be loaded: {error}") from error
    return nlp


def made_doc(text: Text, nlp: Language) -> Doc:
    """The Doc of a document. Raises CorpusError, quoting the text, if the tokenizer fails."""
    if isinstance(text, Doc):
        return text
    if isinstance(text, list):
        return Doc(nlp.vocab, words=[token for token in text if token])
    try:
        return nlp.make_doc(text)
    except Exception as error:  # tokenizers may be anybody's
        raise CorpusError(f"the tokenizer failed on the text that begins {text[:_QUOTED]!r}: {error!r}") from error


def is_blank(text: Text) -> bool:
    """Whether a document holds no words."""
    if isinstance(text, Doc):
        text = text.text
    return not text or text.isspace() if isinstance(text, str) else all(not word or word.isspace() for word in text)


def has_nul(text: str | list[str]) -> bool:
    """Whether a NUL character is in it."""
    return "\0" in text if isinstance(text, str) else any("\0" in word for word in text)


def made_docs(texts: Iterator[Text], nlp: Language) -> Iterator[Doc]:
    """The Docs of documents."""
    return (made_doc(text, nlp) for text in texts)
