"""The bidirectional language model, in PyTorch alone."""

from __future__ import annotations

from .config import BiLMConfig
from .model import BiLM, BiLMState
from .softmax import FullSoftmax, SampledSoftmax

__all__ = ["BiLM", "BiLMConfig", "BiLMState", "FullSoftmax", "SampledSoftmax"]
