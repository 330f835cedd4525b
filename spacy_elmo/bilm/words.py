"""Word types to vectors, for inference: the token encoder on packed weights, each type once, and a memory of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .matmul import Matmul, Precision, padded
from .token_encoder import CharacterEncoder, Highway, encode_by_length

if TYPE_CHECKING:
    from .model import BiLM

# Words beyond this are rare, seldom come back, and could be of any size: they are not remembered.
LONGEST_REMEMBERED = 100
# Sums of filters over windows of characters that are held at once: 1 MB.
SUMS_AT_ONCE = 2**18


class WordVectors:
    """Token vectors (U, P) of word types. What was computed is kept across calls and threads, up to a limit."""

    def __init__(self, bilm: BiLM, precision: Precision) -> None:
        encoder = bilm.token_encoder
        # A word table, with its small projection or without, is as fast as a memory of it.
        self._remembers = isinstance(encoder, CharacterEncoder)
        self._encode: Callable[[Tensor], Tensor] = (
            _PackedEncoder(encoder, precision) if isinstance(encoder, CharacterEncoder) else encoder
        )
        self._rows: dict[str, int] = {}
        self._vectors = _lasting(torch.zeros, 0, bilm.config.projection_dim, device=bilm.device)
        self._lock = threading.Lock()

    def table(self, bilm: BiLM, words: Sequence[str], limit: int) -> Tensor:
        """(U, P) for U distinct words. limit: how many words are remembered at most; 0: none."""
        if limit == 0 or not self._remembers:
            return self._encode(bilm.token_ids(words))
        with self._lock:
            rows = [self._rows.get(word, -1) for word in words]
            known = [i for i, row in enumerate(rows) if row >= 0]
            if len(known) == len(words):
                return self._vectors[torch.tensor(rows, device=self._vectors.device)]
            missing = [i for i, row in enumerate(rows) if row < 0]
            fresh = self._encode(bilm.token_ids([words[i] for i in missing]))
            table = fresh.new_empty(len(words), fresh.shape[1])
            table[missing] = fresh
            if known:
                table[known] = self._vectors[[rows[i] for i in known]]
            self._remember([words[i] for i in missing], fresh, limit)
            return table

    def forget(self) -> None:
        """Keep nothing of what was computed so far."""
        with self._lock:
            self._rows.clear()
            self._vectors = _lasting(torch.empty_like, self._vectors[:0])

    def _remember(self, words: list[str], vectors: Tensor, limit: int) -> None:
        kept = [i for i, word in enumerate(words) if len(word) <= LONGEST_REMEMBERED][:limit]
        if len(self._rows) + len(kept) > limit:
            # Starting anew is simpler than choosing whom to forget, and the frequent words are back at once.
            self._rows.clear()
        first = len(self._rows)
        end = first + len(kept)
        if end > len(self._vectors):
            # Twice the room each time: a word is copied twice at most, on average.
            rows = min(limit, max(1024, 2 * end))
            grown = _lasting(torch.empty, rows, vectors.shape[1], device=vectors.device, dtype=vectors.dtype)
            grown[:first] = self._vectors[:first]
            self._vectors = grown
        self._vectors[first:end] = vectors[kept]
        self._rows.update(zip((words[i] for i in kept), range(first, end), strict=True))


def _lasting(make: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """A tensor that can be written to later, whether or not the caller is in torch's inference mode now."""
    with torch.inference_mode(False):
        return make(*args, **kwargs)


class _PackedEncoder:
    """``CharacterEncoder``'s function on packed weights; float32 outside of the products."""

    def __init__(self, encoder: CharacterEncoder, precision: Precision) -> None:
        self.word_embed = None if encoder.word_embed is None else encoder.word_embed.detach()
        self.char_embed = encoder.char_embed.detach()
        self.pad, self.lead = encoder.pad, encoder.lead
        self.filters = [weight.detach() for weight in encoder.conv_weights]
        self.biases = torch.cat([bias.detach() for bias in encoder.conv_biases])
        self.activation, self.widest = encoder.activation, encoder.widest
        self.highways = [_PackedHighway(one, precision) for one in encoder.highways if isinstance(one, Highway)]
        self.projection = None if encoder.W_proj is None else Matmul(encoder.W_proj, encoder.b_proj, precision)

    def __call__(self, ids: Tensor) -> Tensor:
        """What ``CharacterEncoder.forward`` reads -> (n, P)."""
        return encode_by_length(ids, self.widest, self._encode, pad=self.pad, lead=self.lead)

    def _encode(self, ids: Tensor) -> Tensor:
        # Words are written in few characters: each is multiplied with the filters once, and looked up after that.
        distinct, characters = torch.unique(ids[:, self.lead :], return_inverse=True)
        vectors = self.char_embed[distinct]
        features = self.biases.new_zeros(padded(len(ids)), len(self.biases))
        start = 0
        for filters in self.filters:
            stop = start + filters.shape[2]
            features[: len(ids), start:stop] = _convolved(vectors, characters, filters)
            start = stop
        features += self.biases
        hidden = features.relu_() if self.activation == "relu" else features.tanh_()
        for highway in self.highways:
            hidden = highway(hidden)
        if self.word_embed is not None:
            words = F.pad(ids[:, 0], (0, len(hidden) - len(ids)))
            hidden = torch.cat([self.word_embed[words], hidden], dim=1)
        if self.projection is not None:
            hidden = self.projection(hidden.to(self.projection.dtype)).to(hidden.dtype)
        return hidden[: len(ids)]


def _convolved(vectors: Tensor, characters: Tensor, filters: Tensor) -> Tensor:
    """The maximum over all positions of the filters' sums, before the bias.

    vectors: (U, char_dim). characters: (n, columns), rows of ``vectors``. filters: (width, char_dim, count).
    RETURNS: (n, count).
    """
    n, columns = characters.shape
    width, _, count = filters.shape
    products = torch.matmul(vectors, filters).flatten(0, 1)  # (width * U, count), the place in the window first
    positions = columns - width + 1
    places = characters.as_strided((positions, n, width), (1, columns, 1))
    places = places + len(vectors) * torch.arange(width, device=characters.device)
    # As many positions at once as the cache holds.
    best: Tensor | None = None
    for some in places.split(max(1, SUMS_AT_ONCE // (n * count))):
        sums = F.embedding_bag(some.flatten(0, 1), products, mode="sum").view(len(some), n, count)
        most = sums[0] if len(sums) == 1 else sums.amax(dim=0)
        best = most if best is None else torch.maximum(best, most, out=best)
    assert best is not None
    return best


class _PackedHighway:
    """``Highway`` with both its matrices in one."""

    def __init__(self, highway: Highway, precision: Precision) -> None:
        weight = torch.cat([highway.W_carry.detach(), highway.W_transform.detach()], dim=1)
        self.both = Matmul(weight, torch.cat([highway.b_carry, highway.b_transform]), precision)

    def __call__(self, hidden: Tensor) -> Tensor:
        gate, transformed = self.both(hidden.to(self.both.dtype)).to(hidden.dtype).chunk(2, dim=1)
        return torch.lerp(hidden, transformed.relu_(), gate.sigmoid_())
