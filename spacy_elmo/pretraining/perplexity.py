"""Perplexity of text under a pretrained biLM (full softmax), or its loss: every sentence by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from ..bilm.characters import BOS, EOS, UNK
from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer
from ..errors import PretrainingError
from .vectors import Targets

# Steps of one pass. A longer sentence goes on in the next pass from the state that this one left: same result.
MAX_STEPS = 512


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How well each next word of a text is predicted: a `Perplexity`, or a `MeanLoss`.

    forward, backward (float): of each direction. joint (float): of both.
    n_targets (int): targets that were counted.
    """

    name: ClassVar[str]
    forward: float
    backward: float
    joint: float
    n_targets: int

    @property
    def score(self) -> float:
        """What the best model has most of."""
        raise NotImplementedError

    def scores(self) -> dict[str, float]:
        """The figures by the names that loggers see: forward_perplexity, ..., or forward_loss, ..., and n_targets."""
        figures: dict[str, float] = {f"{which}_{self.name}": getattr(self, which) for which in _FIGURES}
        return {**figures, "n_targets": self.n_targets}

    @staticmethod
    def from_scores(scores: Mapping[str, Any]) -> Evaluation:
        """The inverse of ``scores``. Others are left aside. Raises PretrainingError if one is missing."""
        kind = Perplexity if "joint_perplexity" in scores else MeanLoss
        figures: dict[str, Any] = {which: scores.get(f"{which}_{kind.name}") for which in _FIGURES}
        if not all(isinstance(figure, float) for figure in figures.values()):
            raise PretrainingError(f"not the figures of a perplexity or a loss: {figures}")
        return kind(n_targets=scores["n_targets"], **figures)


_FIGURES = ("forward", "backward", "joint")


@dataclass(frozen=True, kw_only=True)
class Perplexity(Evaluation):
    """Perplexity per predicted word. A sentence of n words has n + 1 targets a direction: its words and a boundary.

    forward, backward (float): exp of the direction's mean negative log-likelihood.
    joint (float): exp of the mean over both directions: √(forward × backward). It is what bilm-tf reports.
    n_targets (int): targets of one direction.
    """

    name: ClassVar[str] = "perplexity"

    @classmethod
    def from_nll(cls, forward: float, backward: float, n_targets: int) -> Perplexity:
        """From sums of negative log-likelihoods (nats)."""
        if n_targets == 0:
            raise PretrainingError("no sentence to measure the perplexity of")
        return cls(
            forward=_exp(forward / n_targets),
            backward=_exp(backward / n_targets),
            joint=_exp(0.5 * (forward + backward) / n_targets),
            n_targets=n_targets,
        )

    @property
    def bits_per_word(self) -> float:
        """log2 of the joint perplexity."""
        return math.log2(self.joint)

    @property
    def score(self) -> float:
        """-bits_per_word."""
        return -self.bits_per_word


@dataclass(frozen=True, kw_only=True)
class MeanLoss(Evaluation):
    """Loss per predicted word of an objective that has no perplexity: a cosine distance, or nats of a density.

    forward, backward (float): means over the direction's targets that count. joint (float): the mean of both.
    n_targets (int): targets that count, those that have a vector, of both directions.
    """

    name: ClassVar[str] = "loss"

    @property
    def score(self) -> float:
        """-joint."""
        return -self.joint


def evaluate(
    bilm: BiLM,
    layer: OutputLayer,
    targets: Targets,
    sentences: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 4096,
) -> Evaluation:
    """Perplexity of a text, or its loss if that is all that the output layer has; of each sentence by itself.

    targets: what is predicted of each word. sentences, batch_tokens: see ``perplexity``.
    Raises PretrainingError if there is no sentence, or none of its words has a vector.
    """
    ids = _ids_of(targets, sentences)
    sums = _sentence_losses(bilm, layer, ids, sentences, batch_tokens)
    forward, backward = math.fsum(sums[:, 0]), math.fsum(sums[:, 1])
    if layer.has_perplexity:
        return Perplexity.from_nll(forward, backward, sum(len(sentence) + 1 for sentence in sentences))
    # Target 0 is a word without a vector.
    words = sum(ids[word] > 0 for sentence in sentences for word in sentence)
    ahead, behind = (words + len(sentences) * int(ids[mark] > 0) for mark in (EOS, BOS))
    if not ahead or not behind:
        raise PretrainingError("none of the dev text's words has a vector: there is no loss to measure")
    mean_forward, mean_backward = forward / ahead, backward / behind
    return MeanLoss(
        forward=mean_forward,
        backward=mean_backward,
        joint=0.5 * (mean_forward + mean_backward),
        n_targets=ahead + behind,
    )


def _ids_of(targets: Targets, sentences: Sequence[Sequence[str]]) -> dict[str, int]:
    """The target of each word, of the boundaries too."""
    words = list(dict.fromkeys([BOS, EOS, *(word for sentence in sentences for word in sentence)]))
    return dict(zip(words, targets.ids(words).tolist(), strict=True))


def perplexity(
    bilm: BiLM,
    softmax: OutputLayer,
    vocabulary: Sequence[str],
    sentences: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 4096,
) -> Perplexity:
    """Perplexity of a text. It depends on neither the order of the sentences nor how they are batched.

    vocabulary: the words that the softmax predicts, by row; others count as ``<UNK>``, in targets only.
    sentences: words of each sentence, without boundaries.
    batch_tokens (int): bound on the padded words of one pass.
    Raises PretrainingError if there is no sentence, or the output layer has no perplexity.
    """
    return perplexities(bilm, softmax, vocabulary, sentences, batch_tokens=batch_tokens)[0]


def perplexities(
    bilm: BiLM,
    softmax: OutputLayer,
    vocabulary: Sequence[str],
    sentences: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 4096,
) -> tuple[Perplexity, list[Perplexity]]:
    """Perplexity of a text, and of each of its sentences by itself: what `perplexity` computes, once for both."""
    check_has_perplexity(softmax)
    target_of = {word: row for row, word in enumerate(vocabulary)}
    unknown = target_of.get(UNK)
    if unknown is None or BOS not in target_of or EOS not in target_of:
        raise PretrainingError(f"the vocabulary must hold {BOS}, {EOS} and {UNK}")
    ids = {word: target_of.get(word, unknown) for sentence in sentences for word in [BOS, EOS, *sentence]}
    sums = _sentence_losses(bilm, softmax, ids, sentences, batch_tokens)
    targets = [len(sentence) + 1 for sentence in sentences]
    # fsum is exact, so that the order of the sentences cannot show in the last digit.
    total = Perplexity.from_nll(math.fsum(sums[:, 0]), math.fsum(sums[:, 1]), sum(targets))
    return total, [
        Perplexity.from_nll(forward, backward, n) for (forward, backward), n in zip(sums.tolist(), targets, strict=True)
    ]


def check_has_perplexity(layer: OutputLayer) -> None:
    """Raises PretrainingError for an output layer that gives no probabilities."""
    if not layer.has_perplexity:
        raise PretrainingError(
            f"this model has no perplexity: its output layer ({layer.kind}) predicts vectors and gives words no "
            "probabilities. How near it came to those of the dev text stands in its meta.json, as joint_loss"
        )


def _sentence_losses(
    bilm: BiLM,
    layer: OutputLayer,
    target_of: Mapping[str, int],
    sentences: Sequence[Sequence[str]],
    batch_tokens: int,
) -> np.ndarray:
    """Sums of the targets' losses of each sentence: (n, 2) float64, forward and backward."""
    sums = np.zeros((len(sentences), 2))
    for batch in _batches([len(sentence) for sentence in sentences], batch_tokens):
        rows: dict[str, int] = {bilm.config.marks.begin: 0, bilm.config.marks.end: 1}
        longest = max(len(sentences[i]) for i in batch) + 1
        # Rows are padded at their end with the begin mark, where nothing that counts comes after.
        inputs = np.zeros((2, len(batch), longest), dtype=np.int64)
        targets = np.zeros((2, len(batch), longest), dtype=np.int64)
        counts = np.zeros((len(batch), longest), dtype=bool)
        for row, i in enumerate(batch):
            words = sentences[i]
            ids = [rows.setdefault(word, len(rows)) for word in words]
            expected = [target_of[word] for word in words]
            end = len(words) + 1
            inputs[0, row, :end], targets[0, row, :end] = [0, *ids], [*expected, target_of[EOS]]
            inputs[1, row, :end], targets[1, row, :end] = [1, *ids[::-1]], [*expected[::-1], target_of[BOS]]
            counts[row, :end] = True
        sums[batch] = _batch_losses(bilm, layer, list(rows), inputs, targets, counts)
    return sums


@torch.no_grad()
def _batch_losses(
    bilm: BiLM, layer: OutputLayer, words: list[str], inputs: np.ndarray, targets: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """(B, 2) sums over the steps that count. inputs, targets: (2, B, T), both directions; counts: (B, T)."""
    types = bilm.token_ids(words)
    device = types.device
    state = bilm.start_state(inputs.shape[1])
    sums = np.zeros((inputs.shape[1], 2))
    for start in range(0, inputs.shape[2], MAX_STEPS):
        part = slice(start, start + MAX_STEPS)
        forward, backward = (torch.from_numpy(inputs[d, :, part]).to(device) for d in (0, 1))
        *hidden, state = bilm.hidden(types, forward, backward, state, 0.0)
        mask = counts[:, part]
        row_of = np.nonzero(mask)[0]
        where = torch.from_numpy(mask).to(device)
        for direction in (0, 1):
            expected = torch.from_numpy(targets[direction, :, part][mask]).to(device)
            losses = layer.target_losses(hidden[direction][where], expected).double().cpu().numpy()
            sums[:, direction] += np.bincount(row_of, weights=losses, minlength=len(mask))
    return sums


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices of sentences, like lengths together, at most ``batch_tokens`` padded steps a batch (one at least)."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        # In rising order the newest sentence sets the padded length.
        if batch and (len(batch) + 1) * (lengths[i] + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
