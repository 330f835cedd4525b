"""ELMo for spaCy: deep contextual word vectors from a bidirectional language model."""

from __future__ import annotations

__version__ = "0.1.0"  # stands first: the weights room writes it into files

from .bilm import BiLM, BiLMConfig
from .errors import ElmoError
from .weights import load_bilm, save_bilm

__all__ = ["BiLM", "BiLMConfig", "ElmoError", "load_bilm", "save_bilm"]
