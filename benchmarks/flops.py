"""How many floating-point operations a biLM needs: a count by rule, the same whatever a program makes of it.

A product of (m, k) and (k, n) counts 2 m k n; nothing else counts. Boundaries count as words.

- LSTM: each word, layer and direction 2 (2P 4H + H P).
- Characters: each word type once. A type has as many columns as bytes, the two word marks and the widest filter's
  padding make, at most C: convolutions 2 w d n a window, highways 2 · 2 F², projection 2 F P.
- A training step: three times the same (forward, gradient of the inputs, gradient of the weights), and three times
  2 N P (S + 1) a direction for a softmax over S negatives.

Who saves work beyond that (inputs of the first layer once a type) is credited with it; who does more is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spacy_elmo import BiLMConfig

BOUNDARIES = ("<S>", "</S>")


def lstm_flops(config: BiLMConfig, words: int) -> int:
    """Both directions and all layers over a number of words, boundaries included."""
    projection, cells = config.projection_dim, config.lstm_dim
    a_layer = 2 * (2 * projection * 4 * cells + (cells * projection if config.has_projection else 0))
    return 2 * config.n_layers * a_layer * words


def character_flops(config: BiLMConfig, types: Iterable[str]) -> int:
    """The token encoder over word types. Of a word table: 0."""
    if config.filters is None:
        return 0
    widest = max(width for width, _ in config.filters)
    features = config.n_filters
    fixed = 2 * 2 * features**2 * config.n_highway
    fixed += 2 * features * config.projection_dim if config.has_char_projection else 0
    flops = 0
    for word in types:
        length = 1 if word in BOUNDARIES else len(word.encode("utf8"))
        columns = min(config.max_characters_per_token, length + 2 + widest)
        flops += fixed + sum(
            2 * (columns - width + 1) * width * config.char_dim * count for width, count in config.filters
        )
    return flops


def encode_flops(config: BiLMConfig, sentences: Sequence[Sequence[str]]) -> int:
    """Encoding sentences of which no word is known before."""
    types = {word for sentence in sentences for word in sentence} | set(BOUNDARIES)
    return lstm_flops(config, sum(len(sentence) + 2 for sentence in sentences)) + character_flops(config, types)


def training_flops(config: BiLMConfig, *, words: int, types: Iterable[str], negatives: int) -> int:
    """One step over a window. words: N, rows times steps. types: that are read in it."""
    softmax = 2 * 2 * words * config.projection_dim * (negatives + 1)
    return 3 * (lstm_flops(config, words) + character_flops(config, types) + softmax)
