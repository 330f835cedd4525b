"""The figures of one text, which is read in blocks of arrays: memory grows with its types only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...bilm.config import BiLMConfig
from ..corpus import EncodedCorpus
from .duplicates import Hashes, TextHashes, joined_hashes
from .odd_words import BROKEN_HALF, KINDS, MARKED, MARKUP_HALF, MOJIBAKE, look_at_types

VOCABULARY_SIZES = (5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 400_000, 800_000)
# Words. Shorter sentences ("Yes .") are the same ones in any text.
LONG_SENTENCE = 8

_BLOCK = 1 << 16  # sentences
_EXAMPLES = 5
_PERCENTILES = (10, 50, 90, 99)
_LONGEST_COUNTED = 1 << 16  # words of a sentence: the bins of a histogram
# What UTF-8 is made of: ASCII that can be seen, bytes that follow, bytes that lead.
_TEXT_BYTES = (*range(0x21, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF5))


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


def look_at_text(
    corpus: EncodedCorpus, config: BiLMConfig, ranks: np.ndarray, others: TextHashes | None
) -> tuple[TextFigures, np.ndarray, TextHashes]:
    """Figures of a text, the bytes seen in it, its hashes.

    config: of the biLM that is to read it. ranks: of its types in the vocabulary.
    others: hashes of another text, in which those of this one are looked for.
    """
    types = look_at_types(corpus)
    counts = np.asarray(corpus.counts)
    by_script = np.bincount(types.scripts, weights=counts, minlength=len(types.script_names))
    by_script[0] = 0
    main = int(by_script.argmax())
    foreign = (types.scripts != main) & (types.scripts != 0)
    hashes = TextHashes(Hashes(corpus.n_sentences), Hashes(corpus.n_documents))
    with_kind = np.zeros(len(KINDS) + 1, dtype=np.int64)  # sentences
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
        sentences = joined_hashes(types.hashes[ids], starts)
        whole = joined_hashes(sentences, documents[:-1] - documents[0])
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
        markup, broken = (pairs & MARKUP_HALF) != 0, (pairs & BROKEN_HALF) != 0
        n_markup_pairs += int(np.count_nonzero(markup & (kinds[:-1] & MARKED == 0)))
        n_broken_pairs += int(np.count_nonzero(broken & (kinds[:-1] & MOJIBAKE == 0)))
        kinds[:-1] |= np.uint8(MARKED) * markup | np.uint8(MOJIBAKE) * broken
        seen = np.bitwise_or.reduceat(kinds, starts)
        with_kind[:-1] += [int(np.count_nonzero(seen & (1 << bit))) for bit in range(len(KINDS))]
        # Sentences mostly of another script, among words that have one.
        of_other = np.add.reduceat(foreign[ids].astype(np.int64), starts)
        of_main = np.add.reduceat((types.scripts[ids] == main).astype(np.int64), starts)
        with_kind[-1] += int(np.count_nonzero(of_other > of_main))
        corpus.release()
    for part in (hashes.sentences, hashes.documents):
        part.finish()

    oddities = {}
    for bit, name in enumerate(KINDS):
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
        truncated=corpus.truncated_words(config) if config.filters is not None else 0,
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
