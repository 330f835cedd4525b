"""Windows of contiguous text for pretraining: what the biLM reads and predicts at each step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import CorpusError, PretrainingError
from .corpus import BOS_TYPE, EOS_TYPE, EncodedCorpus
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Window:
    """What one training step reads: B rows of T steps, both directions over the same sentences.

    type_rows: (U,) int64, the distinct corpus types that are read, sorted; each is encoded once.
    forward: (B, T) int64, inputs of the forward direction, as positions in `type_rows`.
    backward: (B, T) int64, the same for the backward direction.
    forward_targets: (B, T) int64, vocabulary ids of what is to be predicted.
    backward_targets: (B, T) int64, the same for the backward direction.
    starts: (B, T) bool, where a sentence begins, in both directions.
    """

    type_rows: np.ndarray
    forward: np.ndarray
    backward: np.ndarray
    forward_targets: np.ndarray
    backward_targets: np.ndarray
    starts: np.ndarray


class Stream:
    """The windows of a corpus, each a pure function of the step's number.

    A sentence of n words is n + 1 steps. Forward: inputs BOS w1..wn, targets w1..wn EOS; backward: inputs EOS wn..w1,
    targets wn..w1 BOS (bilm-tf's data, both directions on the same sentence at the same steps). Each epoch lays the
    documents out in an order of its own, one after the other, and cuts this into B equal rows: row i of window t + 1
    goes on where row i of window t ended. What is left at the end of an epoch, less than a window, is dropped.

    Memory: eight bytes a sentence and a few arrays of the number of documents and of types; words stay on disk.
    """

    def __init__(
        self,
        corpus: EncodedCorpus,
        vocabulary: Vocabulary,
        *,
        rows: int,
        unroll_steps: int,
        seed: int,
        own: slice = slice(None),
    ) -> None:
        """Prepare the windows.

        rows: B. unroll_steps: T. seed: of the orders of the documents. own: which of the rows the windows have.
        RAISES: CorpusError if the corpus does not fill one window.
        """
        if rows < 1 or unroll_steps < 1:
            raise PretrainingError(f"rows is {rows} and unroll_steps {unroll_steps}: both must be 1 or more")
        self.rows = rows
        self.unroll_steps = unroll_steps
        self._own_rows = np.arange(rows)[own]
        self.seed = seed
        self._ids = corpus.ids
        self._targets = vocabulary.ids(corpus.types)
        # In the order of the corpus: at which step each sentence begins. Each one before adds a step to its words.
        self._sentence_steps = np.asarray(corpus.sentence_starts) + np.arange(len(corpus.sentence_starts))
        self._document_steps = self._sentence_steps[np.asarray(corpus.document_starts)]
        self._order: tuple[int, np.ndarray, np.ndarray] | None = None
        self.steps_per_epoch = int(self._sentence_steps[-1]) // (rows * unroll_steps)
        if not self.steps_per_epoch:
            raise CorpusError(
                f"The corpus is too small: {corpus.n_words} words in {corpus.n_sentences} sentences do not fill one "
                f"window of {rows} rows * {unroll_steps} steps. Lower rows or unroll_steps, or give more text"
            )

    def window(self, step: int) -> Window:
        """Build the window of a step, counted from 0 over all epochs."""
        epoch, index = divmod(step, self.steps_per_epoch)
        starts, shifts = self._document_order(epoch)
        # Positions in the epoch's layout, then the same steps in the order of the corpus.
        row_starts = self._own_rows * (self.steps_per_epoch * self.unroll_steps) + index * self.unroll_steps
        positions = row_starts[:, None] + np.arange(self.unroll_steps)
        positions += shifts[np.searchsorted(starts, positions, side="right") - 1]
        sentence = np.searchsorted(self._sentence_steps, positions, side="right") - 1
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
            forward_targets=self._targets[forward_next],
            backward_targets=self._targets[backward_next],
            starts=at_start,
        )

    def _words(self, where: np.ndarray, unused: np.ndarray) -> np.ndarray:
        # Where no word is wanted the place may lie outside of the sentence, even of the corpus.
        return np.asarray(self._ids[np.where(unused, 0, where)], dtype=np.int64)

    def _document_order(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Where in the epoch's layout each document begins, and what to add to get its steps in the corpus's order."""
        cached = self._order  # read once: another thread may set it
        if cached is None or cached[0] != epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self._document_steps) - 1)
            lengths = np.diff(self._document_steps)[order]
            starts = np.cumsum(lengths) - lengths
            cached = self._order = (epoch, starts, self._document_steps[order] - starts)
        return cached[1], cached[2]
