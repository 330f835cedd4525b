"""ELMo for spaCy: deep contextual word vectors from a bidirectional language model."""

from __future__ import annotations

__version__ = "0.1.0"  # stands first: the weights room writes it into files

from .bilm import BiLM, BiLMConfig
from .errors import ElmoError
from .weights import builtin_models, load_bilm, save_bilm

__all__ = ["BiLM", "BiLMConfig", "ElmoError", "builtin_models", "load_bilm", "save_bilm"]
