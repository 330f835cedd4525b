"""Small biLMs with weights large enough to run into their clips, and the same model in plain numpy."""

from __future__ import annotations

from typing import Any

import torch

from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.weights.layout import layout

from ..reference.numpy_bilm import NumpyBiLM

VOCABULARY = ["<S>", "</S>", "<UNK>", "the", "The", "cat", ".", "no", "", "日本語"]
# Not alike on purpose: a swap of two sizes or of the two clips must show.
SMALL: dict[str, Any] = {
    "lstm_dim": 7,
    "projection_dim": 5,
    "cell_clip": 1.0,
    "proj_clip": 0.7,
    "filters": ((1, 3), (2, 4), (4, 3)),
    "char_dim": 3,
    "max_characters_per_token": 12,
}
WORDS: dict[str, Any] = {**SMALL, "filters": None, "n_words": len(VOCABULARY)}
for _name in ("char_dim", "max_characters_per_token"):
    del WORDS[_name]


def make_bilm(seed: int = 0, *, vocabulary: list[str] | None = None, **options: Any) -> BiLM:
    """A small biLM with drawn weights; ``options`` replace those of ``SMALL``."""
    bilm = BiLM(BiLMConfig(**{**SMALL, **options}), vocabulary=vocabulary)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return bilm


def make_word_bilm(seed: int = 0, *, vocabulary: list[str] | None = None, **options: Any) -> BiLM:
    """The same with a word table."""
    vocabulary = VOCABULARY if vocabulary is None else vocabulary
    options = {**WORDS, "n_words": len(vocabulary), **options}
    bilm = BiLM(BiLMConfig(**options), vocabulary=vocabulary)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in bilm.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return bilm


def numpy_twin(bilm: BiLM) -> NumpyBiLM:
    """The same options and weights in the float64 reference. It counts how often a clip was hit."""
    values = bilm.state_dict()
    weights = {
        entry.dataset: values[entry.parameter].double().numpy().reshape(entry.dataset_shape)
        for entry in layout(bilm.config)
    }
    return NumpyBiLM(bilm.config.to_options(), weights, vocabulary=bilm.vocabulary)
