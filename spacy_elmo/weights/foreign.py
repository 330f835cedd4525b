"""Files that a save is about to replace, and that may be another program's: their names are everybody's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..bilm.characters import BOS, EOS, UNK
from ..errors import WeightsError
from .card import CARD_NAMES, is_card
from .files import LARGEST_TEXT, Content, check_weights_file, clear_errors, holds, is_folder, read_json
from .folders import (
    CHARACTERS_NAME,
    CONFIG_NAME,
    MODEL_NAME,
    OPTIONS_NAME,
    SOFTMAX_NAME,
    TOKEN_EMBEDDINGS_NAME,
    VOCABULARY_NAME,
    WEIGHTS_NAME,
    reads_like_options,
)
from .hdf5_file import opened_hdf5
from .vocabulary import SOFTMAX_VOCABULARY_NAME, read_words

# In the header of a safetensors file: that it holds a biLM, or an output layer.
CONFIG_KEY = "spacy_elmo_config"
OUTPUT_KEY = "spacy_elmo_output_layer"
_LARGEST_HEADER = 100 * 2**20  # bytes; the library's own bound


def refuse_foreign(contents: Mapping[Path, Content]) -> None:
    """WeightsError if a file that is to be replaced, or removed, is not part of a biLM's weights that lie there.

    contents: as `write_files` takes them. What describes weights (options, words) is theirs only where those lie
    beside it. A file that stays as it is does not matter.
    """
    for path, content in contents.items():
        if not os.path.exists(path) or is_folder(path) or holds(path, content):  # what cannot be, the writer says
            continue
        reads, weights = _KINDS.get(path.name, _kind_of(path))
        beside = not weights or any(os.path.exists(path.with_name(name)) for name in weights)
        try:
            ours = beside and reads(path)
        except WeightsError:
            ours = False
        if not ours:
            raise WeightsError(
                f"{path}: is there already, and not part of a biLM's weights that could be replaced: choose another "
                "folder, or remove it first"
            )


def _is_model(path: Path) -> bool:
    header = _safetensors_header(path)
    # Weights that other tools have renamed have lost what else the header holds.
    return CONFIG_KEY in header.get("__metadata__", {}) or "forward_lstm.layers.0.kernel" in header


def _is_output_layer(path: Path) -> bool:
    header = _safetensors_header(path)
    return OUTPUT_KEY in header.get("__metadata__", {}) or header.keys() - {"__metadata__"} == {"W", "b"}


def _safetensors_header(path: Path) -> dict[str, Any]:
    """The header alone: a file that is cut short is ours all the same. Empty for other files."""
    check_weights_file(path)
    with clear_errors(path, "cannot be read"), path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        encoded = file.read(size) if size <= _LARGEST_HEADER else b""
    try:
        header = json.loads(encoded)
    except (ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) and isinstance(header.get("__metadata__", {}), dict) else {}


def _has_lstm(path: Path) -> bool:
    with opened_hdf5(path) as datasets:
        return any(name.startswith("RNN_") for name in datasets.shapes)


def _has_table(path: Path) -> bool:
    with opened_hdf5(path) as datasets:
        return set(datasets.shapes) == {"embedding"}


def _is_list_of_strings(path: Path) -> bool:
    found = read_json(path, LARGEST_TEXT)
    return isinstance(found, list) and all(isinstance(text, str) for text in found)


def _is_vocabulary(path: Path) -> bool:
    return {BOS, EOS, UNK} <= {word.strip() for word in read_words(path)}


def _is_card(path: Path) -> bool:
    return is_card(path.parent)


_Kind = tuple[Callable[[Path], bool], tuple[str, ...]]
# What each file is when it is ours, and the weights of which one lies beside it.
_KINDS: dict[str, _Kind] = {
    MODEL_NAME: (_is_model, ()),
    CONFIG_NAME: (reads_like_options, (MODEL_NAME,)),
    VOCABULARY_NAME: (_is_list_of_strings, (MODEL_NAME,)),
    CHARACTERS_NAME: (_is_list_of_strings, (MODEL_NAME,)),
    SOFTMAX_NAME: (_is_output_layer, ()),
    SOFTMAX_VOCABULARY_NAME: (_is_vocabulary, (MODEL_NAME, SOFTMAX_NAME, WEIGHTS_NAME, TOKEN_EMBEDDINGS_NAME)),
    OPTIONS_NAME: (reads_like_options, (WEIGHTS_NAME,)),
    WEIGHTS_NAME: (_has_lstm, ()),
    TOKEN_EMBEDDINGS_NAME: (_has_table, ()),
    **dict.fromkeys(CARD_NAMES, (_is_card, (MODEL_NAME,))),
}


def _kind_of(path: Path) -> _Kind:
    """Of a file that the user has named."""
    return (_has_table if path.suffix in (".hdf5", ".h5") else _is_output_layer), ()
