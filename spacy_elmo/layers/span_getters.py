"""Span getters: how a Doc is cut into the stretches of tokens that the biLM reads one by one.

A span getter is a callable that takes Docs and gives, for each of them, `(start, end)` token offsets. The spans of a
Doc follow one another from its first token to its last, so that every token is in exactly one; an empty Doc has none.
They are offsets and not `Span` objects, so that a memo can use them as keys and nothing holds on to the Doc.

Every getter here can be pickled and deep-copied (`nlp.pipe(n_process=2)` under spawn does both) and keeps no state, so
it can be called from several threads at once. To write another, register a function that returns such a callable in
`@spacy.registry.misc` and name it in the config as `span_getter`. For `nlp.replace_listeners` the callable needs an
attribute `config`, the config block that makes it: the component that gets a biLM of its own saves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import spacy
from spacy.pipeline import Sentencizer
from spacy.strings import get_string_id
from spacy.tokens import Doc

from ..errors import ElmoError, NoSentencesError
from ..text_forms import TextForm, doc_words

Offsets: TypeAlias = list[tuple[int, int]]
SpanGetter: TypeAlias = Callable[[Sequence[Doc]], list[Offsets]]


@spacy.registry.misc("spacy-elmo.rule_spans.v1")
def rule_spans(*, punct_chars: list[str] | None = None) -> SpanGetter:
    """Sentences by the punctuation rule of spaCy's `sentencizer`, whatever boundaries the Doc has.

    The spans are a function of the tokens alone, and nothing is set on the Doc: training, where Docs come without
    boundaries, and prediction, where a parser may have set some, see the same spans and so the same vectors.

    punct_chars (list[str] | None): Characters that end a sentence. None or empty: those of the `sentencizer`.
    RETURNS (SpanGetter): The span getter.
    """
    ends = np.array([get_string_id(char) for char in punct_chars or Sentencizer.default_punct_chars], dtype=np.uint64)
    rule = partial(_rule_spans, ends=np.unique(ends))
    return _described(rule, "spacy-elmo.rule_spans.v1", punct_chars=punct_chars)


@spacy.registry.misc("spacy-elmo.sent_spans.v1")
def sent_spans() -> SpanGetter:
    """Sentences as the Doc has them (`doc.sents`), set by an earlier component: `parser`, `senter`, `sentencizer`.

    The getter raises `ElmoError` for a Doc without boundaries. In training every Doc is without, unless the component
    that sets them is in `annotating_components`.

    RETURNS (SpanGetter): The span getter.
    """
    return _described(partial(_sent_spans), "spacy-elmo.sent_spans.v1")


@spacy.registry.misc("spacy-elmo.doc_spans.v1")
def doc_spans() -> SpanGetter:
    """The whole Doc as one span: for texts of a sentence each, or where context beyond the sentence is wanted.

    RETURNS (SpanGetter): The span getter.
    """
    return _described(partial(_doc_spans), "spacy-elmo.doc_spans.v1")


@spacy.registry.misc("spacy-elmo.strided_spans.v1")
def strided_spans(*, window: int = 128) -> SpanGetter:
    """Windows of `window` tokens one after another; the last of a Doc may be shorter.

    They do not overlap, so a word at the edge of a window has context on one side only. Where that matters, `doc_spans`
    gives every word all of its Doc: the component carries the LSTM states over long spans.

    window (int): Tokens of a window, at least 1.
    RETURNS (SpanGetter): The span getter.
    RAISES (ElmoError): For a window of less than one token.
    """
    if not isinstance(window, int) or window < 1:
        raise ElmoError(f"strided_spans: window is {window!r}; it counts tokens and must be at least 1")
    return _described(partial(_strided_spans, window=window), "spacy-elmo.strided_spans.v1", window=window)


def readable_words(
    doc: Doc, spans: Sequence[tuple[int, int]], text: TextForm = "orth"
) -> list[tuple[list[str], slice | np.ndarray]]:
    """The words of each span as the biLM reads them, and the row of each in the Doc.

    White-space tokens are left out. What comes back for row r of the result belongs in `array[rows]` of an array with
    one row per token.

    doc (Doc): The Doc.
    spans (Sequence[tuple[int, int]]): Its spans, as a span getter gives them.
    text (TextForm): The form of the words, see `doc_words`.
    RETURNS (list[tuple[list[str], slice | ndarray]]): For each span n words, and their n token indices in ascending
        order: a slice where the span has no white-space token, else int64 (n,).
    RAISES (ElmoError): For spans that do not cover each token once and in order; see `doc_words`.
    """
    _check_partition(doc, spans)
    texts, is_space = doc_words(doc, text)
    if len(texts) == len(doc):
        return [(texts[start:end], slice(start, end)) for start, end in spans]
    rows = np.flatnonzero(~is_space)
    words: list[tuple[list[str], slice | np.ndarray]] = []
    for start, end in spans:
        first, last = np.searchsorted(rows, (start, end)).tolist()
        whole = last - first == end - start
        words.append((texts[first:last], slice(start, end) if whole else rows[first:last]))
    return words


def _described(getter: partial[list[Offsets]], name: str, **arguments: object) -> SpanGetter:
    """Let a span getter carry the config block that makes it."""
    getter.config = {"@misc": name, **arguments}  # type: ignore[attr-defined]
    return getter


def _rule_spans(docs: Sequence[Doc], *, ends: np.ndarray) -> list[Offsets]:
    # The sentencizer's rule without its loop over tokens: a sentence begins at the first token that is no punctuation
    # after one that ends a sentence.
    spans = []
    for doc in docs:
        attributes = doc.to_array(["ORTH", "IS_PUNCT"])
        closes = np.isin(attributes[:, 0], ends)
        closed = np.cumsum(closes)
        plain = np.flatnonzero(~closes & (attributes[:, 1] == 0))
        # Among plain tokens, those before which something was closed since the plain token before.
        begins = plain[1:][np.diff(closed[plain]) > 0]
        if len(plain) and closed[plain[0]]:
            begins = np.concatenate([plain[:1], begins])
        starts = [0, *begins.tolist()] if len(doc) else []
        spans.append(list(pairwise([*starts, len(doc)])))
    return spans


def _sent_spans(docs: Sequence[Doc]) -> list[Offsets]:
    spans: list[Offsets] = []
    for doc in docs:
        if len(doc) and not doc.has_annotation("SENT_START"):
            raise NoSentencesError(
                f'sent_spans: no sentence boundaries in the Doc "{_beginning(doc)}". Put a component that sets them '
                "(parser, senter, sentencizer) before `elmo`, and for training list it in `annotating_components` of "
                "[training]: without that, `spacy train` gives every component bare Docs. Or use "
                'span_getter = {"@misc": "spacy-elmo.rule_spans.v1"}, which needs no boundaries.'
            )
        spans.append([(sent.start, sent.end) for sent in doc.sents] if len(doc) else [])
    return spans


def _doc_spans(docs: Sequence[Doc]) -> list[Offsets]:
    return [[(0, len(doc))] if len(doc) else [] for doc in docs]


def _strided_spans(docs: Sequence[Doc], *, window: int) -> list[Offsets]:
    return [[(i, min(i + window, len(doc))) for i in range(0, len(doc), window)] for doc in docs]


def _check_partition(doc: Doc, spans: Sequence[tuple[int, int]]) -> None:
    position = 0
    for start, end in spans:
        if start != position or end <= start:
            break
        position = end
    else:
        if position == len(doc):
            return
        start, end = position, position
    raise ElmoError(
        f'span getter: in the Doc "{_beginning(doc)}" of {len(doc)} tokens the spans go wrong at token {position} '
        f"(({start}, {end}) found there). They must cover every token once, in order, and none may be empty."
    )


def _beginning(doc: Doc) -> str:
    return doc.text if len(doc.text) <= 60 else doc.text[:60] + "…"
