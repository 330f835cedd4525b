"""Sentences in, layers out: the inference path. No gradients, no dropout, whatever mode the module is in.

Words become types once a call, types become vectors once, rows run sorted by length through both stacks in windows
of bounded size, and results land in the caller's order.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import ElmoError
from .characters import BILM_TF_MARKS, Marks
from .matmul import Precision, checked_precision
from .stacks import Stacks, make_stacks
from .words import WordVectors

if TYPE_CHECKING:
    from .model import BiLM, BiLMState

# Rows and words that run together: enough rows for good matrix products, few enough words to keep memory small.
ROWS_PER_BATCH = 128
WORDS_PER_BATCH = 8192
# Words whose token vectors are remembered: 64 MB at the published size.
CACHE_WORDS = 32_768


class Packed(NamedTuple):
    """The weights as inference wants them, in one precision."""

    words: WordVectors
    stacks: Stacks


@dataclass
class Runtime:
    """What is derived from the weights or from earlier calls: never copied, never saved.

    packed: the weights of each precision that was asked for.
    carried: the state of each row after the last call with ``state="carry"``.
    version: tells these weights from all others in this process.
    stamp: which tensors the weights were, where, and how often torch had written to each, when this was made.
    """

    stamp: list[tuple[int, int, int]] = field(default_factory=list)
    packed: dict[Precision, Packed] = field(default_factory=dict)
    carried: BiLMState | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    version: int = field(default_factory=itertools.count(1).__next__)


def unique_words(
    sentences: Sequence[Sequence[str]], marks: Marks = BILM_TF_MARKS
) -> tuple[list[str], list[np.ndarray]]:
    """Give each word type a number and write the sentences, between their boundaries, in numbers.

    RETURNS: the types (those of the begin and the end of a sentence first), and for each sentence of n words an int64
        array (n + 2,).
    Raises ElmoError for a word that is a list, or the like.
    """
    numbers: dict[str, int] = {marks.begin: 0, marks.end: 1}
    try:
        rows = [
            np.fromiter(
                (0, *[numbers.setdefault(word, len(numbers)) for word in sentence], 1),
                dtype=np.int64,
                count=len(sentence) + 2,
            )
            for sentence in sentences
        ]
    except TypeError as error:  # it has no hash
        raise ElmoError(f"words are str, and a sentence is a list of them: {error}") from error
    return list(numbers), rows


def batches_by_length(
    indices: Sequence[int], lengths: Sequence[int], rows: int = ROWS_PER_BATCH, words: int = WORDS_PER_BATCH
) -> Iterator[list[int]]:
    """Cut rows into batches of similar length, each in descending order of length.

    A batch has at most ``rows`` rows and about ``words`` words, or one row of any length.
    """
    batch: list[int] = []
    for index in sorted(indices, key=lambda i: -lengths[i]):
        if batch and (len(batch) == rows or lengths[batch[0]] * (len(batch) + 1) > words):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def checked_sentences(
    sentences: Iterable[Iterable[str]], state: object, known: Sequence[str], max_length: int
) -> list[Sequence[str]]:
    """The sentences as lists of words. Raises ElmoError for what neither inference nor training can read."""
    if state is not None and state not in known:
        raise ElmoError(f"state is one of {', '.join(map(repr, known))} or None, not {state!r}")
    if not _is_count(max_length) or max_length < 1:
        raise ElmoError(f"max_length is at least 1, not {max_length!r}")
    sentences = sentences if isinstance(sentences, str) else list(sentences)
    if isinstance(sentences, str) or any(isinstance(sentence, str) for sentence in sentences):
        raise ElmoError("sentences are lists of words, not strings: split them first")
    return [sentence if isinstance(sentence, (list, tuple)) else list(sentence) for sentence in sentences]


def encode(
    bilm: BiLM,
    sentences: Iterable[Iterable[str]],
    state: Literal["zero", "warm", "carry"] | None = None,
    *,
    precision: Precision = "float32",
    out: Sequence[Tensor] | None = None,
    max_length: int = 512,
    cache_words: int = CACHE_WORDS,
) -> list[Tensor]:
    """Layers 0 to L of each sentence, boundaries added and removed inside.

    A sentence's vectors depend on that sentence alone (but with ``state="carry"``): not on the others, their order or
    the thread. Sums may be rounded in another order, which moves the vectors by some 1e-6 of the largest value.

    sentences: words of each; an empty one gives (L + 1, 0, 2P).
    state: where the LSTMs start. None: the weights' own policy; "zero"; "warm": the start state kept with the
        weights; "carry": row i starts where row i of the call before ended, as bilm-tf and AllenNLP run
        (``bilm.reset_state()`` forgets). Carried calls run one at a time.
    precision: of the matrix products. "float32" is exact; "bfloat16" rounds what is multiplied, for up to twice the
        speed on processors that have it and half the memory of weights. All else is float32 in both.
    out: tensors to write into, one a sentence, each (L + 1, n, 2P) float32 on the model's device, any strides.
    max_length: steps that run at once; longer rows go in windows that carry their state, with the same result.
    cache_words: word types whose token vectors are kept for later calls, P floats each (the cache is the biLM's, and is
        emptied when its weights change). 0: none.
    RETURNS: (L + 1, n, 2P) for each sentence, float32 as the weights are, on the model's device.
    Raises ElmoError for an unknown state policy or precision, a max_length below 1, a negative cache_words, "warm"
        without a start state, strings in the place of lists, ``out`` of other shapes or another dtype.
    """
    sentences = checked_sentences(sentences, state, ("zero", "warm", "carry"), max_length)
    if not _is_count(cache_words) or cache_words < 0:
        raise ElmoError(f"cache_words is at least 0, not {cache_words!r}")
    if out is not None:
        _check_out(bilm, sentences, out)
    # A caller's autocast would round float32's products, and what is cached of them.
    with torch.no_grad(), torch.autocast(bilm.device.type, enabled=False):
        runtime = bilm.runtime()
        packed = _packed(bilm, runtime, checked_precision(precision))
        words, rows = unique_words(sentences, bilm.config.marks)
        table = packed.words.table(bilm, words, cache_words)
        if state != "carry":
            return _encode(bilm, packed.stacks, table, rows, state, out, max_length)
        with runtime.lock:
            return _encode(bilm, packed.stacks, table, rows, state, out, max_length)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _packed(bilm: BiLM, runtime: Runtime, precision: Precision) -> Packed:
    packed = runtime.packed.get(precision)
    if packed is None:
        with runtime.lock:
            packed = runtime.packed.get(precision)
            if packed is None:
                packed = Packed(WordVectors(bilm, precision), make_stacks(bilm, precision))
                runtime.packed[precision] = packed
    return packed


def _check_out(bilm: BiLM, sentences: Sequence[Sequence[str]], out: Sequence[Tensor]) -> None:
    if len(out) != len(sentences):
        raise ElmoError(f"out holds {len(out)} tensors for {len(sentences)} sentences")
    for sentence, tensor in zip(sentences, out, strict=True):
        shape = (bilm.config.n_layers + 1, len(sentence), bilm.config.width)
        if tuple(tensor.shape) != shape:
            raise ElmoError(f"out holds a tensor of shape {tuple(tensor.shape)} where {shape} is to be written")
        if tensor.dtype != torch.float32 and tensor.dtype != bilm.forward_lstm.layers[0].kernel.dtype:
            raise ElmoError(f"out holds a tensor of {tensor.dtype} where torch.float32 is to be written")


def _encode(
    bilm: BiLM,
    stacks: Stacks,
    table: Tensor,
    rows: list[np.ndarray],
    state: Literal["zero", "warm", "carry"] | None,
    out: Sequence[Tensor] | None,
    max_length: int,
) -> list[Tensor]:
    config = bilm.config
    # On a GPU, unless the caller has tensors of his own, results are views of a batch's: to deal them out would take
    # a kernel each.
    views = out is None and table.is_cuda
    if views:
        results = [table.new_empty(config.n_layers + 1, 0, config.width)] * len(rows)
    elif out is None:
        results = [table.new_empty(config.n_layers + 1, len(row) - 2, config.width) for row in rows]
    else:
        results = list(out)
    # Without carried state an empty sentence changes nothing.
    indices = [i for i, row in enumerate(rows) if len(row) > 2 or state == "carry"]
    carried = _carried_rows(bilm, len(rows)) if state == "carry" else None
    for batch in batches_by_length(indices, [len(row) for row in rows], stacks.rows, 64 * stacks.rows):
        start = bilm.start_state(len(batch), "zero" if state == "carry" else state)
        if carried is not None:
            for name, tensor in start.tensors().items():
                tensor.copy_(carried.tensors()[name][:, batch])
        hidden = torch.stack([start.forward_hidden, start.backward_hidden])
        cell = torch.stack([start.forward_cell, start.backward_cell])
        of_batch = None if views else [results[i] for i in batch]
        parts = _encode_batch(stacks, table, [rows[i] for i in batch], hidden, cell, of_batch, max_length)
        if views:
            for i, part in zip(batch, parts, strict=True):
                results[i] = part
        if carried is not None:
            for name, tensor in zip(start.tensors(), (hidden[0], cell[0], hidden[1], cell[1]), strict=True):
                carried.tensors()[name][:, batch] = tensor
    return results


def _carried_rows(bilm: BiLM, rows: int) -> BiLMState:
    """The carried state with at least ``rows`` rows; new rows start from zero, old ones are kept."""
    carried = bilm._runtime.carried
    have = 0 if carried is None else carried.forward_hidden.shape[1]
    if carried is None or have < rows:
        # Whatever mode the caller is in now, the state is written to again at the next call.
        with torch.inference_mode(False):
            grown = bilm.zero_state(rows)
        if carried is not None:
            for name, tensor in carried.tensors().items():
                grown.tensors()[name][:, :have] = tensor
        carried = bilm._runtime.carried = grown
    return carried


def _encode_batch(
    stacks: Stacks,
    table: Tensor,
    rows: list[np.ndarray],
    hidden: Tensor,
    cell: Tensor,
    out: list[Tensor] | None,
    max_length: int,
) -> list[Tensor]:
    """Run rows of descending length through both stacks. hidden, cell: as ``Stacks.run`` has them.

    RETURNS: ``out``, filled; or views of one tensor.
    """
    lengths = np.array([len(row) for row in rows])
    words = lengths - 2
    types = np.concatenate(rows)
    first = np.cumsum(lengths) - lengths  # of each row, among ``types``
    # Each word's row, its step in either direction (a boundary comes first), and its token vector, which is layer 0.
    row_of = np.repeat(np.arange(len(rows)), words)
    place = np.arange(len(row_of)) - np.repeat(np.cumsum(words) - words, words)
    step_of = np.stack([place + 1, words[row_of] - place])
    # One row writes its result where it belongs; several share a buffer that is dealt out at the end.
    width = table.shape[1]
    if out is not None and len(rows) == 1:
        shared = out[0]
    else:
        shared = table.new_empty(hidden.shape[1] + 1, len(row_of), 2 * width)
    token_vectors = table[_on(table, types[first[row_of] + step_of[0]])]
    shared[0, :, :width] = token_vectors
    shared[0, :, width:] = token_vectors

    window = max(1, min(max_length, stacks.steps // len(rows)))
    for begin in range(0, int(lengths[0]), window):
        end = min(begin + window, int(lengths[0]))
        steps = np.arange(begin, end)
        # Rows are sorted, so those that go on are the first ones.
        active = np.searchsorted(-lengths, -steps, side="left")
        starts = np.cumsum(active) - active
        step = np.repeat(steps, active)
        row = np.arange(len(step)) - np.repeat(starts, active)
        read = np.stack([types[first[row] + step], types[first[row] + lengths[row] - 1 - step]])
        layers = stacks.run(table, _on(table, read), active.tolist(), hidden, cell)
        for direction in range(2):
            half = slice(direction * width, (direction + 1) * width)
            steps_here = step_of[direction]
            if begin == 0 and end == lengths[0]:
                source = _on(table, starts[steps_here] + row_of)
                for depth, layer in enumerate(layers, 1):
                    shared[depth, :, half] = layer[direction][source]
                continue
            inside = np.flatnonzero((steps_here >= begin) & (steps_here < end))
            source = _on(table, starts[steps_here[inside] - begin] + row_of[inside])
            target = _on(table, inside)
            for depth, layer in enumerate(layers, 1):
                shared[depth, :, half].index_copy_(0, target, layer[direction][source].to(shared.dtype))
    parts = list(shared.split(words.tolist(), dim=1))
    if out is None:
        return parts
    if len(rows) > 1:
        for result, part in zip(out, parts, strict=True):
            result.copy_(part)
    return out


def _on(table: Tensor, index: np.ndarray) -> Tensor:
    """Indices as a tensor where ``table`` is."""
    tensor = torch.from_numpy(index)
    # From pinned memory a copy runs by itself: one that waits would wait for all that the GPU has to do before it.
    return tensor.pin_memory().to(table.device, non_blocking=True) if table.is_cuda else tensor
