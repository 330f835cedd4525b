"""Token vectors without context: the character CNN with highways and projection, or a word table, or both."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from .characters import N_CHARACTERS, PAD_CHARACTER
from .config import BiLMConfig

# Types that pass the CNN at once: bounds its memory, and each chunk is trimmed to its own longest word.
TYPES_PER_CHUNK = {"cpu": 256, "cuda": 2048}
# Where products are oneDNN's, which compiles a kernel for each shape and keeps it (1 GB of them, without this): of what
# the number of types of the last chunk, and of columns of every chunk, is a multiple.
TYPES_STEP = 64
COLUMNS_STEP = 4


class Highway(nn.Module):
    """h <- g * relu(h W_transform + b_transform) + (1 - g) * h, with g = sigmoid(h W_carry + b_carry).

    The names are the weight files': "carry" is the gate of the *transformed* branch.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.W_carry = nn.Parameter(torch.zeros(size, size))
        self.b_carry = nn.Parameter(torch.zeros(size))
        self.W_transform = nn.Parameter(torch.zeros(size, size))
        self.b_transform = nn.Parameter(torch.zeros(size))

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, F) -> (n, F)."""
        gate = torch.sigmoid(torch.addmm(self.b_carry, hidden, self.W_carry))
        transformed = torch.relu(torch.addmm(self.b_transform, hidden, self.W_transform))
        # Under autocast products come in another precision; what is blended keeps its own.
        return torch.lerp(hidden, transformed.to(hidden.dtype), gate.to(hidden.dtype))


class CharacterEncoder(nn.Module):
    """Character CNN, max-pooled over every window, highways, projection (Peters et al., 2018, section 3.4).

    ELMoForManyLangs' puts a word vector before what the highways give, and projects both.

    pad: the character that fills a row of ids behind its word.
    """

    def __init__(self, config: BiLMConfig, pad: int = PAD_CHARACTER) -> None:
        super().__init__()
        assert config.filters is not None
        self.activation = config.activation
        self.width = config.projection_dim
        self.pad = pad
        self.word_embed: nn.Parameter | None = None
        if config.word_dim is not None and config.n_words is not None:
            self.word_embed = nn.Parameter(torch.zeros(config.n_words, config.word_dim))
        # Columns of ids that come before the characters.
        self.lead = 0 if self.word_embed is None else 1
        self.char_embed = nn.Parameter(torch.zeros(config.n_characters or N_CHARACTERS, config.char_dim))
        self.conv_weights = nn.ParameterList(
            [nn.Parameter(torch.zeros(width, config.char_dim, count)) for width, count in config.filters]
        )
        self.conv_biases = nn.ParameterList([nn.Parameter(torch.zeros(count)) for _, count in config.filters])
        self.highways = nn.ModuleList([Highway(config.n_filters) for _ in range(config.n_highway)])
        self.widest = max(width for width, _ in config.filters)
        self.W_proj: nn.Parameter | None = None
        self.b_proj: nn.Parameter | None = None
        if config.has_char_projection:
            self.W_proj = nn.Parameter(torch.zeros(config.n_features, config.projection_dim))
            self.b_proj = nn.Parameter(torch.zeros(config.projection_dim))

    def initialize(self, generator: torch.Generator) -> None:
        """bilm-tf's initial values."""
        with torch.no_grad():
            if self.word_embed is not None:
                _glorot_uniform(self.word_embed, generator)
            self.char_embed.uniform_(-1.0, 1.0, generator=generator)
            for weight, bias in zip(self.conv_weights, self.conv_biases, strict=True):
                if self.activation == "relu":
                    weight.uniform_(-0.05, 0.05, generator=generator)
                else:
                    weight.normal_(0.0, math.sqrt(1.0 / (weight.shape[0] * weight.shape[1])), generator=generator)
                bias.zero_()
            for highway in self.highways:
                assert isinstance(highway, Highway)
                std = math.sqrt(1.0 / highway.W_carry.shape[0])
                highway.W_carry.normal_(0.0, std, generator=generator)
                highway.W_transform.normal_(0.0, std, generator=generator)
                highway.b_carry.fill_(-2.0)
                highway.b_transform.zero_()
            if self.W_proj is not None and self.b_proj is not None:
                self.W_proj.normal_(0.0, math.sqrt(1.0 / self.W_proj.shape[0]), generator=generator)
                self.b_proj.zero_()

    def forward(self, ids: Tensor) -> Tensor:
        """Encode word types. Each row's result depends on that row alone.

        ids: (n, C) int64 character ids, unshifted; with word vectors (n, 1 + C), the word's row first.
        RETURNS: (n, P).
        """
        if len(ids) == 0:
            return self.char_embed.new_zeros(0, self.width)
        return encode_by_length(ids, self.widest, self._encode, pad=self.pad, lead=self.lead, few_shapes=self.training)

    def _encode(self, ids: Tensor) -> Tensor:
        hidden = self._convolve(ids[:, self.lead :])
        for highway in self.highways:
            hidden = highway(hidden)
        if self.word_embed is not None:
            hidden = torch.cat([self.word_embed[ids[:, 0]], hidden], dim=1)
        if self.W_proj is not None and self.b_proj is not None:
            hidden = torch.addmm(self.b_proj, hidden, self.W_proj)
        return hidden

    def _convolve(self, ids: Tensor) -> Tensor:
        embedded = self.char_embed[ids]  # (n, columns, char_dim)
        pooled = []
        for weight, bias in zip(self.conv_weights, self.conv_biases, strict=True):
            columns = windows(embedded, weight.shape[0])
            convolved = columns.flatten(0, 1) @ weight.flatten(0, 1)
            # The bias is the same at every position, so it may be added after the maximum.
            pooled.append(convolved.view(*columns.shape[:2], -1).max(dim=1).values + bias)
        features = torch.cat(pooled, dim=1)
        return torch.relu(features) if self.activation == "relu" else torch.tanh(features)


def encode_by_length(
    ids: Tensor,
    widest: int,
    encode: Callable[[Tensor], Tensor],
    *,
    pad: int = PAD_CHARACTER,
    lead: int = 0,
    few_shapes: bool = False,
) -> Tensor:
    """Encode word types in chunks of similar length, to the end: over all types at once memory would grow with them.

    A chunk is trimmed to its longest word and the widest filter, which is exact: every window beyond lies in padding
    and equals one that is kept.

    ids: (n, lead + C), n > 0; the first ``lead`` columns are no characters. pad: what fills the others.
    widest: columns of the widest filter. encode: (m, lead + columns) -> (m, width), row by row.
    few_shapes: let it see few different m and columns, for which a little is computed that nobody needs.
    RETURNS: (n, width), in the order of ``ids``.
    """
    size = TYPES_PER_CHUNK[ids.device.type]
    lengths, order = (ids[:, lead:] != pad).sum(dim=1).sort()
    types_step, columns_step = (TYPES_STEP, COLUMNS_STEP) if few_shapes and len(ids) > TYPES_STEP else (1, 1)
    # The longest word stands in for those that are missing.
    missing = -len(ids) % types_step
    filled = torch.cat([order, order[-1:].expand(missing)])
    longest_of_each = [int(part[-1]) for part in lengths.split(size)]
    chunks = []
    for chunk, longest in zip(filled.split(size), longest_of_each, strict=True):
        columns = -(-(longest + widest) // columns_step) * columns_step
        chunks.append(encode(ids[chunk, : min(ids.shape[1], lead + columns)]))
    return torch.cat(chunks)[torch.argsort(order)]


def windows(embedded: Tensor, width: int) -> Tensor:
    """All windows of ``width`` columns: (n, columns, char_dim) -> a view (n, positions, width * char_dim)."""
    n, columns, char_dim = embedded.shape
    return embedded.as_strided((n, columns - width + 1, width * char_dim), (columns * char_dim, char_dim, 1))


class WordEncoder(nn.Module):
    """A table of token vectors, for biLMs that read words; ELMoForManyLangs': of word vectors, and a projection."""

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        assert config.n_words is not None
        self.embedding = nn.Parameter(torch.zeros(config.n_words, config.word_dim or config.projection_dim))
        self.W_proj: nn.Parameter | None = None
        self.b_proj: nn.Parameter | None = None
        if config.has_char_projection:
            self.W_proj = nn.Parameter(torch.zeros(config.n_features, config.projection_dim))
            self.b_proj = nn.Parameter(torch.zeros(config.projection_dim))

    def initialize(self, generator: torch.Generator) -> None:
        """Glorot uniform, TensorFlow's default, as in bilm-tf."""
        with torch.no_grad():
            _glorot_uniform(self.embedding, generator)
            if self.W_proj is not None and self.b_proj is not None:
                _glorot_uniform(self.W_proj, generator)
                self.b_proj.zero_()

    def forward(self, ids: Tensor) -> Tensor:
        """(n,) int64 rows of the table -> (n, P)."""
        vectors = self.embedding[ids]
        if self.W_proj is not None and self.b_proj is not None:
            vectors = torch.addmm(self.b_proj, vectors, self.W_proj)
        return vectors


def _glorot_uniform(weight: Tensor, generator: torch.Generator) -> None:
    limit = math.sqrt(6.0 / sum(weight.shape))
    weight.uniform_(-limit, limit, generator=generator)
