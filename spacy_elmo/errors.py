"""Exceptions of the package. Each says what was wrong, where, and what to do."""

from __future__ import annotations

import re

_LONGEST = 1500  # characters of a message
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class ElmoError(ValueError):
    """Base of all errors raised on purpose by this package.

    told (bool): another of the processes that train together says what was wrong.
    """

    told = False


class WeightsError(ElmoError):
    """A file of weights that is missing, broken, at odds with its options, or cannot be written.

    The message is one line, whatever names and values of a file are in it: control characters are escaped, and of what
    is longer than 1,500 characters the middle is left out.
    """

    def __init__(self, message: str) -> None:
        message = _CONTROL.sub(lambda found: repr(found[0])[1:-1], message)
        if len(message) > _LONGEST:
            message = f"{message[:1000]} ... {message[-400:]}"
        super().__init__(message)


class NoSentencesError(ElmoError):
    """A Doc without the sentence boundaries that a span getter reads."""


class CorpusError(ElmoError):
    """Raw text that cannot be read."""


class PretrainingError(ElmoError):
    """Pretraining cannot start or go on."""


def shown(value: object, longest: int = 80) -> str:
    """A wrong value in a message, where it is on one line and has an end."""
    try:
        return " ".join(f"{value!r:.{longest}}".split())
    except Exception:  # a number of thousands of digits has no repr, and an object's may do anything
        return f"something of type {type(value).__name__}"
