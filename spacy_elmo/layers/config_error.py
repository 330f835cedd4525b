"""What a config lacks or has wrong, as an error that spaCy's commands show without a traceback."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any

from thinc.api import ConfigValidationError

from ..errors import ElmoError, WeightsError


class ElmoConfigError(ConfigValidationError, WeightsError):
    """Weights that a component has not got, or that its config names and that cannot be taken; a listener without any.

    ``spacy train``, ``spacy init nlp``, ``spacy assemble`` and others print errors of this kind as one message and exit
    with status 1. In Python it is a WeightsError like any other.
    """

    def __init__(self, message: str) -> None:
        super().__init__(title="The weights of ELMo", desc=message)
        self.args = (message,)  # the message alone, without the title and blank lines of a command's output

    @classmethod
    def from_error(cls, err: ConfigValidationError, **changes: Any) -> ConfigValidationError:  # type: ignore[override]
        """As spaCy's commands have it: the same with another title, say."""
        return ConfigValidationError.from_error(err, **changes)


def is_number(value: object, *, least: float = 0.0, below: float = math.inf) -> bool:
    """Whether a value of a config is a finite number of that range. (A string such as "0.1" passes spaCy's check.)"""
    return isinstance(value, Real) and not isinstance(value, bool) and least <= float(value) < below


@contextmanager
def config_errors(where: str = "") -> Iterator[None]:
    """Make errors of ours such errors. where: what they begin with then."""
    try:
        yield
    except ElmoConfigError:
        raise
    except ElmoError as error:
        raise ElmoConfigError(f"{where}{error}") from error
