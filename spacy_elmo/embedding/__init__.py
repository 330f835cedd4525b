"""Vectors of text files: in a file, as bilm-tf's dump and ``allennlp elmo`` wrote them, or compared with each other."""

from __future__ import annotations

from .embed import Embedded, embed_file
from .nearest import Neighbor, Neighbors, Occurrence, neighbors

__all__ = ["Embedded", "Neighbor", "Neighbors", "Occurrence", "embed_file", "neighbors"]
