"""Vocabulary files: the words of an output softmax, or of the rows of a word table.

`vocabulary.txt` is bilm-tf's format, one word a line; `vocabulary.json` a list of strings, for words that no line
can hold. Archives of the NLPL repository have a `vocab.txt.gz`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..bilm.characters import BOS, EOS, UNK
from ..errors import WeightsError
from .files import LARGEST_TEXT, as_path, decoded, is_hidden, names_in, read_gzip, read_json, read_text, write_files
from .layout import listed

# What may lie beside weights that read words, in the order in which they are tried.
VOCABULARY_NAMES = ("vocabulary.txt", "vocabulary.json", "vocab.txt", "vocab.txt.gz")
# That of a softmax of ours.
SOFTMAX_VOCABULARY_NAME = VOCABULARY_NAMES[0]
# Where they stand there, in our own format.
SPECIAL_WORDS = {BOS: 0, EOS: 1, UNK: 2}
# bilm-tf's public vocabulary has this line, which is no word and has no row.
_NO_WORD = "!!!MAXTERMID"


def save_vocabulary(words: Sequence[str], path: Path | str) -> None:
    """Write the vocabulary of an output layer, one word a line.

    words: ``<S>``, ``</S>`` and ``<UNK>``, then the others in descending frequency, each once.
    Raises WeightsError for other first words, a repeated word, a word that no line can hold, or a file that cannot be
    written; then an older one stays.
    """
    check_vocabulary(words, as_path(path))
    write_files({as_path(path): word_lines(words, as_path(path))})


def load_vocabulary(path: Path | str, n_words: int | None = None) -> list[str]:
    """The words that `save_vocabulary` wrote, or the vocabulary of bilm-tf's training.

    n_words: rows of the output layer, if they are known: a line of bilm-tf's that is no word is left out then.
    Raises WeightsError if the file is missing, broken or not such a vocabulary.
    """
    words = _without_marker(read_words(path), n_words)
    check_vocabulary(words, as_path(path))
    return words


def find_vocabulary(folder: Path) -> Path | None:
    """The vocabulary that lies in a folder: one of `VOCABULARY_NAMES`, or else the only file called so (`*vocab*.txt`).

    Raises WeightsError if several are called so, and none has one of those names.
    """
    names = names_in(folder)
    for name in VOCABULARY_NAMES:
        if name in names:
            return folder / name
    found = [name for name in names if "vocab" in name.lower() and name.endswith((".txt", ".json", ".txt.gz"))]
    found = [name for name in found if not is_hidden(name)]
    if len(found) > 1:
        raise WeightsError(
            f"{folder}: has several vocabularies ({listed(found)}): call the one that belongs to the weights "
            f"{VOCABULARY_NAMES[0]}"
        )
    return folder / found[0] if found else None


def table_words(folder: Path, n_rows: int) -> list[str] | None:
    """The words of a word table's rows, from the vocabulary in its folder. None if there is none.

    As many words as the file has: whoever makes the biLM compares them with the rows.
    """
    path = find_vocabulary(folder)
    if path is None:
        return None
    return _without_marker(read_words(path), n_rows)


def bilm_tf_words(folder: Path, n_rows: int) -> list[str]:
    """The words that a softmax of bilm-tf predicts, in the order of its rows, from the vocabulary in its folder.

    As in its training, white space around a word does not count, the special words may stand anywhere, and of a word
    that stands there twice the last row counts.
    Raises WeightsError if there is no vocabulary, it is broken, lacks a special word, or has another number of words.
    """
    path = find_vocabulary(folder)
    if path is None:
        raise WeightsError(
            f"{folder}: has no vocabulary, but a softmax over {n_rows} words: put the vocabulary of its training, in "
            f"the order of the softmax's rows, into {VOCABULARY_NAMES[0]} (one word a line) beside it"
        )
    words = [word.strip() for word in _without_marker(read_words(path), n_rows)]
    missing = [word for word in (BOS, EOS, UNK) if word not in words]
    if missing:
        raise WeightsError(f"{path}: lacks {listed(missing)}: it is not a vocabulary of bilm-tf's training")
    if len(words) != n_rows:
        raise WeightsError(
            f"{path}: has {len(words)} words, but the softmax beside it predicts {n_rows}: they belong to different "
            "models"
        )
    return words


def table_words_of(words: Sequence[str]) -> list[str]:
    """What a table for inference has a row for: the words, those of the three special ones first that are missing."""
    known = set(words)
    return [mark for mark in (BOS, EOS, UNK) if mark not in known] + [word for word in words if word != _NO_WORD]


def _without_marker(words: list[str], n_rows: int | None) -> list[str]:
    """The words, without the public vocabulary's line that is none, where it makes one word too many."""
    if n_rows is not None and len(words) == n_rows + 1 and _NO_WORD in words:
        words.remove(_NO_WORD)
    return words


def word_lines(words: Sequence[str], path: Path) -> bytes:
    """What a file of one word a line holds, in UTF-8; an empty word is an empty line.

    path: of the file, for the error. Raises WeightsError for a word with a line break or a lone surrogate.
    """
    lines = []
    for number, word in enumerate(words):
        if "\n" in word or "\r" in word:
            raise WeightsError(f"{path}: word {number}, {word!r}, has a line break: it does not fit a line")
        try:
            lines.append(word.encode("utf-8") + b"\n")
        except UnicodeEncodeError as error:
            raise WeightsError(f"{path}: word {number}, {word!r}, has a lone surrogate: it is not UTF-8") from error
    return b"".join(lines)


def read_words(path: Path | str) -> list[str]:
    """Words of a file in ``.json``, or one a line (``.gz``: compressed), as they stand there, repeated ones too.

    Raises WeightsError if the file is missing or broken.
    """
    path = as_path(path)
    if path.suffix == ".json":
        words = read_json(path, LARGEST_TEXT)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise WeightsError(f"{path}: a vocabulary in JSON is a list of strings")
        return words
    # Only "\n" ends a line: str.splitlines would cut words that hold other separators, such as U+2028.
    text = decoded(read_gzip(path), path) if path.suffix == ".gz" else read_text(path)
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def check_vocabulary(words: Sequence[str], path: Path) -> None:
    """WeightsError for words that do not start with the three special ones, or repeat one. path: for the error."""
    if list(words[:3]) != [BOS, EOS, UNK]:
        raise WeightsError(f"{path}: a vocabulary starts with {BOS}, {EOS}, {UNK}; this one with {list(words[:3])}")
    seen: set[str] = set()
    for number, word in enumerate(words):
        if word in seen:
            raise WeightsError(f"{path}: word {number} of the vocabulary, {word!r}, stands there twice")
        seen.add(word)
