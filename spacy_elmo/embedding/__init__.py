"""Vectors of text files, in a file: what bilm-tf's dump and ``allennlp elmo`` wrote."""

from __future__ import annotations

from .embed import Embedded, embed_file

__all__ = ["Embedded", "embed_file"]
