"""How the commands end when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from wasabi import msg

from ..errors import ElmoError


@contextmanager
def clean_errors() -> Iterator[None]:
    """Print an error of ours as a message instead of a traceback, and exit with status 1."""
    try:
        yield
    except ElmoError as error:
        msg.fail(str(error))
        raise typer.Exit(1) from None
