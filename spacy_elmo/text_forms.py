"""The form in which the biLM reads the words of a Doc: as they are written, in lower case, their norms, or another.

Weights read what they were trained on: text in lower case, or with brackets as the Penn Treebank writes them. Whoever
takes words out of a Doc for a biLM takes them from here. Nothing of the package but its errors is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import spacy
from spacy.tokens import Doc

from .errors import ElmoError, shown

# Words of a text in their order -> as many words.
Normalizer: TypeAlias = Callable[[Sequence[str]], list[str]]
# "orth", "lower" or "norm" (spaCy's attributes of a token of that name), or a function.
TextForm: TypeAlias = str | Normalizer

FORMS = {"orth": "ORTH", "lower": "LOWER", "norm": "NORM"}
PTB_BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-"}


@spacy.registry.misc("spacy-elmo.ptb_brackets.v1")
def ptb_brackets() -> Normalizer:
    """Brackets as the Penn Treebank and corpora in its style write them: ``(`` is ``-LRB-``, ``]`` is ``-RSB-``, …"""
    # A partial can be pickled and copied, and carry the block that makes it.
    normalizer = partial(_replaced, table=PTB_BRACKETS)
    normalizer.config = {"@misc": "spacy-elmo.ptb_brackets.v1"}  # type: ignore[attr-defined]
    return normalizer


def _replaced(words: Sequence[str], *, table: dict[str, str]) -> list[str]:
    return [table.get(word, word) for word in words]


def checked_text_form(text: Any) -> TextForm:
    """The form, if it is one. Raises ElmoError for anything else."""
    if (isinstance(text, str) and text in FORMS) or (callable(text) and not isinstance(text, type)):
        return text
    raise ElmoError(
        f"text is one of {', '.join(map(repr, FORMS))}, or a function from words to as many words (a block such as "
        f'{{"@misc": "spacy-elmo.ptb_brackets.v1"}}), not {shown(text)}'
    )


def text_form_named(name: str) -> TextForm:
    """A form by its name: "orth", "lower", "norm", or that of a registered function without arguments.

    RETURNS: the form; a function has the block that makes it in its attribute ``config``.
    Raises ElmoError for anything else.
    """
    if name in FORMS:
        return name
    try:
        form = checked_text_form(spacy.registry.resolve({"text": {"@misc": name}})["text"])
        if isinstance(form, str) or getattr(form, "config", None) is not None:
            return form
        # Not every function takes attributes, and this one is another's.
        named = partial(form)
        named.config = {"@misc": name}  # type: ignore[attr-defined]
        return named
    except ElmoError:
        raise
    except Exception as error:  # what is registered under a name may want arguments, or do anything
        raise ElmoError(
            f"text is one of {', '.join(FORMS)}, or the name of a function registered in @misc that needs no "
            f"arguments, such as spacy-elmo.ptb_brackets.v1, not {name!r}"
        ) from error


def text_form_config(text: TextForm) -> Any:
    """The form as it stands in a config. Raises ElmoError where a function does not say how it is made."""
    config = text if isinstance(text, str) else getattr(text, "config", None)
    if config is None:
        raise ElmoError(
            f"the text form {text!r} has no attribute `config` (the config block that makes it), so it cannot be "
            "written down: give it one"
        )
    return config


def doc_words(doc: Doc, text: TextForm = "orth") -> tuple[list[str], np.ndarray]:
    """The words of a Doc as the biLM reads them: white-space tokens are left out.

    text: the form. A function gets all words of the Doc at once, in their order.
    RETURNS: the n words, and which tokens are white space: bool (n_tokens,).
    Raises ElmoError where a function gives something else than n strings.
    """
    attributes = doc.to_array([FORMS[text] if isinstance(text, str) else "ORTH", "IS_SPACE"])
    is_space = attributes[:, 1].astype(bool)
    # Strings by their numbers: half the time that it takes to make the tokens and ask them.
    strings = doc.vocab.strings
    words = [strings[number] for number in attributes[~is_space, 0].tolist()]
    return (words if isinstance(text, str) else normalized(words, text)), is_space


def normalized(words: list[str], normalizer: Normalizer) -> list[str]:
    """Words as a function has them. Raises ElmoError where it gives something else than as many strings."""
    given = normalizer(list(words))  # a copy: what a function does to its list shall not reach ours
    if not isinstance(given, list) or len(given) != len(words) or not set(map(type, given)) <= {str}:
        count = f"{len(given)} entries" if isinstance(given, list) else f"{given!r:.80}"
        raise ElmoError(f"text: {normalizer!r:.80} must give a list of {len(words)} strings for as many, not {count}")
    return given


def words_key(doc: Doc, text: TextForm) -> bytes:
    """Equal for two Docs where ``doc_words`` is, for the same function and in this process."""
    # The norm may be set on a token (by exceptions of the tokenizer, or by hand); all else follows from the orth.
    values = doc.to_array(["ORTH", "NORM"] if text == "norm" else "ORTH")
    form = text if isinstance(text, str) else str(id(text))
    return form.encode() + b"\0" + values.tobytes()
