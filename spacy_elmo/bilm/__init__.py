"""The bidirectional language model, in PyTorch alone."""

from __future__ import annotations

from .adaptive import AdaptiveSoftmax
from .config import BiLMConfig
from .continuous import ContinuousOutput
from .model import BiLM, BiLMState
from .output_layer import OutputLayer
from .softmax import FullSoftmax, SampledSoftmax

__all__ = [
    "AdaptiveSoftmax",
    "BiLM",
    "BiLMConfig",
    "BiLMState",
    "ContinuousOutput",
    "FullSoftmax",
    "OutputLayer",
    "SampledSoftmax",
]
