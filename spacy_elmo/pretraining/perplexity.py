"""Perplexity of text under a pretrained biLM (full softmax), or its loss: every sentence by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
        if kind is Perplexity:
            figures["n_characters"] = scores.get("n_characters")
        return kind(n_targets=scores["n_targets"], **figures)


_FIGURES = ("forward", "backward", "joint")


@dataclass(frozen=True, kw_only=True)
class Perplexity(Evaluation):
    """Perplexity per predicted word. A sentence of n words has n + 1 targets a direction: its words and a boundary.

    forward, backward (float): exp of the direction's mean negative log-likelihood.
    joint (float): exp of the mean over both directions: √(forward × backward). It is what bilm-tf reports.
    n_targets (int): targets of one direction.
    n_characters (int | None): characters (code points) of the words, and one for each sentence's boundary; None where
        nobody has counted them.
    """

    name: ClassVar[str] = "perplexity"
    n_characters: int | None = None

    @classmethod
    def from_nll(cls, forward: float, backward: float, n_targets: int, n_characters: int | None = None) -> Perplexity:
        """From sums of negative log-likelihoods (nats)."""
        if n_targets == 0:
            raise PretrainingError("no sentence to measure the perplexity of")
        return cls(
            forward=_exp(forward / n_targets),
            backward=_exp(backward / n_targets),
            joint=_exp(0.5 * (forward + backward) / n_targets),
            n_targets=n_targets,
            n_characters=n_characters,
        )

    @property
    def bits_per_word(self) -> float:
        """log2 of the joint perplexity."""
        return math.log2(self.joint)

    @property
    def bits_per_character(self) -> float | None:
        """The joint negative log-likelihood of the text (mean of both directions, in nats) / ln 2 / ``n_characters``.

        It does not depend on how the text is cut into words, so it compares models of different tokenizers and
        vocabularies; but an unknown word costs what ``<UNK>`` costs and nothing for its letters, so that it flatters a
        vocabulary that lacks many words of the text.
        """
        return self.bits_per_word * self.n_targets / self.n_characters if self.n_characters else None

    def scores(self) -> dict[str, float]:
        """See `Evaluation`; bits_per_character and n_characters too, where characters were counted."""
        bits, n_characters = self.bits_per_character, self.n_characters
        more = (
            {} if bits is None or n_characters is None else {"bits_per_character": bits, "n_characters": n_characters}
        )
        return {**super().scores(), **more}

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
    between: Callable[[], object] | None = None,
) -> Evaluation:
    """Perplexity of a text, or its loss if that is all that the output layer has; of each sentence by itself.

    targets: what is predicted of each word. sentences, batch_tokens: see ``perplexity``.
    between: called after each batch; what it raises ends the evaluation.
    Raises PretrainingError if there is no sentence, or none of its words has a vector.
    """
    ids = _ids_of(targets, sentences)
    sums = _sentence_losses(bilm, layer, ids, sentences, batch_tokens, between)
    forward, backward = math.fsum(sums[:, 0]), math.fsum(sums[:, 1])
    if layer.has_perplexity:
        n_targets = sum(len(sentence) + 1 for sentence in sentences)
        return Perplexity.from_nll(forward, backward, n_targets, sum(map(_characters, sentences)))
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


def _characters(sentence: Sequence[str]) -> int:
    return sum(map(len, sentence)) + 1


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
    ids = _ids_in(vocabulary, sentences)
    sums = _sentence_losses(bilm, softmax, ids, sentences, batch_tokens)
    targets = [len(sentence) + 1 for sentence in sentences]
    characters = [_characters(sentence) for sentence in sentences]
    # fsum is exact, so that the order of the sentences cannot show in the last digit.
    total = Perplexity.from_nll(math.fsum(sums[:, 0]), math.fsum(sums[:, 1]), sum(targets), sum(characters))
    return total, [
        Perplexity.from_nll(forward, backward, n, n_characters)
        for (forward, backward), n, n_characters in zip(sums.tolist(), targets, characters, strict=True)
    ]


def perplexity_by_position(
    bilm: BiLM,
    softmax: OutputLayer,
    vocabulary: Sequence[str],
    sentences: Sequence[Sequence[str]],
    *,
    first: int = 5,
    state: Literal["zero", "warm"] | None = None,
    batch_tokens: int = 4096,
) -> dict[str, Perplexity]:
    """Perplexity of the targets at each of the first positions, and of the rest: what a start state is good for.

    A position is counted in the order in which a direction reads: the first target of the forward direction is a
    sentence's first word, that of the backward direction its last one. Before it stands the start state alone.

    first (int): positions by themselves. state: where the LSTMs start; None: as the weights have it.
    RETURNS: by "1", "2", ..., f"1-{first}" (all of these together), "rest" and "all", those that there are.
    Raises PretrainingError if there is no sentence, or the output layer has no perplexity.
    """
    check_has_perplexity(softmax)
    ids = _ids_in(vocabulary, sentences)
    sums, counts = np.zeros((2, first + 1)), np.zeros(first + 1, dtype=np.int64)
    for batch, losses in _target_losses(bilm, softmax, ids, sentences, batch_tokens, state):
        targets = np.array([len(sentences[i]) + 1 for i in batch])
        head = min(first, losses.shape[2])
        sums[:, :head] += losses[:, :, :head].sum(axis=1)
        sums[:, first] += losses[:, :, first:].sum(axis=(1, 2))
        counts[:first] += (targets[:, None] > np.arange(first)).sum(axis=0)
        counts[first] += np.maximum(targets - first, 0).sum()
    parts = {str(position + 1): slice(position, position + 1) for position in range(first)}
    parts |= {f"1-{first}": slice(0, first), "rest": slice(first, None), "all": slice(None)}
    found = {}
    for name, part in parts.items():
        n = int(counts[part].sum())
        if n or name == "all":
            forward, backward = sums[:, part].sum(axis=1).tolist()
            found[name] = Perplexity.from_nll(forward, backward, n)
    return found


def check_has_perplexity(layer: OutputLayer) -> None:
    """Raises PretrainingError for an output layer that gives no probabilities."""
    if not layer.has_perplexity:
        raise PretrainingError(
            f"this model has no perplexity: its output layer ({layer.kind}) predicts vectors and gives words no "
            "probabilities. How near it came to those of the dev text stands in its meta.json, as joint_loss"
        )


def _ids_in(vocabulary: Sequence[str], sentences: Sequence[Sequence[str]]) -> dict[str, int]:
    """The row of each word, of the boundaries too. Raises PretrainingError if the vocabulary lacks a mark."""
    target_of = {word: row for row, word in enumerate(vocabulary)}
    unknown = target_of.get(UNK)
    if unknown is None or BOS not in target_of or EOS not in target_of:
        raise PretrainingError(f"the vocabulary must hold {BOS}, {EOS} and {UNK}")
    return {word: target_of.get(word, unknown) for sentence in sentences for word in [BOS, EOS, *sentence]}


def _sentence_losses(
    bilm: BiLM,
    layer: OutputLayer,
    target_of: Mapping[str, int],
    sentences: Sequence[Sequence[str]],
    batch_tokens: int,
    between: Callable[[], object] | None = None,
) -> np.ndarray:
    """Sums of the targets' losses of each sentence: (n, 2) float64, forward and backward."""
    sums = np.zeros((len(sentences), 2))
    for batch, losses in _target_losses(bilm, layer, target_of, sentences, batch_tokens):
        # One after the other: what pads a row cannot show in the last digit.
        sums[batch] = losses.cumsum(axis=2)[:, :, -1].T
        if between is not None:
            between()
    return sums


def _target_losses(
    bilm: BiLM,
    layer: OutputLayer,
    target_of: Mapping[str, int],
    sentences: Sequence[Sequence[str]],
    batch_tokens: int,
    state: Literal["zero", "warm"] | None = None,
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Batches of sentences, as their indices, with each target's loss: (2, B, T) float64, forward and backward, 0
    behind a sentence's last target.
    """
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
        yield batch, _batch_losses(bilm, layer, list(rows), inputs, targets, counts, state)


@torch.no_grad()
def _batch_losses(
    bilm: BiLM,
    layer: OutputLayer,
    words: list[str],
    inputs: np.ndarray,
    targets: np.ndarray,
    counts: np.ndarray,
    policy: Literal["zero", "warm"] | None,
) -> np.ndarray:
    """(2, B, T), 0 at steps that do not count. inputs, targets: (2, B, T), both directions; counts: (B, T)."""
    types = bilm.token_ids(words)
    device = types.device
    state = bilm.start_state(inputs.shape[1], policy)
    losses = np.zeros(inputs.shape)
    for start in range(0, inputs.shape[2], MAX_STEPS):
        part = slice(start, start + MAX_STEPS)
        # Of a long sentence only the words of this part are encoded.
        used, places = np.unique(inputs[:, :, part], return_inverse=True)
        forward, backward = torch.from_numpy(places.reshape(inputs[:, :, part].shape)).to(device)
        *hidden, state = bilm.hidden(types[torch.from_numpy(used).to(device)], forward, backward, state, 0.0)
        mask = counts[:, part]
        where = torch.from_numpy(mask).to(device)
        for direction in (0, 1):
            expected = torch.from_numpy(targets[direction, :, part][mask]).to(device)
            found = layer.target_losses(hidden[direction][where], expected).double().cpu().numpy()
            losses[direction, :, part][mask] = found
    return losses


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
