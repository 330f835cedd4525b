"""Windows of contiguous text for pretraining: what the biLM reads and predicts at each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import CorpusError, PretrainingError
from .corpus import EncodedCorpus
from .vectors import Targets
from .word_types import BOS_TYPE, EOS_TYPE

# Of more documents than this, so many neighbours stay together that their order is no longer than this.
MOST_PIECES = 1 << 20
# Places that are read before their memory is given back: Linux maps up to a megabyte around each, of two files.
_PLACES = 128
_BLOCK = 1 << 16  # pieces that are looked up at once


@dataclass(frozen=True)
class Window:
    """What one training step reads: B rows of T steps, both directions over the same sentences.

    type_rows: (U,) int64, the distinct corpus types that are read, sorted; each is encoded once.
    forward: (B, T) int64, inputs of the forward direction, as positions in `type_rows`.
    backward: (B, T) int64, the same for the backward direction.
    forward_targets: (B, T) int64, ids of what is to be predicted.
    backward_targets: (B, T) int64, the same for the backward direction.
    starts: (B, T) bool, where a sentence begins, in both directions.
    document_starts: (B, T) bool, where a document's first sentence begins.
    """

    type_rows: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    forward_targets: np.ndarray
    backward_targets: np.ndarray
    starts: np.ndarray
    document_starts: np.ndarray


class Stream:
    """The windows of a corpus, each a pure function of the step's number.

    A sentence of n words is n + 1 steps. Forward: inputs BOS w1..wn, targets w1..wn EOS; backward: inputs EOS wn..w1,
    targets wn..w1 BOS (bilm-tf's data, both directions on the same sentence at the same steps). Each epoch lays the
    documents out in an order of its own, one after the other, and cuts this into B equal rows: row i of window t + 1
    goes on where row i of window t ended. What is left at the end of an epoch, less than a window, is dropped.
    Of more than a million documents, neighbours stay together.

    Memory: four bytes a type and 28 a document, of at most `MOST_PIECES` pieces; all else stays on disk.
    """

    def __init__(
        self,
        corpus: EncodedCorpus,
        targets: Targets,
        *,
        rows: int,
        unroll_steps: int,
        seed: int,
        own: slice = slice(None),
    ) -> None:
        """Prepare the windows.

        targets: what is predicted of each type. rows: B. unroll_steps: T. seed: of the orders of the documents.
        own: which of the rows the windows have.
        RAISES: CorpusError if the corpus does not fill one window.
        """
        if rows < 1 or unroll_steps < 1:
            raise PretrainingError(f"rows is {rows} and unroll_steps {unroll_steps}: both must be 1 or more")
        self.rows = rows
        self.unroll_steps = unroll_steps
        self.seed = seed
        self._ids = corpus.ids
        self._targets = targets.ids(corpus.types).astype(np.int32)
        # In the order of the corpus: at which step each sentence begins. Each one before adds a step to its words.
        self._sentence_steps = corpus.sentence_steps
        self._release = corpus.release
        self._release_after = self._until_release = max(1, _PLACES // rows)  # windows
        # Of each piece, mostly a document: its first sentence, and at which step it begins.
        together = -(-corpus.n_documents // MOST_PIECES)
        self._document_starts = corpus.document_starts if together > 1 else None  # a piece is a document
        n_pieces = -(-corpus.n_documents // together)
        self._piece_sentences = np.full(n_pieces + 1, corpus.n_sentences)
        self._piece_steps = np.full(n_pieces + 1, self._sentence_steps[-1])
        for start in range(0, n_pieces, _BLOCK):
            stop = min(start + _BLOCK, n_pieces)
            sentences = corpus.document_starts[start * together : (stop - 1) * together + 1 : together]
            self._piece_sentences[start:stop] = sentences
            self._piece_steps[start:stop] = self._sentence_steps[sentences]
            corpus.release()
        self._order: tuple[int, np.ndarray, np.ndarray] | None = None
        self.steps_per_epoch = int(self._sentence_steps[-1]) // (rows * unroll_steps)
        if not self.steps_per_epoch:
            raise CorpusError(
                f"The corpus is too small: {corpus.n_words} words in {corpus.n_sentences} sentences do not fill one "
                f"window of {rows} rows * {unroll_steps} steps. Lower rows or unroll_steps, or give more text"
            )
        self._own_rows = np.arange(rows)[own]  # only now are there no more of them than words

    def window(self, step: int) -> Window:
        """Build the window of a step, counted from 0 over all epochs."""
        if not self._until_release:
            self._release()
            self._until_release = self._release_after
        self._until_release -= 1
        epoch, index = divmod(step, self.steps_per_epoch)
        order, starts = self._piece_order(epoch)
        # Positions in the epoch's layout, then the same steps in the order of the corpus.
        row_starts = self._own_rows * (self.steps_per_epoch * self.unroll_steps) + index * self.unroll_steps
        positions = row_starts[:, None] + np.arange(self.unroll_steps)
        place = np.searchsorted(starts, positions, side="right") - 1
        piece = order[place]
        positions += self._piece_steps[piece] - starts[place]
        sentence = self._sentence_at(positions, piece)
        start = self._sentence_steps[sentence]
        k = positions - start
        n = self._sentence_steps[sentence + 1] - start - 1
        first = start - sentence  # where in ids the sentence begins

        at_start, at_end = k == 0, k == n
        forward_next = np.where(at_end, EOS_TYPE, self._words(first + k, at_end))
        forward = np.where(at_start, BOS_TYPE, self._words(first + k - 1, at_start))
        backward_next = np.where(at_end, BOS_TYPE, self._words(first + n - 1 - k, at_end))
        backward = np.where(at_start, EOS_TYPE, self._words(first + n - k, at_start))
        type_rows, inverse = np.unique(np.stack([forward, backward]), return_inverse=True)
        inverse = inverse.reshape(2, len(row_starts), self.unroll_steps)
        return Window(
            type_rows=type_rows,
            forward=inverse[0],
            backward=inverse[1],
            forward_targets=self._targets[forward_next].astype(np.int64),
            backward_targets=self._targets[backward_next].astype(np.int64),
            starts=at_start,
            document_starts=at_start & self._begins_document(sentence, piece),
        )

    def _begins_document(self, sentence: np.ndarray, piece: np.ndarray) -> np.ndarray:
        """Whether each of some sentences, which lie in pieces, is the first of its document."""
        if self._document_starts is None:
            return np.asarray(sentence == self._piece_sentences[piece])
        starts = self._document_starts
        return np.asarray(starts[np.searchsorted(starts, sentence)] == sentence)

    def _words(self, where: np.ndarray, unused: np.ndarray) -> np.ndarray:
        # Where no word is wanted the place may lie outside of the sentence, even of the corpus.
        return np.asarray(self._ids[np.where(unused, 0, where)], dtype=np.int64)

    def _sentence_at(self, positions: np.ndarray, piece: np.ndarray) -> np.ndarray:
        """The sentence at each step of the corpus, which lies in a piece. Looks nowhere else, to touch few pages."""
        low, high = self._piece_sentences[piece], self._piece_sentences[piece + 1]
        while np.any(high - low > 1):
            middle = (low + high) // 2
            behind = self._sentence_steps[middle] > positions
            low, high = np.where(behind, low, middle), np.where(behind, middle, high)
        return low

    def _piece_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The pieces as an epoch lays them out, and where in its layout each begins."""
        cached = self._order  # read once: another thread may set it
        if cached is None or cached[0] != epoch:
            n_pieces = len(self._piece_steps) - 1
            order = np.random.default_rng([self.seed, epoch]).permutation(n_pieces).astype(np.int32)
            starts = np.cumsum(np.append(0, np.diff(self._piece_steps)[order[:-1]]))
            cached = self._order = (epoch, order, starts)
        return cached[1], cached[2]
