"""The pipeline whose tokenizer cuts raw text into words, for pretraining and for vectors of text files.

Nothing of the package but its errors is imported.
"""

from __future__ import annotations

from typing import Any

import spacy
from spacy.language import Language

from .errors import ElmoError

# Where spaCy's own message has no line that every shell takes.
_INSTALL = {lang: f'pip install "spacy[{lang}]"' for lang in ("ja", "ko", "th")}


def blank_pipeline(lang: str, tokenizer: dict[str, Any] | None = None) -> Language:
    """A pipeline without components, whose tokenizer works.

    tokenizer: a block of ``@tokenizers``, as in spaCy's [nlp.tokenizer]; None: the language's own.
    Raises ElmoError for a language or a tokenizer that does not work, with the line that installs what it needs.
    """
    try:
        nlp = spacy.blank(lang, config={"nlp": {"tokenizer": tokenizer}} if tokenizer else {})
        nlp.make_doc("a")  # some load what they need at the first text
    except Exception as error:  # what a language needs, and raises without it, is its own matter
        which = f"the language {lang!r}" if tokenizer is None else f"the language {lang!r} and {tokenizer}"
        install = f". Install it: {_INSTALL[lang]}" if isinstance(error, ImportError) and lang in _INSTALL else ""
        raise ElmoError(f"spaCy has no tokenizer for {which} here: {error}{install}") from error
    return nlp
