"""The figures of both texts of a run, and how they are shown to people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from .figures import LONG_SENTENCE, TextFigures
from .odd_words import LONG_WORD


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
        yield f"  bytes of UTF-8 never seen: {shown_bytes(text.unseen_bytes)}"
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
    for size, share in report.train.oov.items():
        yield f"{size:>38,}  {share:>6.2%}  {report.dev.oov[size]:>6.2%}"
        if not share:
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


def shown_bytes(values: Sequence[int]) -> str:
    """Values of bytes for one line: those of ASCII as characters, how many others."""
    plain = "".join(chr(value) for value in values if value < 0x80)
    others = sum(value >= 0x80 for value in values)
    parts = [f"ASCII {plain}"] if plain else []
    return ", ".join(parts + ([f"{others} others"] if others else [])) or "none"
