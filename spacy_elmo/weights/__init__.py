"""Files <-> BiLM: one module a format, and one function that recognises them all."""

from __future__ import annotations

from pathlib import Path

from ..bilm.model import BiLM
from .bilm_hdf5 import load_bilm_hdf5, save_bilm_hdf5
from .many_langs import load_many_langs
from .native import bilm_from_bytes, bilm_to_bytes, load_native, save_native, save_softmax
from .recognise import FAMILIES, Found, load_bilm, load_softmax, recognised
from .summary import Summary, summary, summary_of
from .tf_checkpoint import load_tf_checkpoint, load_tf_softmax
from .token_embeddings import load_token_embeddings
from .vocabulary import find_vocabulary, load_vocabulary, save_vocabulary

__all__ = [
    "FAMILIES",
    "Found",
    "Summary",
    "bilm_from_bytes",
    "bilm_to_bytes",
    "find_vocabulary",
    "load_bilm",
    "load_bilm_hdf5",
    "load_many_langs",
    "load_native",
    "load_softmax",
    "load_tf_checkpoint",
    "load_tf_softmax",
    "load_token_embeddings",
    "load_vocabulary",
    "recognised",
    "save_bilm",
    "save_bilm_hdf5",
    "save_native",
    "save_softmax",
    "save_vocabulary",
    "summary",
    "summary_of",
]


def save_bilm(bilm: BiLM, path: Path | str) -> None:
    """Save a biLM as a folder in our own format: see `native.py`.

    Raises WeightsError for NaN or infinite weights, a folder that holds a model of another format, or one that cannot
    be written; then what was there stays.
    """
    save_native(bilm, path)
