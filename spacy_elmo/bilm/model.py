"""The bidirectional language model: a token encoder and two LSTM stacks (Peters et al., 2018, section 3.1)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..errors import ElmoError
from .characters import CHARACTER_MARKS, PAD_CHARACTER, character_ids, code_point_ids
from .config import BiLMConfig
from .encode import CACHE_WORDS, Runtime, batches_by_length, checked_sentences, encode, unique_words
from .lstm import LSTMStack
from .matmul import Precision
from .token_encoder import CharacterEncoder, WordEncoder

StatePolicy = Literal["zero", "warm", "carry"]
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class BiLMState:
    """Where the two stacks stand between two windows of text, for B rows of it. Never carries a gradient.

    forward_hidden, backward_hidden: (L, B, P). forward_cell, backward_cell: (L, B, H).
    """

    forward_hidden: Tensor
    forward_cell: Tensor
    backward_hidden: Tensor
    backward_cell: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """The four tensors by name, as a checkpoint stores them."""
        return dict(vars(self))

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> BiLMState:
        """The inverse of ``tensors``."""
        return cls(**tensors)

    def rows(self, some: slice) -> BiLMState:
        """The states of some of the rows."""
        return BiLMState(**{name: tensor[:, some].contiguous() for name, tensor in self.tensors().items()})

    def split(self, parts: int) -> list[BiLMState]:
        """The states of as many equal parts of the rows, in their order."""
        rows = self.forward_hidden.shape[1] // parts
        split = {name: tensor.split(rows, dim=1) for name, tensor in self.tensors().items()}
        return [BiLMState(**{name: tensors[part] for name, tensors in split.items()}) for part in range(parts)]

    @classmethod
    def joined(cls, parts: Sequence[BiLMState]) -> BiLMState:
        """The inverse of ``split``."""
        if len(parts) == 1:
            return parts[0]
        names = parts[0].tensors()
        return cls(**{name: torch.cat([getattr(part, name) for part in parts], dim=1) for name in names})


class BiLM(nn.Module):
    """A biLM: words in, L + 1 layers of vectors out. Layer 0 is the token vector, twice.

    config: sizes and options.
    vocabulary: with a word table, the word of each of its rows. It holds ``<S>`` and ``</S>`` (with ELMoForManyLangs'
        token encoder ``<bos>``, ``<eos>`` and ``<oov>``).
    characters: with a table of code points, the character of each of its rows, or one of ``CHARACTER_MARKS``.
    Parameters are zeros until ``initialize`` draws them or somebody loads them.
    Raises ElmoError when vocabulary or characters do not fit the config.
    """

    token_encoder: CharacterEncoder | WordEncoder
    start_forward_hidden: Tensor | None
    start_forward_cell: Tensor | None
    start_backward_hidden: Tensor | None
    start_backward_cell: Tensor | None

    def __init__(
        self, config: BiLMConfig, *, vocabulary: list[str] | None = None, characters: list[str] | None = None
    ) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.characters = characters
        self._rows = _table_rows(config, vocabulary)
        self._character_rows = _character_rows(config, characters)
        if config.filters is None:
            self.token_encoder = WordEncoder(config)
        else:
            self.token_encoder = CharacterEncoder(config, self._character_rows.get("<pad>", PAD_CHARACTER))
        self.forward_lstm = LSTMStack(config)
        self.backward_lstm = LSTMStack(config)
        for direction in DIRECTIONS:
            for part, size in (("hidden", config.projection_dim), ("cell", config.lstm_dim)):
                # A start state of the weights' own, kept with them.
                start = torch.zeros(config.n_layers, size) if config.state == "warm" else None
                self.register_buffer(f"start_{direction}_{part}", start)
        self._runtime = Runtime()

    @property
    def version(self) -> int:
        """A number that no other weights in this process have: it changes whenever ``invalidate`` is called."""
        return self.runtime().version

    def runtime(self) -> Runtime:
        """What is derived from the weights; a new one where torch has moved them or written to them since."""
        # Asked at every call: some microseconds a tensor, against vectors of weights that are gone.
        stamp = _stamp(self)
        if self._runtime.stamp != stamp:
            self._runtime = Runtime(stamp=stamp)
            with _STALE_LOCK:
                _MAY_BE_STALE.add(self)
        return self._runtime

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # to(), cuda(), double(): the tensors may be others afterwards.
        super()._apply(fn, recurse)
        self.invalidate()
        return self

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """torch's; what was derived from the weights before is dropped."""
        keys = super().load_state_dict(*args, **kwargs)
        self.invalidate()
        return keys

    def __getstate__(self) -> dict[str, Any]:
        # Derived state belongs to this object in this process: a copy starts without.
        return {**self.__dict__, "_runtime": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._runtime = Runtime()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.forward_lstm.layers[0].kernel.device  # type: ignore[return-value]

    def initialize(self, seed: int = 0) -> BiLM:
        """Draw the weights from bilm-tf's initial distributions, the same for the same seed."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        for part in (self.token_encoder, self.forward_lstm, self.backward_lstm):
            part.initialize(generator)
        self.invalidate()
        return self

    def invalidate(self) -> None:
        """Forget what was derived from the weights. To be called by whoever changes them unseen by torch: through
        ``.data``, or an array that shares their memory.
        """
        self._runtime = Runtime()

    def reset_state(self) -> None:
        """Forget the carried state: the next ``encode(..., state="carry")`` starts from zero."""
        self._runtime.carried = None

    def token_ids(self, words: Sequence[str]) -> Tensor:
        """What the token encoder reads.

        RETURNS: int64 on the model's device: character ids (n, C), or rows of the word table (n,), or both (n, 1 + C),
            the row first.
        Raises ElmoError for a word that is no str, or is outside a vocabulary that has no ``<UNK>``.
        """
        for word in words:
            if not isinstance(word, str):
                raise ElmoError(f"words are str, not {type(word).__name__}: of a spaCy token, give its text")
        columns = self.config.max_characters_per_token
        if self.config.is_many_langs:
            boundaries = self.config.marks[:2]
            # The cut form is looked up too.
            words = [word if word in boundaries else word[: columns - 2] for word in words]
        if self.config.n_words is not None:
            ids = np.fromiter(map(self._row, words), dtype=np.int64, count=len(words))
        if self._character_rows:
            spelled = code_point_ids(words, self._character_rows, columns)
            ids = spelled if self.config.n_words is None else np.concatenate([ids[:, None], spelled], axis=1)
        elif self.config.filters is not None:
            ids = character_ids(words, columns)
        return torch.from_numpy(ids).to(self.device)

    def _row(self, word: str) -> int:
        unknown = self.config.marks.unknown
        row = self._rows.get(word, self._rows.get(unknown))
        if row is None:
            raise ElmoError(f"{word!r} is not in the biLM's vocabulary, which has no {unknown} to stand in for it")
        return row

    def start_state(self, rows: int, state: Literal["zero", "warm"] | None = None) -> BiLMState:
        """The state before any text, for ``rows`` rows. ``None`` is the weights' own policy.

        Raises ElmoError for "warm" where the weights hold no start state.
        """
        state = self.config.state if state is None else state
        if state not in ("zero", "warm"):
            raise ElmoError(f"state is 'zero', 'warm' or None, not {state!r}")
        config, device = self.config, self.device
        dtype = self.forward_lstm.layers[0].kernel.dtype
        tensors: dict[str, Tensor] = {}
        for direction in DIRECTIONS:
            for part, size in (("hidden", config.projection_dim), ("cell", config.lstm_dim)):
                name = f"{direction}_{part}"
                if state == "zero":
                    tensors[name] = torch.zeros(config.n_layers, rows, size, device=device, dtype=dtype)  # type: ignore[arg-type]
                    continue
                start = getattr(self, f"start_{name}")
                if start is None:
                    raise ElmoError("these weights hold no start state: state = 'warm' needs one, use 'zero'")
                tensors[name] = start[:, None].expand(-1, rows, -1).clone()
        return BiLMState.from_tensors(tensors)

    def zero_state(self, rows: int) -> BiLMState:
        """A state of zeros for ``rows`` rows."""
        return self.start_state(rows, "zero")

    def encode(
        self,
        sentences: Iterable[Iterable[str]],
        state: StatePolicy | None = None,
        *,
        precision: Precision = "float32",
        out: Sequence[Tensor] | None = None,
        max_length: int = 512,
        cache_words: int = CACHE_WORDS,
    ) -> list[Tensor]:
        """The layers of each sentence: see ``spacy_elmo.bilm.encode.encode``."""
        return encode(
            self, sentences, state, precision=precision, out=out, max_length=max_length, cache_words=cache_words
        )

    def forget_words(self) -> None:
        """Empty the cache of token vectors that ``encode`` keeps."""
        for packed in self._runtime.packed.values():
            packed.words.forget()

    def forward(
        self,
        sentences: Iterable[Iterable[str]],
        state: Literal["zero", "warm"] | None = None,
        *,
        max_length: int = 512,
    ) -> list[Tensor]:
        """The same layers as ``encode``, differentiably.

        Gradients stop where a window of ``max_length`` steps ends, so that memory is bounded by windows.
        RETURNS: for each sentence (L + 1, n, 2P).
        Raises ElmoError as ``encode`` does; there is no "carry" here.
        """
        sentences = checked_sentences(sentences, state, ("zero", "warm"), max_length)
        words, rows = unique_words(sentences, self.config.marks)
        table = self.token_encoder(self.token_ids(words))
        results: list[Tensor] = [table.new_zeros(self.config.n_layers + 1, 0, self.config.width)] * len(sentences)
        filled = [index for index, row in enumerate(rows) if len(row) > 2]
        for batch in batches_by_length(filled, [len(row) for row in rows]):
            lengths = [len(rows[index]) for index in batch]
            steps = max(lengths)
            # Padding stays on the right in both directions, so no real step reads it; it repeats type 0.
            padded = np.zeros((2, steps, len(batch)), dtype=np.int64)
            for column, index in enumerate(batch):
                padded[0, : lengths[column], column] = rows[index]
                padded[1, : lengths[column], column] = rows[index][::-1]
            both = self._windows(table, torch.from_numpy(padded).to(self.device), state, max_length)
            for column, index in enumerate(batch):
                n = lengths[column] - 2
                layer_0 = table[torch.from_numpy(rows[index][1:-1]).to(self.device)]
                ahead = both[0][:, 1 : n + 1, column]
                behind = both[1][:, 1 : n + 1, column].flip(1)
                results[index] = torch.cat([layer_0.repeat(1, 2)[None], torch.cat([ahead, behind], dim=2)], dim=0)
        return results

    def _windows(
        self, table: Tensor, types: Tensor, state: Literal["zero", "warm"] | None, max_length: int
    ) -> list[Tensor]:
        """Both stacks over padded rows (2, T, B) of types, window by window: two tensors (L, T, B, P)."""
        start = self.start_state(types.shape[2], state)
        results = []
        for direction, (stack, steps) in enumerate(zip((self.forward_lstm, self.backward_lstm), types, strict=True)):
            hidden, cell = (start.forward_hidden, start.forward_cell)
            if direction == 1:
                hidden, cell = (start.backward_hidden, start.backward_cell)
            windows = []
            for window in steps.split(max_length):
                outputs, hidden, cell = stack(table[window], hidden.detach(), cell.detach())
                windows.append(torch.stack(outputs))
            results.append(torch.cat(windows, dim=1))
        return results

    def hidden(
        self,
        token_ids: Tensor,
        forward: Tensor,
        backward: Tensor,
        state: BiLMState,
        dropout: float = 0.0,
        starts: Tensor | None = None,
        recurrent_dropout: float = 0.0,
    ) -> tuple[Tensor, Tensor, BiLMState]:
        """The top layers over a window of packed text, for training. Each type passes the token encoder once.

        token_ids: what ``token_ids`` gives for the U types of the window.
        forward, backward: (B, T) int64, each step's type (0..U-1), in the order in which that direction reads.
        state: where the window before left off. dropout: on the input of each layer and on the result (as bilm-tf).
        starts: (B, T) bool, steps before which a row's state is set to zero. None: it is carried on, as bilm-tf does.
        recurrent_dropout: on each layer's recurrent weights, one mask a window.
        RETURNS: forward (B, T, P), backward (B, T, P), the state after the window, detached.
        """
        table = self.token_encoder(token_ids)
        keep = None if starts is None else (~starts).t()[..., None].to(table.dtype)
        tops = []
        ends: dict[str, Tensor] = {}
        for direction, stack, steps in (
            ("forward", self.forward_lstm, forward),
            ("backward", self.backward_lstm, backward),
        ):
            hidden, cell = getattr(state, f"{direction}_hidden"), getattr(state, f"{direction}_cell")
            outputs, hidden, cell = stack(F.embedding(steps.t(), table), hidden, cell, dropout, keep, recurrent_dropout)
            tops.append(F.dropout(outputs[-1], dropout, training=dropout > 0.0).transpose(0, 1))
            ends |= {f"{direction}_hidden": hidden.detach(), f"{direction}_cell": cell.detach()}
        return tops[0], tops[1], BiLMState.from_tensors(ends)


# biLMs that hold something derived from their weights.
_MAY_BE_STALE: weakref.WeakSet[BiLM] = weakref.WeakSet()
_STALE_LOCK = threading.Lock()


def _after_step(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """torch counts what is written to a tensor, but not what a fused optimizer writes."""
    fused = [group["params"] for group in optimizer.param_groups if group.get("fused")]
    if fused:
        moved = {id(parameter) for parameters in fused for parameter in parameters}
        with _STALE_LOCK:
            bilms = list(_MAY_BE_STALE)
        for bilm in bilms:
            if any(id(parameter) in moved for parameter in bilm.parameters()):
                bilm.invalidate()


register_optimizer_step_post_hook(_after_step)


def _stamp(bilm: BiLM) -> list[tuple[int, int, int]]:
    """Which tensors the weights and the start state are, where, and how often torch has written to each."""
    tensors = chain(bilm.parameters(), bilm.buffers())
    return [(id(t), t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]


def _table_rows(config: BiLMConfig, vocabulary: list[str] | None) -> dict[str, int]:
    """Row of each word of the table. A repeated word keeps its last row, as in bilm-tf."""
    if config.n_words is None:
        if vocabulary is not None:
            raise ElmoError("a biLM that reads characters has no word table, so no vocabulary")
        return {}
    if vocabulary is None:
        raise ElmoError("a biLM that reads words needs the vocabulary of its table")
    if len(vocabulary) != config.n_words:
        raise ElmoError(f"the vocabulary has {len(vocabulary)} words and the word table {config.n_words} rows")
    rows = {word: row for row, word in enumerate(vocabulary)}
    needed = config.marks if config.is_many_langs else config.marks[:2]
    missing = [mark for mark in needed if mark not in rows]
    if missing:
        raise ElmoError(f"the vocabulary of a biLM that reads words lacks {' and '.join(missing)}")
    return rows


def _character_rows(config: BiLMConfig, characters: list[str] | None) -> dict[str, int]:
    """Row of each code point and mark. One that stands there twice keeps its last row."""
    if config.n_characters is None:
        if characters is not None:
            raise ElmoError("only a biLM that reads code points has a list of characters")
        return {}
    if characters is None:
        raise ElmoError("a biLM that reads code points needs the characters of its table")
    if len(characters) != config.n_characters:
        raise ElmoError(f"there are {len(characters)} characters and {config.n_characters} rows in their table")
    rows = {character: row for row, character in enumerate(characters)}
    missing = [mark for mark in CHARACTER_MARKS if mark not in rows]
    if missing:
        raise ElmoError(f"the characters of a biLM that reads code points lack {', '.join(missing)}")
    return rows
