"""What can be told of words by themselves, each looked at once, as a type: their script, and what is odd about them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
from spacy.strings import hash_string  # type: ignore[attr-defined]

from ..corpus import EncodedCorpus
from ..vocabulary import N_SPECIAL

# Characters; the longest word of an English dictionary that is not a chemical's has 45.
LONG_WORD = 40

_BLOCK = 1 << 16  # types

_MARKUP = re.compile(
    r"</?[a-z!]|/>|&(?:[a-z]{2,8}|#\d{2,6});|\b(?:href|src|class|style)=|\[\[|\]\]|\{\{|\}\}|__[A-Z]+__", re.IGNORECASE
)
# Halves of what a tokenizer takes apart: "<" "div", "&" "amp", "[" "[", "cafÃ" "©".
_FIRST = {"<": 1, "</": 1, "&": 2, "[": 4, "{": 8}
_TAGS = "a b br div em font h1 h2 h3 hr i img li ol p ref small span strong sub sup table td th tr u ul"
_TAG_WORDS = [word for name in re.findall(r"\w+", _TAGS) for word in (name, f"{name}/", f"/{name}")]
_SECOND = {"[": 4, "{": 8, **dict.fromkeys(_TAG_WORDS, 1), **dict.fromkeys(("amp", "gt", "lt", "nbsp", "quot"), 2)}
# Bits of these halves: some kind of markup, or a character that was read as two.
MARKUP_HALF, BROKEN_HALF = 15, 16
_SCRIPT_FAMILY = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "IDEOGRAPHIC": "CJK"}


@dataclass(frozen=True, kw_only=True)
class Types:
    """What is known of each type: its hash, what it can be a half of, its kinds of oddity, its script.

    hashes: (n_types,) uint64. first, second: (n_types,) uint8 of bits; a word and the next one are odd together where
    they share one. kinds: (n_types,) uint8, a bit for each of `KINDS`. scripts: (n_types,) uint8, into script_names,
    of which the first is "", of words without letters. bytes_seen: (256,) bool. letters: share of the characters.
    cased: share of the words with letters that have a capital. word_characters: mean length of a word with letters.
    """

    hashes: np.ndarray
    first: np.ndarray
    second: np.ndarray
    kinds: np.ndarray
    scripts: np.ndarray
    script_names: list[str]
    bytes_seen: np.ndarray
    letters: float
    cased: float
    word_characters: float


# Bits, in this order.
KINDS = ("markup", "mojibake", "control characters", "very long words", "several scripts in a word")
MARKED, MOJIBAKE, _CONTROL, _LONG, _MIXED = (1 << bit for bit in range(len(KINDS)))


def look_at_types(corpus: EncodedCorpus) -> Types:
    """Look at every type of a corpus."""
    n = corpus.n_types
    hashes = np.zeros(n, dtype=np.uint64)
    first, second, kinds, scripts = (np.zeros(n, dtype=np.uint8) for _ in range(4))
    bytes_seen = np.zeros(256, dtype=np.bool_)
    numbers = {"": 0}  # of scripts
    n_characters = n_letters = n_worded = n_cased = n_word_characters = 0
    for start, words in _blocks(corpus.types):
        counts = corpus.counts[start : start + len(words)].tolist()
        for number, (word, count) in enumerate(zip(words, counts, strict=True), start=start):
            hashes[number] = hash_string(word)
            if number < N_SPECIAL:
                continue
            first[number] = _FIRST.get(word, 0)
            second[number] = _SECOND.get(word.lower(), 0)
            if word.isascii() and word.isalpha():
                script, kind, letters = "LATIN", 0, len(word)
            else:
                script, kind, letters = _looked_at(word)
                if word[-1] in "ÃÂ" and not word.isupper():
                    first[number] |= BROKEN_HALF
                if word[0] in _continuations():
                    second[number] |= BROKEN_HALF
            kinds[number] = kind | (_LONG if len(word) > LONG_WORD else 0)
            scripts[number] = numbers.setdefault(script, min(len(numbers), 255))  # Unicode has less than 200
            n_characters += count * len(word)
            n_letters += count * letters
            if letters:
                n_worded += count
                n_word_characters += count * len(word)
                n_cased += count * (word != word.lower())
        data = "".join(words[max(N_SPECIAL - start, 0) :]).encode("utf8", "replace")
        bytes_seen[np.frombuffer(data, dtype=np.uint8)] = True
    return Types(
        hashes=hashes,
        first=first,
        second=second,
        kinds=kinds,
        scripts=scripts,
        script_names=list(numbers),
        bytes_seen=bytes_seen,
        letters=n_letters / max(n_characters, 1),
        cased=n_cased / max(n_worded, 1),
        word_characters=n_word_characters / max(n_worded, 1),
    )


def _looked_at(word: str) -> tuple[str, int, int]:
    """Script of a word's first letter ("" without letters), kinds of oddity, number of letters and their marks."""
    scripts = [script for character in word if (script := _script(character))]
    n_marks = sum(unicodedata.category(character).startswith("M") for character in word)
    kinds = (
        MARKED * (_MARKUP.search(word) is not None)
        | MOJIBAKE * is_mojibake(word)
        | _CONTROL * any(unicodedata.category(character) in ("Cc", "Co", "Cn") for character in word)
        | _MIXED * (len(set(scripts)) > 1)
    )
    return scripts[0] if scripts else "", kinds, len(scripts) + n_marks


@lru_cache(maxsize=1 << 16)
def _script(character: str) -> str:
    """The script of a letter, by the first word of its Unicode name; "" for what is no letter."""
    if not unicodedata.category(character).startswith("L"):
        return ""
    names = unicodedata.name(character, "").split()
    if names[:1] in (["FULLWIDTH"], ["HALFWIDTH"], ["MATHEMATICAL"], ["MODIFIER"]):
        return ""  # letters in disguise, of no script of their own
    name = names[0] if names else "UNKNOWN"
    return _SCRIPT_FAMILY.get(name, "" if name in ("FEMININE", "MASCULINE", "MICRO", "OHM", "KELVIN") else name)


def is_mojibake(word: str) -> bool:
    """Whether a word is UTF-8 that was read as another encoding, such as ``cafÃ©``, or has lost characters (U+FFFD)."""
    if word.isascii():
        return False
    if "\ufffd" in word or "â€" in word:
        return True
    for encoding in ("cp1252", "latin-1"):
        try:
            return word.encode(encoding).decode("utf8") != word
        except UnicodeError:
            continue
    return False


@lru_cache(maxsize=1)
def _continuations() -> frozenset[str]:
    """Characters that the following bytes of UTF-8 become when they are read as another encoding."""
    data = [bytes([byte]) for byte in range(0x80, 0xC0)]
    read = {byte.decode(encoding, "ignore") for byte in data for encoding in ("cp1252", "latin-1")}
    return frozenset(read - {"", "\xa0", "«", "»", "…", "–", "—", "‘", "’", "“", "”"})  # punctuation that follows words


def _blocks(words: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    stream, start = iter(words), 0
    while block := list(islice(stream, _BLOCK)):
        yield start, block
        start += len(block)
