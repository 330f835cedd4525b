"""The reader of raw text files: a callable ``nlp -> Iterator[Doc]``, one Doc a document."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import spacy
from spacy.attrs import IS_SPACE  # type: ignore[import-not-found]
from spacy.language import Language
from spacy.tokens import Doc

from ..errors import CorpusError
from .documents import Format, Layout, Line, read_documents
from .notes import Damage, Errors, Notes, checked_errors
from .text_files import PACKED, STDIN, LongLines, clear_errors, is_readable, spooled_stdin
from .texts import Text, full_text, made_doc

# Raised when files are read by other rules: another corpus.
_RULES = 2
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # the last: a link that leads to itself
_KINDS = f".txt, .jsonl, .conllu (plain or followed by {', '.join(PACKED)}), .spacy"


@spacy.registry.readers("spacy-elmo.RawText.v1")
def raw_text(
    path: str | Path | None,
    *,
    limit_words: int = 0,
    format: Format | None = None,
    line: Line = "paragraph",
    pretokenized: bool = False,
    field: str = "text",
    errors: Errors = "raise",
    long_lines: LongLines = "cut",
) -> RawText:
    """Build a reader of text files.

    path: a file, a folder (searched recursively for the known suffixes), a glob pattern (``**`` goes into folders), or
        ``-``, the standard input. Several files are read in sorted order.
    limit_words: stop after so many words (white space not counted); 0 reads everything.
    format: what the files are; null: what their suffixes say, ``.txt``, ``.jsonl``, ``.conllu`` (each plain or followed
        by ``.gz``, ``.bz2``, ``.xz`` or ``.zst``) or ``.spacy``. Given, every file is read, whatever its name (the
        suffix still says how it is packed). The standard input is "txt" unless another is given.
    line: what a line of a txt file is. "paragraph": some sentences; a blank line ends a document, and so does the first
        line end past 100,000 characters. "document": all of it. "sentence": one sentence, whatever its punctuation;
        documents as with "paragraph".
    pretokenized: lines of txt files are words with spaces between them, and no tokenizer is run.
    field: of a JSON object, with the text, or with a list of words.
    errors: what happens to lines and files that are damaged (not UTF-8, NUL characters, no valid JSON, no words at all,
        a packed file that ends too early, ...). "raise": the first one ends the reading. "skip": they are left out.
    long_lines: what happens to lines, and texts of JSON objects, of more than a million characters (or
        ``nlp.max_length``): "cut" them at white space, "skip" them, or "raise".
    RETURNS: a callable ``nlp -> Iterator[Doc]``.
    RAISES: CorpusError for another value of an argument.
    """
    for name, value, kind in (("line", line, Line), ("long_lines", long_lines, LongLines), ("format", format, Format)):
        if value not in get_args(kind) and not (name == "format" and value is None):
            raise CorpusError(f"{name} is {value!r}: give one of {', '.join(map(repr, get_args(kind)))}")
    layout = Layout(line=line, pretokenized=pretokenized, field=field, long_lines=long_lines)
    return RawText(path, limit_words=limit_words, format=format, layout=layout, errors=errors)


class RawText:
    """Documents of text files, tokenised by ``nlp.make_doc``.

    - txt: UTF-8, see `raw_text` for what a line is.
    - jsonl: a document a line, ``{"text": "..."}`` or ``{"tokens": ["...", ...]}``; tokens are kept as they are.
    - conllu: words and sentences as annotated (rows of multiword tokens and empty nodes left out).
    - spacy: spaCy's DocBin; tokens are kept as they are, and sentence boundaries where they are set. Such a file is
      loaded whole.

    notes: what the last reading left out or cut.
    """

    def __init__(
        self,
        path: str | Path | None,
        *,
        limit_words: int = 0,
        format: Format | None = None,
        layout: Layout | None = None,
        errors: Errors = "raise",
    ) -> None:
        checked_limit(limit_words)
        checked_errors(errors)
        self.path = path
        self.limit_words = limit_words
        self.format = format
        self.layout = layout or Layout()
        self.errors = errors
        self.notes = Notes()

    def __call__(self, nlp: Language) -> Iterator[Doc]:
        """Read the files.

        nlp: its tokenizer and vocab are used, no component is run.
        RETURNS: an iterator of Docs, one a document. Files are looked up at once, read as the iterator goes.
        RAISES: CorpusError if nothing is found, or may not be looked for; while iterating, if a file is damaged (with
            file and line) and errors are not skipped, or no file holds any text.
        """
        docs = (made_doc(text, nlp) for text in self._read(nlp))
        return limited(docs, self.limit_words) if self.limit_words else docs

    def texts(self, nlp: Language) -> Iterator[Text]:
        """The same documents, those that are plain text not yet tokenised (unless words have to be counted)."""
        return self(nlp) if self.limit_words else self._read(nlp)

    def files(self) -> list[Path]:
        """Find the files that are read, sorted.

        RAISES: CorpusError if there is none or one of unknown kind, or they may not be looked at.
        """
        if str(self.path) == STDIN:
            files = [spooled_stdin()]
        elif self.path is None or not str(self.path):
            raise CorpusError(
                "No path of raw text is given: set 'path' of spacy-elmo.RawText.v1 to a file, folder or glob"
            )
        else:
            with clear_errors(self.path):
                files = _find_files(self.path, self.format)
        for file in files if self.layout.pretokenized else ():
            if (self.format or _kind(file)) != "txt":
                raise CorpusError(f"{file} is no .txt file, plain or packed: only these can be pretokenized")
        return files

    def fingerprint(self) -> str:
        """Identify the files as they are now (names, sizes, times of change) without reading them, and how they are
        read; the standard input by its content.
        """
        about: list[list[str | int]]
        if str(self.path) == STDIN:
            about = [[STDIN, _digest(spooled_stdin())]]
        else:
            files = self.files()
            with clear_errors(files[0]):
                about = [[file.as_posix(), (status := file.stat()).st_size, status.st_mtime_ns] for file in files]
        how = [self.format, *vars(self.layout).values(), self.errors]
        return json.dumps(["RawText", _RULES, self.limit_words, how, about])

    def _read(self, nlp: Language) -> Iterator[Text]:
        paths = self.files()
        self.notes = Notes()
        damage = Damage(self.errors, self.notes)
        for path in paths:
            with clear_errors(path):
                empty = not path.stat().st_size
            if empty and self.errors == "raise":  # said before hours of reading
                raise _no_text(path)
        return self._documents(paths, nlp, damage)

    def _documents(self, paths: list[Path], nlp: Language, damage: Damage) -> Iterator[Text]:
        empty = True
        for path in paths:
            blank = True
            if not is_readable(path, damage):
                continue
            kind = self.format or ("txt" if str(self.path) == STDIN else _kind(path))
            assert kind is not None  # `files` would have said so
            for text in read_documents(path, kind, nlp, self.layout, damage):
                blank = blank and not full_text(text).strip()
                yield text
            if blank:
                error = _no_text(path)
                damage.met("files without text", str(path), str(error))
            empty = empty and blank
        if empty:
            raise _no_text(*paths)


def limited(docs: Iterable[Doc], n_words: int) -> Iterator[Doc]:
    """Yield Docs until they hold `n_words` tokens that are not white space; the last Doc is cut there."""
    for doc in docs:
        is_word = doc.to_array([IS_SPACE]).ravel() == 0
        n_found = int(np.count_nonzero(is_word))
        if n_found >= n_words:
            yield doc if n_found == n_words else doc[: int(np.flatnonzero(is_word)[n_words - 1]) + 1].as_doc()
            return
        n_words -= n_found
        yield doc


def checked_limit(limit_words: int) -> None:
    """RAISES: CorpusError for a negative number."""
    if limit_words < 0:
        raise CorpusError(f"limit_words is {limit_words}: give the number of words to read, or 0 for all")


def _find_files(path: str | Path, format: Format | None) -> list[Path]:
    given = Path(os.path.expanduser(path))  # where there is no such user, pathlib's own raises what is no OSError
    if glob.has_magic(str(given)) and "\0" not in str(given) and not os.path.exists(given):
        found = [file for name in glob.glob(str(given), recursive=True) if stat.S_ISREG(_mode(file := Path(name)))]
        if not found:
            raise CorpusError(f"The pattern '{given!s:.500}' matches no file: check it (working folder: {Path.cwd()})")
    elif stat.S_ISDIR(mode := _mode(given)):
        os.scandir(given).close()  # whether it may be read: rglob passes over what may not
        found = [file for file in given.rglob("*") if _is_wanted(file, format) and stat.S_ISREG(_mode(file))]
        if not found:
            raise CorpusError(f"The folder '{given}' holds no raw text: put files of these kinds there: {_KINDS}")
    elif stat.S_ISREG(mode):
        found = [given]
    elif mode:
        raise CorpusError(f"'{given}' is a device or a pipe: give a file, or '-' for the standard input")
    else:
        raise CorpusError(f"There is no file or folder '{given!s:.500}': check the path (working folder: {Path.cwd()})")
    for file in found:
        if format is None and _kind(file) is None:
            raise CorpusError(
                f"'{file}' is of no kind that can be read: rename or convert it to one of {_KINDS}, or say "
                "with 'format' what it is"
            )
    return sorted(found, key=lambda file: file.as_posix())


def _mode(path: Path) -> int:
    """What lies under a path, as `stat` has it; 0: nothing. RAISES: OSError if that cannot be told."""
    try:
        return path.stat().st_mode  # pathlib's is_file and the like take errors for a no, which ones by its version
    except ValueError:  # a NUL character: no file has such a name
        return 0
    except OSError as error:
        if error.errno in _NOWHERE:
            return 0
        raise


def _is_wanted(file: Path, format: Format | None) -> bool:
    """Whether a file of a folder is text: of a known kind, or any but hidden ones where the kind is given."""
    return _kind(file) is not None if format is None else not file.name.startswith(".")


def _kind(path: Path) -> Format | None:
    name = path.name.lower()
    if name.endswith(".spacy"):
        return "spacy"
    for packed in PACKED:
        name = name.removesuffix(packed)
    return next((kind for kind in get_args(Format) if kind != "spacy" and name.endswith(f".{kind}")), None)


def _no_text(*paths: Path) -> CorpusError:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    advice = "Remove it, or set errors = 'skip'" if len(paths) == 1 else "Check what the path names"
    return CorpusError(f"There is no text in {paths[0]}{more}: empty, or white space only. {advice}")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
