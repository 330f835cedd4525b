"""Perplexity of text under a pretrained biLM: full softmax, every sentence by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from ..bilm.characters import BOS, EOS, UNK
from ..bilm.model import BiLM
from ..bilm.softmax import FullSoftmax
from ..errors import PretrainingError

# Steps of one pass. A longer sentence goes on in the next pass from the state that this one left: same result.
MAX_STEPS = 512


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """Perplexity per predicted word. A sentence of n words has n + 1 targets a direction: its words and a boundary.

    forward, backward (float): exp of the direction's mean negative log-likelihood.
    joint (float): exp of the mean over both directions: √(forward × backward). It is what bilm-tf reports.
    n_targets (int): targets of one direction.
    n_characters (int | None): characters (code points) of the words, and one for each sentence's boundary; None where
        nobody has counted them.
    """

    forward: float
    backward: float
    joint: float
    n_targets: int
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


def perplexity(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocabulary: Sequence[str],
    sentences: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 4096,
) -> Perplexity:
    """Perplexity of a text. It depends on neither the order of the sentences nor how they are batched.

    vocabulary: the words that the softmax predicts, by row; others count as ``<UNK>``, in targets only.
    sentences: words of each sentence, without boundaries.
    batch_tokens (int): bound on the padded words of one pass.
    Raises PretrainingError if there is no sentence.
    """
    return perplexities(bilm, softmax, vocabulary, sentences, batch_tokens=batch_tokens)[0]


def perplexities(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocabulary: Sequence[str],
    sentences: Sequence[Sequence[str]],
    *,
    batch_tokens: int = 4096,
) -> tuple[Perplexity, list[Perplexity]]:
    """Perplexity of a text, and of each of its sentences by itself: what `perplexity` computes, once for both."""
    sums = np.zeros((len(sentences), 2))
    for batch, nlls in _batch_nlls(bilm, softmax, vocabulary, sentences, batch_tokens):
        # One after the other: what pads a row cannot show in the last digit.
        sums[batch] = nlls.cumsum(axis=2)[:, :, -1].T
    targets = [len(sentence) + 1 for sentence in sentences]
    characters = [sum(map(len, sentence)) + 1 for sentence in sentences]
    # fsum is exact, so that the order of the sentences cannot show in the last digit.
    total = Perplexity.from_nll(math.fsum(sums[:, 0]), math.fsum(sums[:, 1]), sum(targets), sum(characters))
    return total, [
        Perplexity.from_nll(forward, backward, n, n_characters)
        for (forward, backward), n, n_characters in zip(sums.tolist(), targets, characters, strict=True)
    ]


def perplexity_by_position(
    bilm: BiLM,
    softmax: FullSoftmax,
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
    """
    sums, counts = np.zeros((2, first + 1)), np.zeros(first + 1, dtype=np.int64)
    for batch, nlls in _batch_nlls(bilm, softmax, vocabulary, sentences, batch_tokens, state):
        targets = np.array([len(sentences[i]) + 1 for i in batch])
        head = min(first, nlls.shape[2])
        sums[:, :head] += nlls[:, :, :head].sum(axis=1)
        sums[:, first] += nlls[:, :, first:].sum(axis=(1, 2))
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


def _batch_nlls(
    bilm: BiLM,
    softmax: FullSoftmax,
    vocabulary: Sequence[str],
    sentences: Sequence[Sequence[str]],
    batch_tokens: int,
    state: Literal["zero", "warm"] | None = None,
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Batches of sentences, as their indices, with each target's negative log-likelihood: (2, B, T) float64, forward
    and backward, 0 behind a sentence's last target.
    """
    target_of = {word: row for row, word in enumerate(vocabulary)}
    unknown = target_of.get(UNK)
    if unknown is None or BOS not in target_of or EOS not in target_of:
        raise PretrainingError(f"the vocabulary must hold {BOS}, {EOS} and {UNK}")
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
            expected = [target_of.get(word, unknown) for word in words]
            end = len(words) + 1
            inputs[0, row, :end], targets[0, row, :end] = [0, *ids], [*expected, target_of[EOS]]
            inputs[1, row, :end], targets[1, row, :end] = [1, *ids[::-1]], [*expected[::-1], target_of[BOS]]
            counts[row, :end] = True
        yield batch, _nlls(bilm, softmax, list(rows), inputs, targets, counts, state)


@torch.no_grad()
def _nlls(
    bilm: BiLM,
    softmax: FullSoftmax,
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
    nlls = np.zeros(inputs.shape)
    for start in range(0, inputs.shape[2], MAX_STEPS):
        part = slice(start, start + MAX_STEPS)
        forward, backward = (torch.from_numpy(inputs[d, :, part]).to(device) for d in (0, 1))
        *hidden, state = bilm.hidden(types, forward, backward, state, 0.0)
        mask = counts[:, part]
        where = torch.from_numpy(mask).to(device)
        for direction in (0, 1):
            expected = torch.from_numpy(targets[direction, :, part][mask]).to(device)
            found = softmax.nll(hidden[direction][where], expected).double().cpu().numpy()
            nlls[direction, :, part][mask] = found
    return nlls


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
