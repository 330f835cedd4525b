"""Occurrences of a word, and where else in a text a biLM sees the most alike (Peters et al., 2018, table 4)."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from ..bilm import BiLM
from ..bilm.matmul import Precision, checked_precision
from ..errors import ElmoError, shown
from ..text_forms import TextForm, checked_text_form
from .embed import (
    BYTES_PER_STEP,
    FEWEST_WORDS,
    MOST_WORDS,
    Layers,
    Sentence,
    Splitter,
    checked_count,
    checked_layer,
    checked_path,
    read_weights,
)
from .text_lines import Line, TextLines

# Occurrences that are compared with a text's at once: bounds memory.
QUERIES_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """A word in its sentence.

    file, line: where, from 1; None of the sentence that was given. position: of the word in the sentence, from 0.
    before, word, after: the words around it, divided by spaces; "…" where the sentence goes on.
    """

    file: str | None
    line: int | None
    position: int
    before: str
    word: str
    after: str

    def __str__(self) -> str:
        return " ".join(part for part in (self.before, f"[{self.word}]", self.after) if part)


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    """similarity: the cosine of the two vectors."""

    similarity: float
    occurrence: Occurrence


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """One occurrence of the word and the nearest others, nearest first.

    number: which occurrence in the text, from 1; None of the sentence that was given.
    """

    number: int | None
    occurrence: Occurrence
    nearest: list[Neighbor]


def neighbors(
    texts: str | Path | Iterable[str | Path],
    weights: BiLM | str | Path,
    word: str,
    *,
    layer: Layers = "top",
    n: int = 10,
    any_word: bool = False,
    ignore_case: bool = False,
    sentence: str | None = None,
    occurrences: Iterable[int] | None = None,
    first: int = 10,
    limit: int | None = None,
    context: int = 10,
    precision: Precision = "float32",
    state: str | None = None,
    pretokenized: bool = False,
    lang: str | None = None,
    text: TextForm = "orth",
    batch_words: int | None = None,
    stderr: IO[str] | None = None,
) -> list[Neighbors]:
    """For occurrences of a word, the occurrences in some texts whose contextual vectors are nearest, by cosine.

    The texts are read twice (once with ``sentence``), and only sentences that matter are computed. Memory holds the
    vectors of ``batch_words`` words, or of the longest line, and of the occurrences asked about.

    An occurrence in a sentence of the very same words is not another one, and of several such only the first counts.

    texts: files, a sentence a line, as ``embed_file`` takes them. weights: a biLM, or what ``load_bilm`` reads.
    word: as it is written in the text. ignore_case: in small letters or capitals.
    layer: whose vectors: "top", "mean" of all, or the number of one, from 0.
    n: neighbours of each occurrence. any_word: other words may be neighbours too.
    sentence: asks about the word in this sentence, in place of the text's.
    occurrences: asks about these of the text's, by number, from 1. None: about the first ones, ``first`` of them.
    limit: sentences that are read of the texts; None: all. context: words of a sentence that are given on each side.
    precision, state ("zero", "warm"), pretokenized, lang, text, batch_words, stderr: as of ``embed_file``.
    Raises CorpusError for text that cannot be read, WeightsError for weights, ElmoError for a word that does not occur,
        and for settings that make no sense.
    """
    wanted = _Word(word, ignore_case)
    if isinstance(texts, (str, os.PathLike)):
        texts = [texts]
    elif not isinstance(texts, Iterable):
        raise ElmoError(f"texts are paths of files, not {shown(texts)}")
    paths = [checked_path(path, "a text") for path in texts]
    n, first, context = checked_count(n, "n"), checked_count(first, "first"), checked_count(context, "context")
    limit = None if limit is None else checked_count(limit, "limit")
    numbers = None if occurrences is None else {checked_count(number, "an occurrence") for number in occurrences}
    if state not in (None, "zero", "warm"):
        raise ElmoError(f"state is zero or warm, not {shown(state)}")
    if not isinstance(weights, BiLM):
        checked_path(weights, "weights, if no biLM,")
    form = checked_text_form(text)
    TextLines(paths)  # says so if a file cannot be read, before weights are
    bilm, split = read_weights(weights, form, lang, pretokenized)
    chosen = checked_layer(layer, bilm.config.n_layers)
    if chosen == "all":
        raise ElmoError("layer is one, or 'mean' or 'top': vectors of all layers are not compared")
    number = chosen if isinstance(chosen, int) else None
    if batch_words is None:
        most = BYTES_PER_STEP // ((bilm.config.n_layers + 1) * bilm.config.width * np.dtype(np.float32).itemsize)
        batch_words = min(max(most, FEWEST_WORDS), MOST_WORDS)
    batch_words = checked_count(batch_words, "batch_words")
    precision = checked_precision(precision)

    def encode(sentences: Sequence[Sentence]) -> Iterator[np.ndarray]:
        """(n_words, 2P) float32 of each, with rows of length 1."""
        read = [sentence.read for sentence in sentences]
        for layers in bilm.encode(read, state, precision=precision):  # type: ignore[arg-type]
            vectors = (layers.mean(dim=0) if number is None else layers[number]).float().cpu().numpy()
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            yield vectors / np.where(norms > 0, norms, 1)

    def batches(filtered: bool, what: str) -> Iterator[list[Sentence]]:
        lines = TextLines(paths)
        with tqdm(
            total=lines.size, desc=what, unit="B", unit_scale=True, disable=None, leave=False, file=stderr or sys.stderr
        ) as bar:
            every = iter(lines)  # kept: its file is asked how far it has been read
            for batch in _batches(islice(every, limit), split, batch_words, wanted if filtered else None):
                yield batch
                bar.update(lines.position - bar.n)

    if sentence is None:
        queries = _in_texts(batches(True, "occurrences"), encode, wanted, numbers, first, context)
    else:
        queries = _in_sentence(sentence, split, encode, wanted, context)
    for batch in batches(not any_word, "neighbours"):
        _compare(queries, batch, encode, None if any_word else wanted, n, context)
    return [query.result() for query in queries]


class _Word:
    """Which tokens are meant."""

    def __init__(self, word: object, ignore_case: bool) -> None:
        if not isinstance(word, str) or len(word.split()) != 1:
            raise ElmoError(f"word is one word, not {shown(word)}")
        self.word = word
        self._fold: Callable[[str], str] = str.casefold if ignore_case else str
        self._folded = self._fold(word)

    def may_be_in(self, text: str) -> bool:
        """Whether it is worth while to cut this text into words."""
        return self._folded in self._fold(text)

    def positions(self, tokens: Sequence[str]) -> list[int]:
        return [position for position, token in enumerate(tokens) if self._fold(token) == self._folded]


@dataclass
class _Query:
    """An occurrence that is asked about, and the nearest others so far, each by its sentence's words and its place."""

    number: int | None
    occurrence: Occurrence
    vector: np.ndarray
    words: bytes
    nearest: dict[tuple[bytes, int], Neighbor] = field(default_factory=dict)
    least: float = -np.inf

    def offer(self, similarities: np.ndarray, candidates: Sequence[_Candidate], n: int, context: int) -> None:
        """Take what is nearer than the n nearest so far; of equals, those that came first stay."""
        # Not all at once: what the first of them bring in may shut out the rest.
        nearer = np.flatnonzero(similarities > self.least)
        for row in nearer[np.argsort(-similarities[nearer], kind="stable")].tolist():
            similarity = float(similarities[row])
            if similarity <= self.least:
                break
            candidate = candidates[row]
            words = candidate.words()
            key = words, candidate.position
            if words == self.words or key in self.nearest:
                continue
            if len(self.nearest) == n:
                # The last that came of the least.
                out = min(reversed(self.nearest), key=lambda key: self.nearest[key].similarity)
                del self.nearest[out]
            self.nearest[key] = Neighbor(similarity=similarity, occurrence=candidate.occurrence(context))
            if len(self.nearest) == n:
                self.least = min(one.similarity for one in self.nearest.values())

    def result(self) -> Neighbors:
        nearest = sorted(self.nearest.values(), key=lambda one: -one.similarity)
        return Neighbors(number=self.number, occurrence=self.occurrence, nearest=nearest)


@dataclass(frozen=True)
class _Candidate:
    sentence: Sentence
    position: int

    def words(self) -> bytes:
        """The same for sentences of the same words."""
        text = "\0".join(self.sentence.tokens).encode("utf8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=16).digest()

    def occurrence(self, context: int) -> Occurrence:
        tokens, line, position = self.sentence.tokens, self.sentence.line, self.position
        before = tokens[max(0, position - context) : position]
        after = tokens[position + 1 : position + 1 + context]
        return Occurrence(
            file=str(line.path) if line.number else None,
            line=line.number or None,
            position=position,
            before=" ".join(["…"] * (position > context) + before),
            word=tokens[position],
            after=" ".join(after + ["…"] * (position + 1 + context < len(tokens))),
        )


def _batches(
    lines: Iterator[Line], split: Splitter, batch_words: int, wanted: _Word | None
) -> Iterator[list[Sentence]]:
    """Sentences in which the wanted word occurs, or all, in batches of some ``batch_words`` words."""
    goes_on = True
    while goes_on:
        batch: list[Sentence] = []
        kept = read = 0
        # What spaCy keeps of words that it has met is forgotten after each batch.
        with split.memory():
            while max(kept, read // 4) < batch_words:
                line = next(lines, None)
                if line is None:
                    goes_on = False
                    break
                if wanted is not None and not wanted.may_be_in(line.text):
                    continue
                sentence = split(line)
                read += len(sentence.tokens) + 1
                if wanted is None or wanted.positions(sentence.tokens):
                    batch.append(sentence)
                    kept += len(sentence.tokens) + 1
        if batch:
            yield batch


_Encode = Callable[[Sequence[Sentence]], Iterator[np.ndarray]]


def _in_texts(
    batches: Iterator[list[Sentence]],
    encode: _Encode,
    wanted: _Word,
    numbers: set[int] | None,
    first: int,
    context: int,
) -> list[_Query]:
    queries: list[_Query] = []
    last = first if numbers is None else max(numbers, default=0)
    met = 0
    for batch in batches:
        asked: list[tuple[int, _Candidate]] = []
        for sentence in batch:
            for position in wanted.positions(sentence.tokens):
                met += 1
                if met <= last and (numbers is None or met in numbers):
                    asked.append((met, _Candidate(sentence, position)))
        sentences = {id(candidate.sentence): candidate.sentence for _, candidate in asked}
        vectors = dict(zip(sentences, encode(list(sentences.values())), strict=True))
        for number, candidate in asked:
            # A copy: a view would hold the whole sentence's.
            vector = vectors[id(candidate.sentence)][candidate.position].copy()
            queries.append(_Query(number, candidate.occurrence(context), vector, candidate.words()))
        if met >= last:
            break
    if not met:
        raise ElmoError(f"the word {shown(wanted.word)} does not occur in the text")
    if numbers is not None and met < last:
        raise ElmoError(f"the word {shown(wanted.word)} occurs {met} times: there is no occurrence {last}")
    return queries


def _in_sentence(sentence: str, split: Splitter, encode: _Encode, wanted: _Word, context: int) -> list[_Query]:
    if not isinstance(sentence, str):
        raise ElmoError(f"sentence is a str, not {shown(sentence)}")
    with split.memory():
        own = split(Line(Path("sentence"), 0, sentence))
    positions = wanted.positions(own.tokens)
    if not positions:
        raise ElmoError(f"the word {shown(wanted.word)} does not occur in the sentence ({' '.join(own.tokens):.200})")
    (vectors,) = encode([own])
    candidates = [_Candidate(own, position) for position in positions]
    return [_Query(None, one.occurrence(context), vectors[one.position], one.words()) for one in candidates]


def _compare(
    queries: Sequence[_Query],
    batch: Sequence[Sentence],
    encode: _Encode,
    wanted: _Word | None,
    n: int,
    context: int,
) -> None:
    """Offer each query what a batch has."""
    candidates: list[_Candidate] = []
    rows: list[Any] = []
    for sentence, vectors in zip(batch, encode(batch), strict=True):
        tokens = sentence.tokens
        positions = list(range(len(tokens))) if wanted is None else wanted.positions(tokens)
        candidates += [_Candidate(sentence, position) for position in positions]
        rows.append(vectors[positions])
    matrix = np.concatenate(rows)
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        some = queries[start : start + QUERIES_AT_ONCE]
        for query, similarities in zip(some, np.stack([one.vector for one in some]) @ matrix.T, strict=True):
            query.offer(similarities, candidates, n, context)
