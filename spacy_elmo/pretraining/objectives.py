"""Output layers that a config can ask for: they turn hidden vectors into the loss of the next word."""

from __future__ import annotations

from collections.abc import Callable

from ..bilm.softmax import FullSoftmax, SampledSoftmax
from ..errors import PretrainingError

Objective = Callable[[int, int], FullSoftmax]


def full_softmax() -> Objective:
    """``spacy-elmo.full_softmax.v1``: cross entropy over the whole vocabulary. Exact; for vocabularies up to some
    ten thousand words.

    RETURNS: a function of the vocabulary's size V and the hidden width P.
    """

    def create(n_words: int, width: int) -> FullSoftmax:
        return FullSoftmax(n_words, width)

    return create


def sampled_softmax(n_samples: int = 8192) -> Objective:
    """``spacy-elmo.sampled_softmax.v1``: cross entropy against ``n_samples`` words drawn log-uniformly, as in bilm-tf.

    n_samples (int): distinct negative words a step and direction. At most half of the vocabulary is ever drawn: beyond
        that the full softmax would be cheaper, and a draw of nearly every word takes very long.
    RETURNS: a function of the vocabulary's size V and the hidden width P.
    """
    if n_samples < 1:
        raise PretrainingError(f"objective.n_samples must be at least 1, not {n_samples}")

    def create(n_words: int, width: int) -> SampledSoftmax:
        return SampledSoftmax(n_words, width, n_samples=max(1, min(n_samples, n_words // 2)))

    return create
