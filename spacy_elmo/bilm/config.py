"""The shape of a biLM: one validated, frozen record, the same facts as bilm-tf's ``options.json``.

It describes two families, which share their LSTMs and differ in how words become token vectors. bilm-tf's reads bytes,
or looks words up in a table of token vectors. ELMoForManyLangs' has tables of code points, of word vectors, or of
both, and projects what they give: ``n_characters`` and ``word_dim`` are set for it alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from ..errors import ElmoError
from .characters import BILM_TF_MARKS, MANY_LANGS_MARKS, Marks

Activation = Literal["relu", "tanh"]
StartPolicy = Literal["zero", "warm"]

# The published models' character CNN (Peters et al., 2018): 2,048 filters of widths 1 to 7.
PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))

# Sizes of tensors are int64. No stored tensor tells the characters of a word: beyond this, no text fits into memory.
_LARGEST_COUNT = 2**63 - 1
_LARGEST_COLUMNS = 2**16

# The section of our own options in which ELMoForManyLangs' token encoder stands, under the names of its fields.
_MANY_LANGS = "many_langs"
_MANY_LANGS_FIELDS = (
    "filters",
    "activation",
    "n_highway",
    "char_dim",
    "max_characters_per_token",
    "n_characters",
    "n_words",
    "word_dim",
)


@dataclass(frozen=True, kw_only=True)
class BiLMConfig:
    """Sizes and options of a biLM. Every field is checked; a wrong one raises ``ElmoError`` that names it.

    lstm_dim (int): H, cell size of one direction.
    projection_dim (int): P, size of a token vector and of one direction's output. P == H means no projection.
    n_layers (int): L, LSTM layers of each direction, at least 1.
    cell_clip (float | None): bound on the cell state; None or 0: none.
    proj_clip (float | None): bound on the projected output; None or 0: none.
    use_skip_connections (bool): add a layer's input to its output, from the second layer on.
    filters (tuple[tuple[int, int], ...] | None): (width, count) of each group of character filters;
        None: words come from a table alone.
    activation ("relu" | "tanh"): of the character CNN.
    n_highway (int): highway layers after the CNN.
    char_dim (int): size of a character embedding.
    max_characters_per_token (int): C, with the two word marks: a word keeps C - 2 bytes (or code points).
    n_words (int | None): rows of the word table; set if and only if there is one.
    n_characters (int | None): rows of the table of code points; None: characters are bytes.
    word_dim (int | None): size of a word vector, which goes through a projection, beside the character features if
        there are some; None: the word table holds token vectors, or there is none.
    state ("zero" | "warm"): where an LSTM starts when the caller does not say.
    """

    lstm_dim: int
    projection_dim: int
    n_layers: int = 2
    cell_clip: float | None = 3.0
    proj_clip: float | None = 3.0
    use_skip_connections: bool = True
    filters: tuple[tuple[int, int], ...] | None = PUBLISHED_FILTERS
    activation: Activation = "relu"
    n_highway: int = 1
    char_dim: int = 16
    max_characters_per_token: int = 50
    n_words: int | None = None
    n_characters: int | None = None
    word_dim: int | None = None
    state: StartPolicy = "zero"

    def __post_init__(self) -> None:
        for name in ("lstm_dim", "projection_dim", "n_layers", "char_dim"):
            _check_count(name, getattr(self, name), at_least=1)
        _check_count("n_highway", self.n_highway, at_least=0)
        _check_count("max_characters_per_token", self.max_characters_per_token, at_least=3, at_most=_LARGEST_COLUMNS)
        for name in ("cell_clip", "proj_clip"):
            object.__setattr__(self, name, _checked_clip(name, getattr(self, name)))
        if not isinstance(self.use_skip_connections, bool):
            raise ElmoError(f"use_skip_connections is true or false, not {_shown(self.use_skip_connections)}")
        if self.activation not in get_args(Activation):
            raise ElmoError(f"activation is 'relu' or 'tanh', not {_shown(self.activation)}")
        if self.state not in get_args(StartPolicy):
            raise ElmoError(f"state is 'zero' or 'warm', not {_shown(self.state)}")
        for name in ("n_words", "n_characters", "word_dim"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name), at_least=1)
        if self.projection_dim > self.lstm_dim and not self.is_many_langs:
            raise ElmoError(
                f"projection_dim ({self.projection_dim}) is larger than the LSTM's cells ({self.lstm_dim}): "
                "an LSTM cannot project to more than it holds"
            )
        if self.filters is None:
            if self.n_words is None:
                raise ElmoError("a biLM without character filters reads words: set n_words, the rows of its word table")
            if self.n_characters is not None:
                raise ElmoError("n_characters is for a biLM that reads characters: leave it out, or set filters")
            # What only a character encoder reads stays at its defaults, so that equal models have equal configs.
            # (ELMoForManyLangs cuts a word before it looks it up.)
            unread = ("activation", "n_highway", "char_dim", "max_characters_per_token")
            for name in unread[:3] if self.is_many_langs else unread:
                object.__setattr__(self, name, getattr(type(self), name))
        else:
            self._check_filters()

    def _check_filters(self) -> None:
        if self.word_dim is not None and self.n_characters is None:
            raise ElmoError("word_dim beside character filters needs code points: set n_characters, or leave it out")
        if self.word_dim is None and self.n_words is not None:
            raise ElmoError("n_words is for word-table input: leave it out, or set filters to null")
        if self.word_dim is not None and self.n_words is None:
            raise ElmoError("word_dim is the size of word vectors: set n_words, the rows of their table")
        filters = self.filters
        if not isinstance(filters, (list, tuple)) or not filters:
            raise ElmoError(f"filters is a list of [width, count] pairs, not {_shown(filters)}")
        for pair in filters:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise ElmoError(f"filters is a list of [width, count] pairs; found {_shown(pair)}")
            _check_count("a filter's width", pair[0], at_least=1)
            _check_count("a filter's count", pair[1], at_least=1)
            if pair[0] > self.max_characters_per_token:
                raise ElmoError(
                    f"a filter of width {pair[0]} is wider than max_characters_per_token "
                    f"({self.max_characters_per_token})"
                )
        object.__setattr__(self, "filters", tuple((int(width), int(count)) for width, count in filters))

    @property
    def width(self) -> int:
        """Size of a contextual vector: forward and backward, 2P."""
        return 2 * self.projection_dim

    @property
    def n_filters(self) -> int:
        """F, the size of the CNN's output; 0 with word-table input."""
        return sum(count for _, count in self.filters or ())

    @property
    def is_many_langs(self) -> bool:
        """Whether the token encoder is ELMoForManyLangs': its own tables, ``<bos>`` and ``<eos>``, a projection."""
        return self.n_characters is not None or self.word_dim is not None

    @property
    def marks(self) -> Marks:
        """The words at a sentence's two ends, and that for unknown words."""
        return MANY_LANGS_MARKS if self.is_many_langs else BILM_TF_MARKS

    @property
    def n_features(self) -> int:
        """Size of what the token encoder's projection reads: word vector and character features."""
        return (self.word_dim or 0) + self.n_filters

    @property
    def has_char_projection(self) -> bool:
        """Whether the token encoder ends in a projection ``n_features`` -> P.

        bilm-tf leaves it out when F == P, and has none after a word table; ELMoForManyLangs always has it.
        """
        return self.is_many_langs or (self.filters is not None and self.n_filters != self.projection_dim)

    @property
    def has_projection(self) -> bool:
        """Whether the LSTM projects its output H -> P.

        bilm-tf leaves that out when P == H, and with it proj_clip; ELMoForManyLangs never does.
        """
        return self.is_many_langs or self.projection_dim < self.lstm_dim

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> BiLMConfig:
        """Read bilm-tf's and AllenNLP's ``options.json``, or ``to_options``. Other keys are ignored.

        n_characters is checked by whoever reads the weights, next to the table's shape.
        Raises ElmoError for a missing key or a value out of range.
        """
        lstm = _section(options, "lstm")
        kwargs: dict[str, Any] = {
            "lstm_dim": _required(lstm, "lstm", "dim"),
            "projection_dim": _required(lstm, "lstm", "projection_dim"),
            "n_layers": lstm.get("n_layers", 1),
            "cell_clip": lstm.get("cell_clip"),
            "proj_clip": lstm.get("proj_clip"),
            "use_skip_connections": lstm.get("use_skip_connections", False),
            "state": options.get("state", "zero"),
        }
        if _MANY_LANGS in options:
            many_langs = _section(options, _MANY_LANGS)
            kwargs |= {name: _required(many_langs, _MANY_LANGS, name) for name in _MANY_LANGS_FIELDS}
        elif "char_cnn" in options:
            char_cnn = _section(options, "char_cnn")
            kwargs |= {
                "filters": _required(char_cnn, "char_cnn", "filters"),
                "activation": _required(char_cnn, "char_cnn", "activation"),
                "n_highway": char_cnn.get("n_highway") or 0,
                "char_dim": _required(_section(char_cnn, "embedding"), "char_cnn.embedding", "dim"),
                "max_characters_per_token": _required(char_cnn, "char_cnn", "max_characters_per_token"),
            }
        else:
            kwargs |= {"filters": None, "n_words": _required(options, "the options", "n_tokens_vocab")}
        config = cls(**kwargs)
        if _MANY_LANGS in options and not config.is_many_langs:
            raise ElmoError(f"'{_MANY_LANGS}' in the options sets neither n_characters nor word_dim")
        return config

    def to_options(self) -> dict[str, Any]:
        """The same facts in the structure of ``options.json``, with 262 characters as inference code expects.

        That structure has no place for ELMoForManyLangs' token encoder, which gets a section of ours, ``many_langs``.
        """
        options: dict[str, Any] = {
            "bidirectional": True,
            "lstm": {
                "dim": self.lstm_dim,
                "projection_dim": self.projection_dim,
                "n_layers": self.n_layers,
                "cell_clip": self.cell_clip,
                "proj_clip": self.proj_clip,
                "use_skip_connections": self.use_skip_connections,
            },
            "state": self.state,
        }
        if self.is_many_langs:
            options[_MANY_LANGS] = {name: getattr(self, name) for name in _MANY_LANGS_FIELDS}
            options[_MANY_LANGS]["filters"] = self.filters and [list(pair) for pair in self.filters]
        elif self.filters is None:
            options["n_tokens_vocab"] = self.n_words
        else:
            options["char_cnn"] = {
                "activation": self.activation,
                "embedding": {"dim": self.char_dim},
                "filters": [list(pair) for pair in self.filters],
                "max_characters_per_token": self.max_characters_per_token,
                "n_characters": 262,
                "n_highway": self.n_highway,
            }
        return options


def _checked_clip(name: str, value: object) -> float | None:
    """The bound; None for 0 too: one spelling of "no clip", so that equal models have equal configs."""
    if value is None:
        return None
    try:
        clip = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:  # a whole number beyond all floats
        clip = math.inf
    if not 0 <= clip < math.inf:
        raise ElmoError(f"{name} is a positive number, or null for no clipping, not {_shown(value)}")
    return clip or None


def _check_count(name: str, value: object, *, at_least: int, at_most: int = _LARGEST_COUNT) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ElmoError(f"{name} is a whole number of at least {at_least}, not {_shown(value)}")
    if value > at_most:
        raise ElmoError(f"{name} is a whole number of at most {at_most}, not {_shown(value)}")


def _shown(value: object) -> str:
    """A value for an error, cut where it is long; Python refuses to write out the longest whole numbers."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    try:
        text = repr(value)
    except ValueError:  # such a number inside
        text = f"a {type(value).__name__} with a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _section(options: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(options, Mapping):
        raise ElmoError(f"the options are a JSON object, not {type(options).__name__}")
    section = options.get(name)
    if not isinstance(section, Mapping):
        raise ElmoError(f"the options have no section '{name}' (found: {', '.join(map(str, options)) or 'nothing'})")
    return cast("Mapping[str, Any]", section)


def _required(section: Mapping[str, Any], where: str, key: str) -> Any:
    if key not in section:
        raise ElmoError(f"the options lack '{key}' in {where} (found: {', '.join(map(str, section)) or 'nothing'})")
    return section[key]
