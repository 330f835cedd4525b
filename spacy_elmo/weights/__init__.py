"""Files <-> BiLM: one module a format, and one function that recognises them all."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from ..bilm.model import BiLM
from ..errors import ElmoError
from .bilm_hdf5 import load_bilm_hdf5, save_bilm_hdf5
from .builtin import BuiltinModel, builtin_model, builtin_models
from .many_langs import load_many_langs
from .native import Dtype, bilm_from_bytes, bilm_to_bytes, load_native, save_native, save_softmax
from .recognise import FAMILIES, Found, load_bilm, load_output_layer, load_softmax, recognised
from .summary import Summary, summary, summary_of
from .tf_checkpoint import load_tf_checkpoint, load_tf_softmax
from .token_embeddings import load_token_embeddings, save_token_embeddings
from .vocabulary import find_vocabulary, load_vocabulary, save_vocabulary

__all__ = [
    "FAMILIES",
    "FORMATS",
    "BuiltinModel",
    "Format",
    "Found",
    "Summary",
    "bilm_from_bytes",
    "bilm_to_bytes",
    "builtin_model",
    "builtin_models",
    "find_vocabulary",
    "load_bilm",
    "load_bilm_hdf5",
    "load_many_langs",
    "load_native",
    "load_output_layer",
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
    "save_token_embeddings",
    "save_vocabulary",
    "summary",
    "summary_of",
]


Format = Literal["native", "bilm-hdf5"]
FORMATS: tuple[Format, ...] = get_args(Format)


def save_bilm(bilm: BiLM, path: Path | str, format: Format = "native", *, dtype: Dtype = "float32") -> None:
    """Save a biLM as a folder.

    format: "native", our own (see `native.py`), which holds every biLM whole; or "bilm-hdf5", what bilm-tf, AllenNLP,
        simple_elmo and flair read (see `save_bilm_hdf5`), which has no place for ELMoForManyLangs' token encoder (an
        error) nor for a start state (a warning: it is left out).
    dtype: of the stored values. "float16", of our own format alone, halves the file: each value is rounded to the
        nearest, and is loaded as what it was rounded to.
    Raises WeightsError for a biLM that the format cannot hold, NaN or infinite weights, values too large for float16,
    a folder that holds a model of another format, or one that cannot be written; then what was there stays. ElmoError
    for another format or dtype.
    """
    if format not in FORMATS:
        raise ElmoError(f"format is one of {', '.join(FORMATS)}, not {format!r}")
    if format == "native":
        save_native(bilm, path, dtype=dtype)
    elif dtype != "float32":
        raise ElmoError(f"format {format!r} holds float32, not {dtype!r}: only our own, 'native', holds float16")
    else:
        save_bilm_hdf5(bilm, path)
