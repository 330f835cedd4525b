"""Vocabulary files: the words of an output softmax, or of the rows of a word table.

`vocabulary.txt` is bilm-tf's format, one word a line; `vocabulary.json` a list of strings, for words that no line
can hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..bilm.characters import BOS, EOS, UNK
from ..errors import WeightsError
from .files import read_json, read_text, write_files

# What may lie beside weights that read words, in the order in which they are tried.
VOCABULARY_NAMES = ("vocabulary.txt", "vocabulary.json", "vocab.txt")


def save_vocabulary(words: Sequence[str], path: Path | str) -> None:
    """Write the vocabulary of an output layer, one word a line.

    words: ``<S>``, ``</S>`` and ``<UNK>``, then the others in descending frequency, each once.
    Raises WeightsError for other first words, a repeated word, a word that no line can hold, or a file that cannot be
    written; then an older one stays.
    """
    _check_vocabulary(words, Path(path))
    write_files({Path(path): word_lines(words, Path(path))})


def load_vocabulary(path: Path | str) -> list[str]:
    """The words that `save_vocabulary` wrote. WeightsError if the file is missing, broken or not such a vocabulary."""
    words = read_words(path)
    _check_vocabulary(words, Path(path))
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
    """Words of a file in ``.json``, or one a line, as they stand there: not stripped, repeated ones too.

    Raises WeightsError if the file is missing or broken.
    """
    path = Path(path)
    if path.suffix == ".json":
        words = read_json(path)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise WeightsError(f"{path}: a vocabulary in JSON is a list of strings")
        return words
    # Only "\n" ends a line: str.splitlines would cut words that hold other separators, such as U+2028.
    return read_text(path).replace("\r\n", "\n").removesuffix("\n").split("\n")


def _check_vocabulary(words: Sequence[str], path: Path) -> None:
    if list(words[:3]) != [BOS, EOS, UNK]:
        raise WeightsError(f"{path}: a vocabulary starts with {BOS}, {EOS}, {UNK}; this one with {list(words[:3])}")
    seen: set[str] = set()
    for number, word in enumerate(words):
        if word in seen:
            raise WeightsError(f"{path}: word {number} of the vocabulary, {word!r}, stands there twice")
        seen.add(word)
