"""How the commands end when something is wrong."""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from wasabi import msg

from ..errors import ElmoError


@contextmanager
def clean_errors() -> Iterator[None]:
    """Print an error of ours, or of files, as a message instead of a traceback, and exit with status 1.

    What the terminal's encoding cannot show is printed as ``?`` meanwhile.
    """
    stream = sys.stdout
    errors = stream.errors
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    try:
        yield
    except (ElmoError, OSError) as error:
        if isinstance(error, OSError) and error.errno == errno.EPIPE:
            raise  # nobody reads any more: `elmo perplexity ... | head`
        if not getattr(error, "told", False):
            msg.fail(_printable(str(error)))
        raise typer.Exit(1) from None
    finally:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def warn(text: str) -> None:
    """Print what went well, but not as one might think."""
    msg.warn(_printable(text))


def _printable(text: str) -> str:
    # wasabi encodes with the terminal's encoding and decodes as UTF-8: both know ASCII.
    encoding = (sys.stdout.encoding or "utf8").lower()
    return text if encoding in ("utf-8", "utf8") else text.encode("ascii", "replace").decode()
