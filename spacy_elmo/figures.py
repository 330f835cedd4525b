"""What the package's pictures share: matplotlib, when it is needed, and files that come out the same each time."""

from __future__ import annotations

import io
from typing import Any

from .errors import ElmoError


def new_figure(width: float, height: float, *, what: str) -> Any:
    """A figure of matplotlib, without a window.

    width, height: in inches. what: is drawn, for the error.
    Raises ElmoError where matplotlib is missing.
    """
    try:
        import matplotlib  # noqa: F401 - its parts may be loaded already where it is said to be missing
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ElmoError(f'{what} needs matplotlib: pip install "spacy-elmo[plot]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def picture(figure: Any, kind: str) -> bytes:
    """A figure as the contents of a file, "svg" or "png". The same one gives the same bytes: no date, no random id."""
    from matplotlib import rc_context

    data = io.BytesIO()
    with rc_context({"svg.hashsalt": "spacy-elmo"}):
        figure.savefig(data, format=kind, metadata={"Date": None} if kind == "svg" else None)
    return data.getvalue()
