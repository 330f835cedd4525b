"""Raw text to a pretrained biLM: readers and encoded corpora, vocabulary, streams, the training loop."""

from __future__ import annotations
