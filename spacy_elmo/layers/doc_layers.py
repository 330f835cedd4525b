"""Docs in, layers out: what the component and its listeners share. One row a token; white space has a row of zeros.

A frozen biLM's layers are a function of the text, so they are kept in a bounded memo; a biLM that trains gives layers
with a graph behind them, and all listeners' gradients wait here for one backward pass.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from spacy.tokens import Doc
from torch import Tensor

from ..bilm import BiLM
from ..bilm.matmul import Precision, checked_precision
from ..errors import ElmoError
from ..text_forms import TextForm, checked_text_form, text_form_config, words_key
from .span_getters import Offsets, SpanGetter, readable_words

if TYPE_CHECKING:
    from .disk_cache import DiskCache

Key = tuple[bytes, tuple[tuple[int, int], ...]]
Backprop = Callable[[Sequence[Any]], None]

CACHE_DISK_MB = 10_000
# A full memo has become useless when so many times the texts that it holds have missed it in a row.
MISSES_OF_A_USELESS_MEMO = 10
# Rows of a Doc that are moved at once to make room for white space.
ROWS_PER_MOVE = 4096
# Of this program: numbers of processes come again, in containers above all.
_PROGRAM = os.urandom(8)


class DocLayers:
    """Computes (L + 1, n_tokens, 2P) for Docs, remembers it, and collects gradients.

    span_getter: what the biLM reads as one sentence. state: start-state policy, None for the weights' own.
    max_length: steps of a window inside the biLM. precision: of its matrix products where nothing trains.
    dtype: "float32" or "float16", of what is kept and handed out. frozen: whether the biLM stays as it is.
    cache_mb: bound of the memo in MB (10**6 bytes); 0: no memo.
    cache_dir: a folder in which the layers of training texts are kept too, from run to run; None: they are not.
    cache_disk_mb: bound of what lies there, in MB.
    cache_words: bound of the biLM's cache of token vectors, in words; 0: none.
    text: the form of the words that the biLM reads: "orth", "lower", "norm" or a function (see ``doc_words``).
    Copies and pickles start without memo and gradients.
    """

    def __init__(
        self,
        *,
        span_getter: SpanGetter,
        state: Literal["zero", "warm"] | None,
        max_length: int,
        precision: Precision,
        dtype: Literal["float32", "float16"],
        frozen: bool,
        cache_mb: int,
        cache_words: int,
        text: TextForm = "orth",
        cache_dir: str | Path | None = None,
        cache_disk_mb: int = CACHE_DISK_MB,
    ) -> None:
        if not isinstance(max_length, int) or max_length < 1:
            raise ElmoError(f"elmo: max_length is at least 1, not {max_length!r}")
        if not isinstance(cache_mb, int) or cache_mb < 0:
            raise ElmoError(f"elmo: cache_mb is at least 0, not {cache_mb!r}")
        if not isinstance(cache_words, int) or cache_words < 0:
            raise ElmoError(f"elmo: cache_words is at least 0, not {cache_words!r}")
        if cache_dir is not None and (not isinstance(cache_dir, (str, Path)) or not str(cache_dir)):
            raise ElmoError(f"elmo: cache_dir is the path of a folder, or null, not {cache_dir!r:.100}")
        if not isinstance(cache_disk_mb, int) or cache_disk_mb < 1:
            raise ElmoError(f"elmo: cache_disk_mb is at least 1, not {cache_disk_mb!r}")
        self.span_getter = span_getter
        self.state = state
        self.max_length = max_length
        self.precision = checked_precision(precision)
        self.dtype = np.dtype(dtype)
        self.frozen = frozen
        self.cache_mb = cache_mb
        self.cache_words = cache_words
        self.text = checked_text_form(text)
        self.cache_dir = cache_dir
        self.cache_disk_mb = cache_disk_mb
        self._trained_by: tuple[bytes, int] | None = None
        self._told_full = False
        self._forget()

    def config(self) -> dict[str, Any]:
        """These options as a config block. Raises ElmoError where the span getter, or the text form, does not say how
        it is made."""
        span_getter = getattr(self.span_getter, "config", None)
        if span_getter is None:
            raise ElmoError(
                f"the span getter {self.span_getter!r} has no attribute `config` (the config block that makes it), so "
                "it cannot be written down for the component that gets a biLM of its own: give it one"
            )
        return {
            "span_getter": span_getter,
            "state": self.state,
            "max_length": self.max_length,
            "precision": self.precision,
            "dtype": self.dtype.name,
            "frozen": self.frozen,
            "cache_mb": self.cache_mb,
            "cache_words": self.cache_words,
            "text": text_form_config(self.text),
            "cache_dir": None if self.cache_dir is None else str(self.cache_dir),
            "cache_disk_mb": self.cache_disk_mb,
        }

    def _forget(self) -> None:
        self._begin_memo(0)
        self._held = _Held()
        self._lock = threading.Lock()
        self._disk: DiskCache | None = None
        self._disk_version = 0
        self.discard()
        self._given: dict[int, tuple[weakref.ref[np.ndarray], int, bytes]] = {}

    def __getstate__(self) -> dict[str, Any]:
        derived = (
            "_memo",
            "_memo_bytes",
            "_memo_version",
            "_missed",
            "_full",
            "_held",
            "_lock",
            "_disk",
            "_disk_version",
            "_pending",
            "_due",
            "_given",
        )
        return {name: value for name, value in self.__dict__.items() if name not in derived}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def trains(self) -> bool:
        """Whether texts come again: this process has begun to train. Its children have not, nor who unpickles this."""
        return self._trained_by == (_PROGRAM, os.getpid())

    @property
    def keeps(self) -> bool:
        """Whether arrays that ``predict`` has given may be kept here too."""
        return bool(self._memo or self._held.arrays)

    def begin_training(self) -> None:
        """From now on texts come again: what is computed is kept. Warns, once, where there is no room for them all."""
        self._trained_by = (_PROGRAM, os.getpid())
        if self._full and self.frozen and self.cache_dir is None and not self._told_full:
            self._told_full = True
            warnings.warn(
                f"elmo: the memo of training texts is full (cache_mb = {self.cache_mb} MB): texts that find no room in "
                'it are computed anew in every epoch. Raise cache_mb, set dtype = "float16", which takes half the '
                "room, or set cache_dir, to keep them on disk",
                stacklevel=2,
            )

    def predict(self, bilm: BiLM, docs: Sequence[Doc], *, hold: bool = False) -> list[np.ndarray]:
        """The layers of each Doc, from the memo or the disk where they have them.

        In training they are kept in the memo.
        hold: where some are new, keep those of all Docs, whatever their size, until this thread holds others: listeners
            ask for them next.
        RETURNS: (L + 1, n_tokens, 2P) of ``dtype`` on the CPU. Arrays may be shared: do not write into them.
        """
        spans = self._spans(docs)
        keys = [self._key(doc, offsets) for doc, offsets in zip(docs, spans, strict=True)]
        version = bilm.version
        known = self._recall(version, keys)
        # A text that comes twice is computed once.
        first = {keys[i]: i for i in reversed(range(len(docs))) if keys[i] not in known}
        todo = sorted(first.values())
        found = self._computed_or_read(bilm, version, [docs[i] for i in todo], [spans[i] for i in todo])
        for i, array in zip(todo, found, strict=True):
            known[keys[i]] = array
            if self.trains:
                self._remember(version, keys[i], array)
        if hold and todo:
            self._held.version, self._held.arrays = version, known
        return [known[key] for key in keys]

    def _computed_or_read(
        self, bilm: BiLM, version: int, docs: Sequence[Doc], spans: Sequence[Offsets]
    ) -> list[np.ndarray]:
        """The layers of Docs that are not in memory."""
        disk = self._disk_of(bilm, version) if docs else None
        if disk is None:
            return self._compute(bilm, docs, spans)
        from .disk_cache import text_name

        names = [text_name(doc, offsets, self.text) for doc, offsets in zip(docs, spans, strict=True)]
        rows, width = bilm.config.n_layers + 1, bilm.config.width
        arrays = disk.read({name: (rows, len(doc), width) for name, doc in zip(names, docs, strict=True)}, self.dtype)
        missing = [i for i, name in enumerate(names) if name not in arrays]
        computed = self._compute(bilm, [docs[i] for i in missing], [spans[i] for i in missing])
        new = {names[i]: array for i, array in zip(missing, computed, strict=True)}
        disk.write(new)
        arrays |= new
        return [arrays[name] for name in names]

    def _disk_of(self, bilm: BiLM, version: int) -> DiskCache | None:
        """What is kept on disk for these weights. None without ``cache_dir``, for a biLM that trains, and outside of
        training: children of a process that trains (``nlp.pipe(n_process=2)``) do not touch it."""
        if self.cache_dir is None or not self.frozen or not self.trains:
            return None
        from .disk_cache import DiskCache, model_name

        with self._lock:
            if self._disk is None or self._disk_version != version:
                state = bilm.config.state if self.state is None else self.state
                name = model_name(bilm, state, self.precision, self.dtype.str)
                self._disk = DiskCache(self.cache_dir, self.cache_disk_mb, name)
                self._disk_version = version
            return self._disk

    def begin_update(self, bilm: BiLM, docs: Sequence[Doc]) -> tuple[list[Any], Backprop]:
        """The layers of each Doc for training, and a callback for their gradients.

        RETURNS: arrays (L + 1, n_tokens, 2P) float32 (or ``dtype``, when frozen), and the callback: it takes one
        gradient of the same shape a Doc, adds it up and returns at once; ``flush`` does the backward pass.
        """
        self.begin_training()
        if self.frozen:
            return list(self.predict(bilm, docs)), ignore_gradient
        spans = self._spans(docs)
        keys = [self._key(doc, offsets) for doc, offsets in zip(docs, spans, strict=True)]
        known = {key: one for key in keys if (one := self._pending.get(key)) is not None}
        todo = sorted({key: i for i, key in reversed(list(enumerate(keys))) if key not in known}.values())
        outputs = self._compute_with_graph(bilm, [docs[i] for i in todo], [spans[i] for i in todo])
        for i, output in zip(todo, outputs, strict=True):
            known[keys[i]] = self._pending[keys[i]] = _Pending(output)
        pending = [known[key] for key in keys]

        def backprop(d_layers: Sequence[Any]) -> None:
            for key, one, d in zip(keys, pending, d_layers, strict=True):
                if self._pending.get(key) is one:  # its graph is there still
                    one.add(d)
                    self._due[key] = one

        return [to_xp(one.output.detach()) for one in pending], backprop

    def flush(self) -> float:
        """Run the backward pass for all gradients that came since the last one, into the parameters' ``grad``.

        RETURNS: the sum of squares of those gradients, 0.0 when there were none.
        """
        pairs = [(one.output, one.gradient) for one in self._due.values() if one.gradient is not None]
        self.discard()
        pairs = [(output, gradient) for output, gradient in pairs if output.requires_grad]
        if not pairs:
            return 0.0
        torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
        return float(sum((gradient**2).sum() for _, gradient in pairs))

    def give(self, version: int, doc: Doc, layers: np.ndarray) -> None:
        """Note that these layers were put on a Doc: while both stay as they are, nothing has to be computed again.

        version: of the biLM. (Asking for it takes longer than all else here: once for many Docs.)
        """
        number = id(layers)
        forget = partial(_forget_given, self._given, number)
        self._given[number] = (weakref.ref(layers, forget), version, words_key(doc, self.text))

    def given(self, version: int, doc: Doc, layers: np.ndarray | None) -> np.ndarray | None:
        """The layers found on a Doc, if they were given here, for these weights and these tokens; else None."""
        reference, of_version, words = self._given.get(id(layers), (None, 0, b""))
        if layers is None or reference is None or reference() is not layers or of_version != version:
            return None
        return layers if words == words_key(doc, self.text) else None

    def _spans(self, docs: Sequence[Doc]) -> list[Offsets]:
        """What the span getter says, checked for its form. That spans cover a Doc is checked where they are read."""
        spans = self.span_getter(docs)
        if not isinstance(spans, list) or len(spans) != len(docs):
            raise ElmoError(
                f"the span getter {self.span_getter!r} must give a list with one entry a Doc, not {spans!r:.80}"
            )
        for offsets in spans:
            if not isinstance(offsets, list) or not all(map(_is_offsets, offsets)):
                raise ElmoError(
                    f"the span getter {self.span_getter!r} must give a list of (start, end) token offsets a Doc, "
                    f"not {offsets!r:.80}"
                )
        return spans

    def _key(self, doc: Doc, offsets: Offsets) -> Key:
        return words_key(doc, self.text), tuple(offsets)

    def discard(self) -> None:
        """Drop gradients that wait: the weights they belong to go."""
        # Layers that were given out live as long as whoever may send a gradient for them, and on once one has come: a
        # pass without a way back, such as that of a rehearsal's first model, leaves nothing behind.
        self._pending: weakref.WeakValueDictionary[Key, _Pending] = weakref.WeakValueDictionary()
        self._due: dict[Key, _Pending] = {}

    def set_frozen(self, bilm: BiLM | None, frozen: bool) -> None:
        """Freeze the biLM, and drop the gradients that wait for it, or let it learn from the next update on."""
        self.frozen = frozen
        if frozen:
            self.discard()
            if bilm is not None:  # what was passed back would move it once it learns again
                bilm.zero_grad(set_to_none=True)

    def _compute(self, bilm: BiLM, docs: Sequence[Doc], spans: Sequence[Offsets]) -> list[np.ndarray]:
        prepare_child_process(on_gpu=bilm.device.type == "cuda")
        layers, width = bilm.config.n_layers + 1, bilm.config.width
        arrays = [torch.zeros(layers, len(doc), width, device=bilm.device, dtype=torch.float32) for doc in docs]
        sentences: list[list[str]] = []
        out: list[Tensor] = []
        moves = []
        for doc, offsets, array in zip(docs, spans, arrays, strict=True):
            for (start, _), (words, rows) in zip(offsets, readable_words(doc, offsets, self.text), strict=True):
                # The biLM writes straight into the Doc's array: a long Doc's layers exist once.
                sentences.append(words)
                out.append(array[:, start : start + len(words)])
                if isinstance(rows, np.ndarray):
                    moves.append((array, start, rows))
        bilm.encode(
            sentences,
            self.state,
            precision=self.precision,
            out=out,
            max_length=self.max_length,
            cache_words=self.cache_words,
        )
        for array, start, rows in moves:
            _spread(array, start, rows)
        return [array.cpu().numpy().astype(self.dtype, copy=False) for array in arrays]

    def _compute_with_graph(self, bilm: BiLM, docs: Sequence[Doc], spans: Sequence[Offsets]) -> list[Tensor]:
        if not docs:
            return []
        prepare_child_process(on_gpu=bilm.device.type == "cuda")
        read = [readable_words(doc, offsets, self.text) for doc, offsets in zip(docs, spans, strict=True)]
        encoded = iter(bilm([words for spans in read for words, _ in spans], self.state, max_length=self.max_length))
        outputs = []
        for doc, of_doc in zip(docs, read, strict=True):
            parts = [next(encoded) for _ in of_doc]
            shape = (bilm.config.n_layers + 1, len(doc), bilm.config.width)
            output = torch.zeros(shape, device=bilm.device)
            if parts:
                rows = np.concatenate(
                    [np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows for _, rows in of_doc]
                )
                index = torch.from_numpy(rows).to(bilm.device)
                output = output.index_copy(1, index, torch.cat(parts, dim=1))
            outputs.append(output)
        return outputs

    def _begin_memo(self, version: int) -> None:
        """An empty memo, for these weights."""
        self._memo: dict[Key, np.ndarray] = {}
        self._memo_bytes = 0
        self._memo_version = version
        self._missed = 0  # texts since the last one that was there
        self._full = False  # a text has found no room

    def _recall(self, version: int, keys: Iterable[Key]) -> dict[Key, np.ndarray]:
        keys = set(keys)
        held = self._held.arrays if self._held.version == version else {}
        with self._lock:
            if self._memo_version != version:
                self._begin_memo(version)
            found = {key: self._memo[key] for key in keys if key in self._memo}
            self._missed = 0 if found or not self._memo else self._missed + len(keys.difference(held))
        return found | {key: held[key] for key in keys if key in held}

    def _remember(self, version: int, key: Key, array: np.ndarray) -> None:
        """Keep a text's layers while there is room.

        Then what is there stays, so that every epoch finds the same texts: to drop the oldest for the newest would find
        next to none of more text than there is room for. What nobody asks for any more goes, all at once.
        """
        limit = self.cache_mb * 10**6
        with self._lock:
            if key in self._memo or self._memo_version != version:
                return
            if self._memo_bytes + array.nbytes > limit:
                self._full = limit > 0
                if array.nbytes > limit or self._missed <= MISSES_OF_A_USELESS_MEMO * len(self._memo):
                    return
                self._begin_memo(version)
            self._memo[key] = array
            self._memo_bytes += array.nbytes


class _Held(threading.local):
    """The layers of the batch that was computed last, of each thread its own: others annotate other texts meanwhile."""

    def __init__(self) -> None:
        self.version = 0
        self.arrays: dict[Key, np.ndarray] = {}


class _Pending:
    """Layers with their graph, and the gradient that has come for them so far."""

    def __init__(self, output: Tensor) -> None:
        self.output = output
        self.gradient: Tensor | None = None

    def add(self, d_layers: Any) -> None:
        gradient = torch.as_tensor(d_layers, device=self.output.device, dtype=self.output.dtype)
        # The first gradient is copied: it may be the caller's buffer.
        self.gradient = gradient.clone() if self.gradient is None else self.gradient.add_(gradient)


def to_xp(tensor: Tensor) -> Any:
    """A torch tensor as an array of thinc's: numpy on the CPU, cupy on a GPU, without a copy."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    from thinc.api import torch2xp

    return torch2xp(tensor)


def prepare_child_process(*, on_gpu: bool) -> None:
    """In a child process (``nlp.pipe(n_process=2)``): one torch thread, and no GPU. In any forked process: one thread.

    A child forked from a process whose torch threads have run waits for them for ever when it starts its own.
    Raises ElmoError on a GPU.
    """
    is_child = multiprocessing.parent_process() is not None
    if is_child and on_gpu:
        raise ElmoError("elmo runs on a GPU in one process only: use nlp.pipe(..., n_process=1), or the CPU")
    if (is_child or _forked) and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


# Whether this process was forked with this module in it, by whomever: web servers fork too, once all is loaded.
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _is_offsets(pair: object) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(end, int) for end in pair)


def _forget_given(given: dict[int, Any], number: int, reference: object) -> None:
    # By then the number may be that of another array.
    if number in given and given[number][0] is reference:
        del given[number]


def _spread(array: Tensor, start: int, rows: np.ndarray) -> None:
    """Move rows start, start+1, ... to where their tokens stand, and put zeros in the gaps.

    Every row moves towards the end, so the last go first; in pieces, so that no second copy of a long Doc is made.
    """
    for begin in reversed(range(0, len(rows), ROWS_PER_MOVE)):
        piece = torch.from_numpy(rows[begin : begin + ROWS_PER_MOVE]).to(array.device)
        array[:, piece] = array[:, start + begin : start + begin + len(piece)].clone()
    end = int(rows[-1]) + 1 if len(rows) else start
    gaps = np.setdiff1d(np.arange(start, end), rows)
    array[:, torch.from_numpy(gaps).to(array.device)] = 0.0


def ignore_gradient(d_layers: Sequence[Any]) -> None:
    """A frozen biLM takes no gradient."""
