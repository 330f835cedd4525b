"""Sentences in, layers out: the inference path. No gradients, no dropout, whatever mode the module is in.

Words become types once a call, types become vectors once, rows run sorted by length through both stacks in windows
of bounded size, and results land in the caller's order.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from ..errors import ElmoError
from .characters import BOS, EOS

if TYPE_CHECKING:
    from .lstm import LSTMStack
    from .model import BiLM, BiLMState

# Rows and words that run together: enough rows for good matrix products, few enough words to keep memory small.
ROWS_PER_BATCH = 128
WORDS_PER_BATCH = 8192
# Packed steps for which gates are held at once: 4H floats each, 64 MB at the published size.
STEPS_PER_WINDOW = 1024


@dataclass
class Runtime:
    """What is derived from the weights or from earlier calls: never copied, never saved.

    carried: the state of each row after the last call with ``state="carry"``.
    version: tells these weights from all others in this process.
    """

    carried: BiLMState | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    version: int = field(default_factory=itertools.count(1).__next__)


def unique_words(sentences: Sequence[Sequence[str]]) -> tuple[list[str], list[np.ndarray]]:
    """Give each word type a number and write the sentences, between their boundaries, in numbers.

    RETURNS: the types (``<S>`` and ``</S>`` first), and for each sentence of n words an int64 array (n + 2,).
    """
    numbers: dict[str, int] = {BOS: 0, EOS: 1}
    rows = [
        np.fromiter(
            (0, *[numbers.setdefault(word, len(numbers)) for word in sentence], 1),
            dtype=np.int64,
            count=len(sentence) + 2,
        )
        for sentence in sentences
    ]
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
    if max_length < 1:
        raise ElmoError(f"max_length is at least 1, not {max_length}")
    sentences = sentences if isinstance(sentences, str) else list(sentences)
    if isinstance(sentences, str) or any(isinstance(sentence, str) for sentence in sentences):
        raise ElmoError("sentences are lists of words, not strings: split them first")
    return [sentence if isinstance(sentence, (list, tuple)) else list(sentence) for sentence in sentences]


def encode(
    bilm: BiLM,
    sentences: Iterable[Iterable[str]],
    state: Literal["zero", "warm", "carry"] | None = None,
    *,
    out: Sequence[Tensor] | None = None,
    max_length: int = 512,
) -> list[Tensor]:
    """Layers 0 to L of each sentence, boundaries added and removed inside.

    A sentence's vectors depend on that sentence alone (but with ``state="carry"``), to about 1e-7: not on the
    others, their order or the thread.

    sentences: words of each; an empty one gives (L + 1, 0, 2P).
    state: where the LSTMs start. None: the weights' own policy; "zero"; "warm": the start state kept with the
        weights; "carry": row i starts where row i of the call before ended, as bilm-tf and AllenNLP run
        (``bilm.reset_state()`` forgets). Carried calls run one at a time.
    out: tensors to write into, one a sentence, each (L + 1, n, 2P) float32 on the model's device, any strides.
    max_length: steps that run at once; longer rows go in windows that carry their state, with the same result.
    RETURNS: float32 (L + 1, n, 2P) for each sentence, on the model's device.
    Raises ElmoError for an unknown state policy, a max_length below 1, "warm" without a start state, strings in the
        place of lists, ``out`` of other shapes.
    """
    sentences = checked_sentences(sentences, state, ("zero", "warm", "carry"), max_length)
    if out is not None:
        _check_out(bilm, sentences, out)
    with torch.no_grad():
        if state != "carry":
            return _encode(bilm, sentences, state, out, max_length)
        with bilm._runtime.lock:
            return _encode(bilm, sentences, state, out, max_length)


def _check_out(bilm: BiLM, sentences: Sequence[Sequence[str]], out: Sequence[Tensor]) -> None:
    if len(out) != len(sentences):
        raise ElmoError(f"out holds {len(out)} tensors for {len(sentences)} sentences")
    for sentence, tensor in zip(sentences, out, strict=True):
        shape = (bilm.config.n_layers + 1, len(sentence), bilm.config.width)
        if tuple(tensor.shape) != shape:
            raise ElmoError(f"out holds a tensor of shape {tuple(tensor.shape)} where {shape} is to be written")


def _encode(
    bilm: BiLM,
    sentences: Sequence[Sequence[str]],
    state: Literal["zero", "warm", "carry"] | None,
    out: Sequence[Tensor] | None,
    max_length: int,
) -> list[Tensor]:
    config = bilm.config
    words, rows = unique_words(sentences)
    table = bilm.token_encoder(bilm.token_ids(words))
    if out is None:
        out = [table.new_empty(config.n_layers + 1, len(sentence), config.width) for sentence in sentences]
    # Without carried state an empty sentence changes nothing.
    indices = [i for i, row in enumerate(rows) if len(row) > 2 or state == "carry"]
    carried = _carried_rows(bilm, len(sentences)) if state == "carry" else None
    for batch in batches_by_length(indices, [len(row) for row in rows]):
        start = bilm.start_state(len(batch), "zero" if state == "carry" else state)
        if carried is not None:
            for name, tensor in start.tensors().items():
                tensor.copy_(carried.tensors()[name][:, batch])
        _encode_batch(bilm, table, [rows[i] for i in batch], start, [out[i] for i in batch], max_length)
        if carried is not None:
            for name, tensor in start.tensors().items():
                carried.tensors()[name][:, batch] = tensor
    return list(out)


def _carried_rows(bilm: BiLM, rows: int) -> BiLMState:
    """The carried state with at least ``rows`` rows; new rows start from zero, old ones are kept."""
    carried = bilm._runtime.carried
    have = 0 if carried is None else carried.forward_hidden.shape[1]
    if carried is None or have < rows:
        grown = bilm.zero_state(rows)
        if carried is not None:
            for name, tensor in carried.tensors().items():
                grown.tensors()[name][:, :have] = tensor
        carried = bilm._runtime.carried = grown
    return carried


def _encode_batch(
    bilm: BiLM, table: Tensor, rows: list[np.ndarray], state: BiLMState, out: list[Tensor], max_length: int
) -> None:
    """Run rows of descending length through both stacks into ``out``. ``state`` is updated in place."""
    width = bilm.config.projection_dim
    lengths = np.array([len(row) for row in rows])
    words = lengths - 2
    # One row writes its result where it belongs; several share a buffer that is dealt out at the end.
    shared = out[0] if len(rows) == 1 else table.new_empty(out[0].shape[0], int(words.sum()), 2 * width)
    first = np.cumsum(words) - words
    types = np.concatenate(rows)
    offsets = np.cumsum(lengths) - lengths
    window = max(1, min(max_length, STEPS_PER_WINDOW // len(rows)))
    directions: tuple[tuple[LSTMStack, Tensor, Tensor], ...] = (
        (bilm.forward_lstm, state.forward_hidden, state.forward_cell),
        (bilm.backward_lstm, state.backward_hidden, state.backward_cell),
    )
    for direction, (stack, hidden, cell) in enumerate(directions):
        half = slice(direction * width, (direction + 1) * width)
        for begin in range(0, int(lengths[0]), window):
            steps = np.arange(begin, min(begin + window, int(lengths[0])))
            # Rows are sorted, so those that go on are the first ones.
            active = np.searchsorted(-lengths, -steps, side="left")
            step = np.repeat(steps, active)
            row = np.arange(len(step)) - np.repeat(np.cumsum(active) - active, active)
            position = step if direction == 0 else lengths[row] - 1 - step
            inputs = table[torch.from_numpy(types[offsets[row] + position]).to(table.device)]
            outputs = stack.run(inputs, active.tolist(), hidden, cell)
            inside = np.flatnonzero((position > 0) & (position < lengths[row] - 1))
            if len(inside) == 0:
                continue
            source = torch.from_numpy(inside).to(table.device)
            target = torch.from_numpy((first[row] + position - 1)[inside]).to(table.device)
            for depth, layer in enumerate((inputs, *outputs)):
                shared[depth, :, half].index_copy_(0, target, layer[source])
    if len(rows) > 1:
        for begin, count, result in zip(first.tolist(), words.tolist(), out, strict=True):
            result.copy_(shared[:, begin : begin + count])
