"""Data sets of the Hugging Face hub, or in its formats in a folder, through the optional library ``datasets``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import spacy
from spacy.language import Language
from spacy.tokens import Doc

from ..errors import CorpusError
from .documents import entry_text, has_nul, longest_text
from .notes import Damage, Errors, Notes, checked_errors
from .raw_text import checked_limit, limited
from .text_files import clear_errors, cut
from .texts import Text, made_doc


@spacy.registry.readers("spacy-elmo.HuggingFace.v1")
def hugging_face(
    name: str,
    *,
    split: str = "train",
    column: str = "text",
    subset: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
    limit_words: int = 0,
    errors: Errors = "raise",
) -> HuggingFace:
    """Build a reader of a data set that ``datasets.load_dataset`` finds, one Doc a row.

    name: of a data set on the hub, or the path of a folder with files that ``datasets`` knows.
    split: which part, as there: "train", or "train[:10%]".
    column: with the text, or with lists of words, which are kept as they are.
    subset: of a data set that has several (``load_dataset``'s ``name``).
    revision: the commit or tag on the hub. Without one it is what the hub has today, and a corpus that is in the cache
        stays as it was when it was encoded.
    streaming: read over the network as it goes, instead of downloading all of it before.
    limit_words: stop after so many words (white space not counted); 0 reads everything.
    errors: "raise" at a row without text, or with NUL characters, or "skip" it.
    RETURNS: a callable ``nlp -> Iterator[Doc]``.
    RAISES: CorpusError for another value of an argument.
    """
    checked_limit(limit_words)
    checked_errors(errors)
    if not name:
        raise CorpusError("No name of a data set is given: set 'name' of spacy-elmo.HuggingFace.v1")
    return HuggingFace(
        dict(path=name, name=subset, split=split, revision=revision, streaming=streaming),
        column=column,
        limit_words=limit_words,
        errors=errors,
    )


class HuggingFace:
    """Documents of a data set's rows: see `hugging_face`.

    arguments: of ``datasets.load_dataset``.
    notes: what the last reading left out.
    """

    def __init__(self, arguments: dict[str, Any], *, column: str, limit_words: int, errors: Errors) -> None:
        self.arguments = arguments
        self.column = column
        self.limit_words = limit_words
        self.errors = errors
        self.notes = Notes()

    def __call__(self, nlp: Language) -> Iterator[Doc]:
        """Read the rows. RAISES: CorpusError, at once, if ``datasets`` is missing, or does not find the data set."""
        docs = (made_doc(text, nlp) for text in self._read(nlp))
        return limited(docs, self.limit_words) if self.limit_words else docs

    def texts(self, nlp: Language) -> Iterator[Text]:
        """The same documents, those that are plain text not yet tokenised (unless words have to be counted)."""
        return self(nlp) if self.limit_words else self._read(nlp)

    def fingerprint(self) -> str:
        """Identify the data set by name and revision; a folder by its files' names, sizes and times of change."""
        folder = Path(self.arguments["path"])
        with clear_errors(folder):
            files = sorted(file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else []
            status = [[file.as_posix(), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
        arguments = {key: value for key, value in self.arguments.items() if key != "streaming"}
        how = [arguments, self.column, self.limit_words, self.errors]
        return json.dumps(["HuggingFace", how, status], sort_keys=True)

    def _read(self, nlp: Language) -> Iterator[Text]:
        try:
            import datasets
        except ImportError as error:
            raise CorpusError(
                'spacy-elmo.HuggingFace.v1 reads with the library datasets: pip install "spacy-elmo[datasets]"'
            ) from error
        self.notes = Notes()
        # What it raises depends on hub, network, files and format.
        try:
            rows = datasets.load_dataset(**self.arguments)
        except Exception as error:
            raise CorpusError(f"{self._named()} cannot be loaded: {_reason(error)}") from error
        columns = getattr(rows, "column_names", None)
        if columns is not None and self.column not in columns:
            raise CorpusError(f"{self._named()} has no column '{self.column}', but {', '.join(map(str, columns))}")
        return self._documents(rows, longest_text(nlp), Damage(self.errors, self.notes))

    def _documents(self, rows: Iterable[Any], longest: int, damage: Damage) -> Iterator[Text]:
        read = iter(rows)
        number = 0
        while True:
            try:
                row = next(read, None)
            except Exception as error:
                raise CorpusError(f"{self._named()}, after row {number}: cannot be read: {_reason(error)}") from error
            if row is None:
                return
            number += 1
            where = f"{self._named()}, row {number}"
            # Its own field only: a column "tokens" may be a numbering of another's making.
            text = entry_text({self.column: row.get(self.column)}, self.column)
            if text is None or has_nul(text):
                why = f"neither text nor a list of words in '{self.column}'" if text is None else "NUL characters"
                damage.met(f"rows skipped: {why}", where, f"{where}: {why}. Set errors = 'skip' to leave such rows out")
            elif isinstance(text, list):
                yield text
            else:
                if len(text) > longest:
                    self.notes.add(f"texts of more than {longest:,} characters cut at white space", where)
                yield from cut(text, longest)

    def _named(self) -> str:
        return f"The data set '{self.arguments['path']}' ({self.arguments['split']})"


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip(": ")
