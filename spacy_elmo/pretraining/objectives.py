"""Objectives that a config can ask for: output layers that turn hidden vectors into the loss of the next word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import torch

from ..bilm.adaptive import AdaptiveSoftmax
from ..bilm.continuous import ContinuousOutput, VectorLoss
from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer
from ..bilm.softmax import FullSoftmax, SampledSoftmax
from ..bilm.token_encoder import WordEncoder
from ..errors import ElmoError, PretrainingError
from .vectors import Targets, VectorTargets, WordVectors
from .vocabulary import N_SPECIAL, log_frequencies

if TYPE_CHECKING:
    from .prepare import Corpora


class Objective(Protocol):
    """What [objective] of a config gives: a function of the vocabulary's size V and the hidden width P."""

    def __call__(self, n_words: int, width: int) -> OutputLayer:
        """The output layer, its weights not drawn yet."""
        ...


@dataclass(frozen=True, kw_only=True)
class SoftmaxObjective:
    """What ``full_softmax`` and ``sampled_softmax`` give.

    tied: W is the biLM's word table. n_samples: None for the whole vocabulary.
    unigram_bias: see `initialize_output`.
    """

    tied: bool
    unigram_bias: bool
    n_samples: int | None = None

    def __call__(self, n_words: int, width: int) -> FullSoftmax:
        """The softmax, its weights not drawn yet."""
        if self.n_samples is None:
            return FullSoftmax(n_words, width, tied=self.tied)
        n_samples = max(1, min(self.n_samples, n_words // 2))
        return SampledSoftmax(n_words, width, n_samples=n_samples, tied=self.tied)


def full_softmax(tie_weights: bool = False, unigram_bias: bool = False) -> Objective:
    """``spacy-elmo.full_softmax.v1``: cross entropy over the whole vocabulary. Exact; for vocabularies up to some
    ten thousand words.

    tie_weights (bool): W is the word table of the biLM, which has to read words (model.filters = null), as with
        bilm-tf's share_embedding_softmax.
    unigram_bias (bool): the biases begin as the log frequencies of the words in the training text and not as 0, as
        bilm-tf's do, so that training need not find these first.
    """
    return SoftmaxObjective(tied=tie_weights, unigram_bias=unigram_bias)


def sampled_softmax(n_samples: int = 8192, tie_weights: bool = False, unigram_bias: bool = False) -> Objective:
    """``spacy-elmo.sampled_softmax.v1``: cross entropy against ``n_samples`` words drawn log-uniformly, as in bilm-tf.

    n_samples (int): distinct negative words a step and direction. At most half of the vocabulary is ever drawn: beyond
        that the full softmax would be cheaper, and a draw of nearly every word takes very long.
    tie_weights (bool): see ``full_softmax``. The word table's gradient is dense: a step costs more with a larger one.
    unigram_bias (bool): see ``full_softmax``.
    """
    if n_samples < 1:
        raise PretrainingError(f"objective.n_samples must be at least 1, not {n_samples}")
    return SoftmaxObjective(tied=tie_weights, unigram_bias=unigram_bias, n_samples=n_samples)


@dataclass(frozen=True, kw_only=True)
class AdaptiveObjective:
    """What ``adaptive_softmax`` gives. unigram_bias: see `initialize_output`."""

    cutoffs: Sequence[int]
    div_value: float
    head_bias: bool
    unigram_bias: bool

    def __call__(self, n_words: int, width: int) -> AdaptiveSoftmax:
        """The softmax, its weights not drawn yet. Raises PretrainingError where it cannot be made of this width."""
        reached = [cutoff for cutoff in self.cutoffs if cutoff < n_words] or [n_words - 1]
        try:
            return AdaptiveSoftmax(
                n_words,
                width,
                cutoffs=reached,
                div_value=self.div_value,
                head_bias=self.head_bias or self.unigram_bias,
                tail_bias=self.unigram_bias,
            )
        except ElmoError as error:
            raise PretrainingError(f"objective: {error}") from error


def adaptive_softmax(
    cutoffs: list[int] = [2000, 10000],  # noqa: B006 - read only, and shown by the config
    div_value: float = 4.0,
    head_bias: bool = False,
    unigram_bias: bool = False,
) -> Objective:
    """``spacy-elmo.adaptive_softmax.v1``: cross entropy of torch's adaptive softmax (Grave et al., 2017).

    cutoffs (list): where the clusters of rarer and rarer words begin. Those that the vocabulary does not reach are left
        out; if it reaches none, its last word is a cluster.
    div_value (float): each cluster reads so many times fewer numbers than the one before; the head reads all.
    head_bias (bool): whether the head has biases.
    unigram_bias (bool): head and clusters have biases, which begin as the log frequencies of the words in the training
        text: see ``full_softmax``.
    """
    _check("cutoffs", cutoffs, "rising whole numbers, one at least, from 1 on", _rising(cutoffs))
    _check("div_value", div_value, "1 or more", 1.0 <= div_value < math.inf)
    return AdaptiveObjective(
        cutoffs=tuple(cutoffs), div_value=div_value, head_bias=head_bias, unigram_bias=unigram_bias
    )


class ContinuousObjective:
    """What ``continuous_output`` gives: it opens the vectors, too."""

    def __init__(
        self, vectors: str, loss: VectorLoss = "cosine", dot_weight: float = 1.0, norm_weight: float = 0.0
    ) -> None:
        self.name = vectors
        self._options = {"loss": loss, "dot_weight": dot_weight, "norm_weight": norm_weight}
        try:
            self._layer(2, 1)  # says what is wrong with them
        except ElmoError as error:
            raise PretrainingError(f"objective: {error}") from error

    @cached_property
    def vectors(self) -> WordVectors:
        """The vectors, opened. Raises PretrainingError if that cannot be done."""
        return WordVectors(self.name)

    def __call__(self, n_words: int, width: int) -> ContinuousOutput:
        """The output layer, without its vectors. n_words is of no consequence."""
        return self._layer(self.vectors.n_dims, width, vectors=self.vectors.name, sha256=self.vectors.sha256())

    def _layer(self, n_dims: int, width: int, **source: str) -> ContinuousOutput:
        return ContinuousOutput(n_dims, width, **self._options, **source)  # type: ignore[arg-type]


def continuous_output(
    vectors: str, loss: VectorLoss = "cosine", dot_weight: float = 1.0, norm_weight: float = 0.0
) -> Objective:
    """``spacy-elmo.continuous_output.v1``: predict the pretrained vector of the next word (Li et al., 2019).

    vectors (str): an installed pipeline package, or a folder: see `WordVectors`. Opened when the run begins.
    loss (str): "cosine", the distance 1 - cos; or "vmf", the negative log-density of von Mises and Fisher.
    dot_weight, norm_weight (float): of "vmf": λ2 and λ1 of Kumar and Tsvetkov (2019), whose values are 0.1 and 0.02.
        The defaults are the density itself.
    RETURNS: a function of the vocabulary's size, which is of no consequence, and the hidden width P.
    """
    return ContinuousObjective(vectors, loss, dot_weight, norm_weight)


def check_objective(objective: Objective) -> None:
    """Raises PretrainingError for vectors that are not there: to be asked before a corpus is read."""
    if isinstance(objective, ContinuousObjective):
        _ = objective.vectors


def prediction_targets(objective: Objective, corpora: Corpora) -> Targets:
    """What an objective predicts of the corpora: words of the vocabulary, or vectors.

    Raises PretrainingError for vectors that cannot be read, or that the text's words do not have.
    """
    if isinstance(objective, ContinuousObjective):
        return VectorTargets(objective.vectors, corpora.train.types, corpora.dev.types)
    if len(corpora.vocabulary) == N_SPECIAL:
        raise PretrainingError(
            "no word of the text is in the vocabulary, so there is nothing to predict: lower vocabulary.min_count, or "
            "give more text"
        )
    return corpora.vocabulary


def output_layer(objective: Objective, targets: Targets, bilm: BiLM, n_words: int) -> OutputLayer:
    """The output layer of an objective, with the vectors or the word table that it needs.

    n_words: V, size of the vocabulary.
    Raises PretrainingError if the biLM has no word table to share.
    """
    layer = objective(n_words, bilm.config.projection_dim)
    if isinstance(layer, ContinuousOutput) and isinstance(targets, VectorTargets):
        layer.use_table(targets.table)
    if isinstance(layer, FullSoftmax) and layer.tied:
        if not isinstance(bilm.token_encoder, WordEncoder):
            raise PretrainingError(TIE_NEEDS_WORDS)
        layer.tie(bilm.token_encoder.embedding)
    return layer


@torch.no_grad()
def initialize_output(objective: Objective, layer: OutputLayer, corpora: Corpora, seed: int) -> None:
    """Draw the weights of an objective's output layer.

    With ``unigram_bias`` the biases begin with the words' frequencies, see `log_frequencies`: where all else is 0 the
    distribution is that of the training text's unigrams.

    layer: on the CPU. corpora: of whose vocabulary it is.
    """
    layer.initialize(seed)
    if not getattr(objective, "unigram_bias", False):
        return
    assert isinstance(layer, (FullSoftmax, AdaptiveSoftmax))
    layer.begin_with(torch.from_numpy(log_frequencies(corpora.train, corpora.vocabulary)))


TIE_NEEDS_WORDS = (
    "objective.tie_weights shares the table of word vectors between the biLM's input and its softmax, but this biLM "
    "spells words by their characters and has no such table: set model.filters = null (words are then read from a "
    "table), or tie_weights = false"
)


def _rising(cutoffs: list[int]) -> bool:
    return bool(cutoffs) and all(low < high for low, high in pairwise([0, *cutoffs]))


def _check(name: str, value: object, wanted: str, in_range: bool) -> None:
    if not in_range:
        raise PretrainingError(f"objective.{name} is {value}: it must be {wanted}")
