"""What reading a text left out or changed: counted, with the first place of each kind; kept with the encoded corpus."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import srsly

from ..errors import CorpusError
from ..weights.files import replacing

Errors = Literal["raise", "skip"]
_FILE = "notes.json"


class Notes:
    """Counts by kind (``"lines skipped: not UTF-8"``), each with the place where it was met first."""

    def __init__(self, found: Mapping[str, tuple[int, str]] | None = None) -> None:
        self.found: dict[str, tuple[int, str]] = dict(found or {})

    def add(self, what: str, where: str, n: int = 1) -> None:
        """Count `n` more of a kind."""
        count, first = self.found.get(what, (0, where))
        self.found[what] = (count + n, first)

    def update(self, other: Notes) -> None:
        """Count what others found."""
        for what, (n, where) in other.found.items():
            self.add(what, where, n)

    def lines(self) -> list[str]:
        """A line of text for each kind."""
        return [f"{n:,} {what} (first: {where})" for what, (n, where) in self.found.items()]

    def save(self, folder: Path) -> None:
        """Keep them in an encoded corpus's folder."""
        with replacing(folder / _FILE) as new:
            srsly.write_json(new, self.found)

    @classmethod
    def load(cls, folder: Path) -> Notes:
        """Those of an encoded corpus's folder; none where there are none."""
        try:
            return cls({what: (int(n), str(where)) for what, (n, where) in srsly.read_json(folder / _FILE).items()})
        except (OSError, ValueError, TypeError, AttributeError):
            return cls()


class Damage:
    """Decides what happens to text that is not as it should be: refused, or left out and noted."""

    def __init__(self, errors: Errors, notes: Notes) -> None:
        self.errors = errors
        self.notes = notes

    def met(self, what: str, where: str, message: str, cause: BaseException | None = None) -> None:
        """Raise CorpusError with `message`, or note `what`. Returns only where it is to be left out."""
        if self.errors == "raise":
            raise CorpusError(message) from cause
        self.notes.add(what, where)


def checked_errors(errors: str) -> None:
    """RAISES: CorpusError unless it is "raise" or "skip"."""
    if errors not in ("raise", "skip"):
        raise CorpusError(f"errors is {errors!r}: give 'raise' to stop at text that is damaged, or 'skip' to go on")
