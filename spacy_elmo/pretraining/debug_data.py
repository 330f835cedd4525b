"""Look at the text of a run before it is trained on: how much there is, what is odd about it, and what to do.

Words are looked at once a *type*; the text itself is read in blocks of arrays, so memory grows with the types only.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import islice
from typing import IO, Any

import numpy as np
from spacy.strings import hash_string  # type: ignore[attr-defined]
from thinc.api import Config

from .config import Settings
from .corpus import EncodedCorpus
from .prepare import Corpora, prepare_corpora
from .vocabulary import N_SPECIAL, oov_share

VOCABULARY_SIZES = (5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 400_000, 800_000)
# Characters; the longest word of an English dictionary that is not a chemical's has 45.
LONG_WORD = 40
# Words. Shorter sentences ("Yes .") are the same ones in any text.
LONG_SENTENCE = 8

_BLOCK = 1 << 16  # types, or sentences
_MOST_HASHES = 1 << 21
_EXAMPLES = 5
_PERCENTILES = (10, 50, 90, 99)
_LONGEST_COUNTED = 1 << 16  # words of a sentence: the bins of a histogram
# What UTF-8 is made of: ASCII that can be seen, bytes that follow, bytes that lead.
_TEXT_BYTES = (*range(0x21, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5))

_MARKUP = re.compile(
    r"</?[a-z!]|/>|&(?:[a-z]{2,8}|#\d{2,6});|\b(?:href|src|class|style)=|\[\[|\]\]|\{\{|\}\}|__[A-Z]+__", re.IGNORECASE
)
# Halves of what a tokenizer takes apart: "<" "div", "&" "amp", "[" "[", "cafÃ" "©".
_FIRST = {"<": 1, "</": 1, "&": 2, "[": 4, "{": 8}
_TAGS = "a b br div em font h1 h2 h3 hr i img li ol p ref small span strong sub sup table td th tr u ul"
_TAG_WORDS = [word for name in re.findall(r"\w+", _TAGS) for word in (name, f"{name}/", f"/{name}")]
_SECOND = {"[": 4, "{": 8, **dict.fromkeys(_TAG_WORDS, 1), **dict.fromkeys(("amp", "gt", "lt", "nbsp", "quot"), 2)}
_BROKEN_HALF = 16
_SCRIPT_FAMILY = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "IDEOGRAPHIC": "CJK"}
_UNSEGMENTED = ("CJK", "THAI", "LAO", "KHMER", "MYANMAR")


@dataclass(frozen=True, kw_only=True)
class Oddity:
    """Words of one odd kind: how many, their share of all words, the sentences with one, the most frequent ones."""

    words: int
    share: float
    sentences: int
    examples: list[str]


@dataclass(frozen=True, kw_only=True)
class TextFigures:
    """What is in one encoded corpus.

    once: types that occur once. truncated: words longer than the token encoder reads. unseen_bytes: of those that UTF-8
    text can have. sentence_words, document_words: mean, percentiles and maximum. duplicate_sentences (of at least
    `LONG_SENTENCE` words) and duplicate_documents: share that stands elsewhere before, 0 to 1. scripts: share of the
    words with letters, by script. letters: share of the characters. cased: share of the words with letters that have a
    capital. word_characters: mean length of a word with letters. notes: what reading left out or cut.
    """

    documents: int
    lines: int
    sentences: int
    words: int
    types: int
    once: int
    truncated: int
    oov: dict[int, float]
    unseen_bytes: list[int]
    sentence_words: dict[str, float]
    document_words: dict[str, float]
    duplicate_sentences: float
    duplicate_documents: float
    scripts: dict[str, float]
    letters: float
    cased: float
    word_characters: float
    oddities: dict[str, Oddity]
    notes: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """Figures of both texts of a run.

    vocabulary: words that the softmax of the config predicts. oov: share of the words that it lacks, of each text.
    sentences_of_dev_in_train (of at least `LONG_SENTENCE` words), documents_of_dev_in_train: shares, 0 to 1.
    bytes_of_dev_only: seen in dev, never in train. epochs: how often the run reads train. advice: in words.
    """

    train: TextFigures
    dev: TextFigures
    vocabulary: int
    oov: dict[str, float]
    sentences_of_dev_in_train: float
    documents_of_dev_in_train: float
    bytes_of_dev_only: list[int]
    epochs: float
    advice: list[str]

    def figures(self) -> dict[str, Any]:
        """Everything, as JSON data."""
        return asdict(self)

    def text(self) -> str:
        """Everything, for people."""
        return "\n".join(_rendered(self))


def debug_data(settings: Settings, config: Config, *, stderr: IO[str] | None = None) -> DataReport:
    """Look at the corpora of a config; they are encoded as ``pretrain`` would do first, or read from its cache.

    stderr: for progress and what reading left out. Raises what `prepare_corpora` raises.
    """
    corpora = prepare_corpora(settings, config, stderr=stderr or sys.stderr)
    return data_report(settings, corpora)


def data_report(settings: Settings, corpora: Corpora) -> DataReport:
    """The report of corpora that are at hand."""
    limit = int(settings.model.get("max_characters_per_token", 50)) if settings.model.get("filters", True) else None
    ranks = _ranks(corpora.dev, corpora.train)
    dev, dev_bytes, dev_hashes = _look(corpora.dev, limit, ranks, None)
    train, train_bytes, _ = _look(corpora.train, limit, np.arange(corpora.train.n_types), dev_hashes)
    report = DataReport(
        train=train,
        dev=dev,
        vocabulary=len(corpora.vocabulary),
        oov={name: oov_share(getattr(corpora, name), corpora.vocabulary) for name in ("train", "dev")},
        sentences_of_dev_in_train=dev_hashes.sentences.share_found(),
        documents_of_dev_in_train=dev_hashes.documents.share_found(),
        bytes_of_dev_only=np.flatnonzero(dev_bytes & ~train_bytes).tolist(),
        epochs=settings.training.max_steps * settings.training.rows * settings.training.unroll_steps / train.words,
        advice=[],
    )
    report.advice.extend(_advice(report, settings, limit))
    return report


def _ranks(corpus: EncodedCorpus, other: EncodedCorpus) -> np.ndarray:
    """Where each type of a corpus stands among the types of another; past their end if it does not."""
    numbers = {word: number for number, word in enumerate(corpus.types)}
    ranks = np.full(corpus.n_types, np.iinfo(np.int64).max)
    for rank, word in enumerate(other.types):
        number = numbers.get(word)
        if number is not None:
            ranks[number] = rank
    return ranks


# -------------------------------------------------------------------------------------------------------- duplicates


class _Hashes:
    """Hashes of sentences or documents, a sample of them (by hash, so that all copies are in it or none) if many."""

    def __init__(self, n: int) -> None:
        self.every = np.uint64(-(-max(n, 1) // _MOST_HASHES))
        self._kept: list[np.ndarray] = []
        self._unique = np.zeros(0, dtype=np.uint64)
        self._counts = np.zeros(0, dtype=np.int64)
        self._found = np.zeros(0, dtype=np.bool_)

    def add(self, hashes: np.ndarray) -> None:
        self._kept.append(hashes[hashes % self.every == 0])

    def finish(self) -> None:
        self._unique, self._counts = np.unique(np.concatenate(self._kept), return_counts=True)
        self._kept = []
        self._found = np.zeros(len(self._unique), dtype=np.bool_)

    def find(self, hashes: np.ndarray) -> None:
        """Mark those that another text has."""
        if len(self._unique):
            places = np.minimum(np.searchsorted(self._unique, hashes), len(self._unique) - 1)
            self._found[places[self._unique[places] == hashes]] = True

    def share_repeated(self) -> float:
        total = int(self._counts.sum())
        return 1 - len(self._unique) / total if total else 0.0

    def share_found(self) -> float:
        total = int(self._counts.sum())
        return float(self._counts[self._found].sum() / total) if total else 0.0


@dataclass(frozen=True)
class _TextHashes:
    sentences: _Hashes
    documents: _Hashes


def _joined_hashes(parts: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """A hash for each run of parts; the order within it counts. parts: (n,) uint64; starts: of the runs, from 0."""
    lengths = np.diff(starts, append=len(parts))
    position = (np.arange(len(parts)) - np.repeat(starts, lengths)).astype(np.uint64)
    mixed = parts + (position + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    return np.add.reduceat(mixed, starts)


# ------------------------------------------------------------------------------------------------------------- types


@dataclass(frozen=True, kw_only=True)
class _Types:
    """What is known of each type: hash, bits of `_FIRST` and `_SECOND`, kinds (a bit each), script."""

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
_KINDS = ("markup", "mojibake", "control characters", "very long words", "several scripts in a word")
_MARKED, _MOJIBAKE, _CONTROL, _LONG, _MIXED = (1 << bit for bit in range(len(_KINDS)))


def _look_at_types(corpus: EncodedCorpus) -> _Types:
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
                    first[number] |= _BROKEN_HALF
                if word[0] in _continuations():
                    second[number] |= _BROKEN_HALF
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
    return _Types(
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
        _MARKED * (_MARKUP.search(word) is not None)
        | _MOJIBAKE * is_mojibake(word)
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


# -------------------------------------------------------------------------------------------------------------- text


def _look(
    corpus: EncodedCorpus, limit: int | None, ranks: np.ndarray, others: _TextHashes | None
) -> tuple[TextFigures, np.ndarray, _TextHashes]:
    """Figures of a text, the bytes seen in it, its hashes.

    ranks: of its types in the vocabulary. others: hashes of another text, in which those of this one are looked for.
    """
    types = _look_at_types(corpus)
    counts = np.asarray(corpus.counts)
    by_script = np.bincount(types.scripts, weights=counts, minlength=len(types.script_names))
    by_script[0] = 0
    main = int(by_script.argmax())
    foreign = (types.scripts != main) & (types.scripts != 0)
    hashes = _TextHashes(_Hashes(corpus.n_sentences), _Hashes(corpus.n_documents))
    with_kind = np.zeros(len(_KINDS) + 1, dtype=np.int64)  # sentences
    n_markup_pairs = n_broken_pairs = 0
    lengths_seen = np.zeros(_LONGEST_COUNTED + 1, dtype=np.int64)
    longest = 0
    document_lengths = np.zeros(corpus.n_documents, dtype=np.int64)
    sentence_starts, document_starts = corpus.sentence_starts, corpus.document_starts
    for document in _document_blocks(document_starts, sentence_starts):
        first, last = document.start, document.stop
        documents = np.asarray(document_starts[first : last + 1])
        starts = np.asarray(sentence_starts[documents[0] : documents[-1] + 1])
        ids = np.asarray(corpus.ids[starts[0] : starts[-1]])
        document_lengths[first:last] = np.diff(starts[documents - documents[0]])
        lengths, starts = np.diff(starts), starts[:-1] - starts[0]
        lengths_seen += np.bincount(np.minimum(lengths, _LONGEST_COUNTED), minlength=_LONGEST_COUNTED + 1)
        longest = max(longest, int(lengths.max()))
        sentences = _joined_hashes(types.hashes[ids], starts)
        whole = _joined_hashes(sentences, documents[:-1] - documents[0])
        long = sentences[lengths >= LONG_SENTENCE]
        hashes.sentences.add(long)
        hashes.documents.add(whole)
        if others is not None:
            others.sentences.find(long)
            others.documents.find(whole)
        # Pairs of neighbours, in one sentence.
        pairs = types.first[ids[:-1]] & types.second[ids[1:]]
        pairs[starts[1:] - 1] = 0
        kinds = types.kinds[ids]
        markup, broken = (pairs & 15) != 0, (pairs & _BROKEN_HALF) != 0
        n_markup_pairs += int(np.count_nonzero(markup & (kinds[:-1] & _MARKED == 0)))
        n_broken_pairs += int(np.count_nonzero(broken & (kinds[:-1] & _MOJIBAKE == 0)))
        kinds[:-1] |= np.uint8(_MARKED) * markup | np.uint8(_MOJIBAKE) * broken
        seen = np.bitwise_or.reduceat(kinds, starts)
        with_kind[:-1] += [int(np.count_nonzero(seen & (1 << bit))) for bit in range(len(_KINDS))]
        # Sentences mostly of another script, among words that have one.
        of_other = np.add.reduceat(foreign[ids].astype(np.int64), starts)
        of_main = np.add.reduceat((types.scripts[ids] == main).astype(np.int64), starts)
        with_kind[-1] += int(np.count_nonzero(of_other > of_main))
        corpus.release()
    for part in (hashes.sentences, hashes.documents):
        part.finish()

    oddities = {}
    for bit, name in enumerate(_KINDS):
        more = (n_markup_pairs, n_broken_pairs)[bit] if bit < 2 else 0
        oddities[name] = _oddity(corpus, (types.kinds & (1 << bit)) != 0, int(with_kind[bit]), more)
    oddities["words of another script"] = _oddity(corpus, foreign, int(with_kind[-1]))
    lettered = max(float(by_script.sum()), 1.0)
    order = np.argsort(-by_script, kind="stable")
    figures = TextFigures(
        documents=corpus.n_documents,
        lines=corpus.meta["n_lines"],
        sentences=corpus.n_sentences,
        words=corpus.n_words,
        types=int(np.count_nonzero(counts)),
        once=int(np.count_nonzero(counts == 1)),
        truncated=corpus.truncated_words(limit) if limit is not None else 0,
        oov=_oov_by_size(counts, ranks),
        unseen_bytes=[byte for byte in _TEXT_BYTES if not types.bytes_seen[byte]],
        sentence_words=_distribution_of_counts(lengths_seen, corpus.n_words, longest),
        document_words=_distribution(document_lengths),
        duplicate_sentences=hashes.sentences.share_repeated(),
        duplicate_documents=hashes.documents.share_repeated(),
        scripts={types.script_names[i]: float(by_script[i] / lettered) for i in order.tolist() if by_script[i]},
        letters=types.letters,
        cased=types.cased,
        word_characters=types.word_characters,
        oddities=oddities,
        notes=dict(corpus.meta.get("notes", {})),
    )
    return figures, types.bytes_seen, hashes


def _document_blocks(document_starts: np.ndarray, sentence_starts: np.ndarray) -> Iterator[range]:
    """Documents in a row with about `_BLOCK` sentences, or one document."""
    first, n = 0, len(document_starts) - 1
    while first < n:
        last = int(np.searchsorted(document_starts, document_starts[first] + _BLOCK, side="right")) - 1
        last = min(max(last, first + 1), n)
        yield range(first, last)
        first = last


def _oddity(corpus: EncodedCorpus, which: np.ndarray, n_sentences: int, more: int = 0) -> Oddity:
    numbers = np.flatnonzero(which)
    n_words = int(corpus.counts[numbers].sum()) + more
    examples = [corpus.types[number] for number in numbers[:_EXAMPLES].tolist()]  # types are in order of frequency
    return Oddity(words=n_words, share=n_words / corpus.n_words, sentences=n_sentences, examples=examples)


def _oov_by_size(counts: np.ndarray, ranks: np.ndarray) -> dict[int, float]:
    """Share of the words out of the vocabulary, by its size; up to the one that has them all."""
    order = np.argsort(ranks, kind="stable")
    known = np.cumsum(counts[order])
    in_order = ranks[order]
    shares = {}
    for size in VOCABULARY_SIZES:
        n = int(np.searchsorted(in_order, size))
        shares[size] = float(1 - (known[n - 1] if n else 0) / known[-1])
    return shares


def _distribution(values: np.ndarray) -> dict[str, float]:
    found = np.percentile(values, _PERCENTILES, method="inverted_cdf").tolist()
    return {
        "mean": float(values.mean()),
        **{f"{p}%": float(value) for p, value in zip(_PERCENTILES, found, strict=True)},
        "max": float(values.max()),
    }


def _distribution_of_counts(counts: np.ndarray, total: int, longest: int) -> dict[str, float]:
    """The same of values that were counted. counts: how often each value occurs; total: their sum."""
    n = int(counts.sum())
    up_to = np.cumsum(counts)
    found = {f"{p}%": float(np.searchsorted(up_to, p / 100 * n)) for p in _PERCENTILES}
    return {"mean": total / n, **found, "max": float(longest)}


# ------------------------------------------------------------------------------------------------------------- words


def _rendered(report: DataReport) -> Iterator[str]:
    for name, text in (("train", report.train), ("dev", report.dev)):
        yield f"{name}: {text.documents:,} documents, {text.lines:,} lines, {text.sentences:,} sentences"
        yield f"  {text.words:,} words of {text.types:,} types, {text.once:,} of these once"
        for label, spread in (("sentence", text.sentence_words), ("document", text.document_words)):
            figures = ", ".join(f"{key} {value:,.{1 if key == 'mean' else 0}f}" for key, value in spread.items())
            yield f"  words of a {label}: {figures}"
        yield f"  truncated words: {text.truncated:,} ({text.truncated / text.words:.3%})"
        scripts = ", ".join(f"{script.capitalize()} {share:.2%}" for script, share in islice(text.scripts.items(), 5))
        yield f"  scripts: {scripts or 'no letters'}"
        yield (
            f"  letters: {text.letters:.1%} of the characters; a word has {text.word_characters:.1f} characters; "
            f"{text.cased:.1%} of the words have a capital"
        )
        yield f"  bytes of UTF-8 never seen: {_bytes(text.unseen_bytes)}"
        yield (
            f"  twice or more: {text.duplicate_sentences:.2%} of the sentences of {LONG_SENTENCE} words and more, "
            f"{text.duplicate_documents:.2%} of the documents"
        )
        for kind, odd in text.oddities.items():
            if odd.words:
                examples = f": {', '.join(ascii_safe(word) for word in odd.examples)}" if odd.examples else ""
                yield f"  {kind}: {odd.words:,} words ({odd.share:.3%}), {odd.sentences:,} sentences{examples}"
        for what, n in text.notes.items():
            yield f"  when it was read: {n:,} {what}"
        yield ""
    yield "words out of vocabulary, by its size   train      dev"
    for size in VOCABULARY_SIZES:
        yield f"{size:>38,}  {report.train.oov[size]:>6.2%}  {report.dev.oov[size]:>6.2%}"
        if not report.train.oov[size]:
            break
    yield f"{f'this config: {report.vocabulary:,}':>38}  {report.oov['train']:>6.2%}  {report.oov['dev']:>6.2%}"
    yield ""
    yield (
        f"of dev in train: {report.sentences_of_dev_in_train:.2%} of the sentences of {LONG_SENTENCE} words and more, "
        f"{report.documents_of_dev_in_train:.2%} of the documents"
    )
    yield f"the run reads train {report.epochs:,.2f} times"
    yield ""
    yield from (f"- {line}" for line in report.advice or ["Nothing odd was found."])


def ascii_safe(word: str) -> str:
    """A word for one line of a terminal: cut, and without what moves the cursor."""
    shown = word if len(word) <= LONG_WORD else f"{word[:LONG_WORD]}..."
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)


def _bytes(values: Sequence[int]) -> str:
    plain = "".join(chr(value) for value in values if value < 0x80)
    others = sum(value >= 0x80 for value in values)
    parts = [f"ASCII {plain}"] if plain else []
    return ", ".join(parts + ([f"{others} others"] if others else [])) or "none"


def _advice(report: DataReport, settings: Settings, limit: int | None) -> Iterator[str]:
    train, dev = report.train, report.dev
    if train.words < 1_000_000:
        yield (
            f"{train.words:,} words are little: vectors of use take some millions. Add text of the same "
            "language, or go "
            "on from weights that exist."
        )
    if report.epochs > 20:
        yield (
            f"Train is read {report.epochs:,.0f} times: watch the dev perplexity, it will rise. Fewer "
            "training.max_steps, "
            "or more text."
        )
    if dev.words < 10_000:
        yield f"Dev has {dev.words:,} words: too few for a perplexity. Set training.holdout lower, or paths.dev."
    if train.documents < 10:
        yield (
            f"Train has {train.documents:,} documents: the text is shuffled by documents. In .txt files a "
            "blank line ends "
            "one; if each line is one, set line = 'document' in the reader."
        )
    if report.sentences_of_dev_in_train > 0.05 or report.documents_of_dev_in_train > 0.01:
        yield (
            f"{report.sentences_of_dev_in_train:.1%} of dev's sentences and "
            f"{report.documents_of_dev_in_train:.1%} of its "
            "documents are in train too: the dev perplexity flatters. Remove duplicates before the text is split."
        )
    if train.duplicate_sentences > 0.2 or train.duplicate_documents > 0.02:
        yield (
            f"{train.duplicate_sentences:.1%} of train's sentences and {train.duplicate_documents:.1%} of its "
            "documents "
            "repeat others: the model learns them by heart. Remove duplicates (menus, licences and footers of "
            "web pages)."
        )
    if limit is not None and train.truncated / train.words > 0.001:
        yield (
            f"{train.truncated / train.words:.2%} of the words are cut at {limit - 2} bytes: a script of two or three "
            "bytes a letter, or no words at all (links, base64). Set model.max_characters_per_token higher, or "
            "remove them."
        )
    yield from _advice_on_vocabulary(report)
    yield from _advice_on_language(train, settings)


def _advice_on_vocabulary(report: DataReport) -> Iterator[str]:
    share = report.oov["dev"]
    if share > 0.05:
        better = next((size for size, oov in report.dev.oov.items() if oov <= 0.03 and size > report.vocabulary), None)
        how = (
            f"With vocabulary.max_words = {better} it were {report.dev.oov[better]:.1%}."
            if better
            else "More or other text is needed: no size of the vocabulary helps."
        )
        yield f"{share:.1%} of dev's words are predicted as <UNK>. {how}"
    if report.bytes_of_dev_only:
        yield (
            f"Dev has bytes that train never has ({_bytes(report.bytes_of_dev_only)}): their vectors stay as "
            "they began. "
            "Train on text with the characters that will be read."
        )


def _advice_on_language(train: TextFigures, settings: Settings) -> Iterator[str]:
    odd = train.oddities
    main = next(iter(train.scripts), "")
    if not main:
        yield "No word has a letter: this is no text, or not in the encoding that it should be."
        return
    if train.scripts[main] < 0.98:
        others = ", ".join(f"{name.capitalize()} {share:.1%}" for name, share in islice(train.scripts.items(), 1, 4))
        yield (
            f"Besides {main.capitalize()} there is {others}: text of another language? One biLM reads several badly "
            "unless each has its share."
        )
    if main in _UNSEGMENTED and train.word_characters > 6:
        yield (
            f"Words of {train.word_characters:.0f} characters in {main.capitalize()}: the tokenizer of "
            f"{settings.nlp.lang!r} does not find words here. Set nlp.lang, or [nlp.tokenizer] with a segmenter."
        )
    if train.sentence_words["90%"] > 100:
        yield (
            f"One sentence in ten has more than {train.sentence_words['90%'] - 1:,.0f} words: no sentence ends "
            "are found. "
            "If each line is a sentence, set line = 'sentence' in the reader."
        )
    if main in ("LATIN", "CYRILLIC", "GREEK") and train.cased < 0.01:
        yield "The text is in lower case: the model will not know capitals. Annotate such text only, or train on other."
    if train.letters < 0.7:
        yield f"Only {train.letters:.0%} of the characters are letters: tables, code or numbers rather than sentences."
    for kind, most, what in (
        ("markup", 0.001, "HTML or wiki markup: extract the text of the pages first"),
        (
            "mojibake",
            0.0002,
            "UTF-8 that was read as another encoding, or lost characters: mend it or convert it again",
        ),
        ("control characters", 0.0001, "characters that are no text: clean the files"),
        ("very long words", 0.0005, "links, base64 or lost spaces: remove such lines"),
        ("several scripts in a word", 0.001, "look-alikes of OCR or spam, or lost spaces"),
    ):
        if odd[kind].share > most:
            examples = ", ".join(ascii_safe(word) for word in odd[kind].examples[:3])
            where = f" (such as {examples})" if examples else ""
            yield f"{odd[kind].words:,} words, in {odd[kind].sentences:,} sentences, look like {what}{where}."
    for what, n in train.notes.items():
        yield f"When it was read: {n:,} {what}."
