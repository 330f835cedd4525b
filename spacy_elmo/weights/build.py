"""From options and stored tensors to a BiLM, for every format: all is compared before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from ..bilm.model import BiLM
from ..errors import WeightsError
from .files import read_json
from .layout import check_shapes, checked_values, layout, refuse_forward_only
from .native import check_n_characters, config_from, new_bilm
from .vocabulary import table_words


class Stored(Protocol):
    """Tensors in a file, not read yet."""

    @property
    def where(self) -> str:
        """The file, for errors."""

    @property
    def what(self) -> str:
        """What its format calls them, for errors."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape by name, of all that may belong to a biLM."""

    def check(self, names: Iterable[str]) -> None:
        """WeightsError if the file cannot hold the values of these tensors, all together."""

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Read one into a contiguous float32 tensor of its shape. WeightsError if that fails."""


def read_options(path: Path) -> Mapping[str, Any]:
    """A file of options. WeightsError if it is missing or broken, or no JSON object."""
    options = read_json(path)
    if not isinstance(options, Mapping):
        raise WeightsError(f"{path}: the options are a JSON object, not {type(options).__name__}")
    return options


def build(
    options: Mapping[str, Any],
    options_path: Path,
    stored: Stored,
    *,
    name_of: Callable[[str], str] = str,
    vocabulary_folder: Path,
) -> BiLM:
    """The biLM of bilm-tf's options and the weights that belong to them.

    options_path: where the options come from, for errors.
    name_of: the stored name of a tensor, by its name in an HDF5 file.
    vocabulary_folder: where the words of a word table lie.
    Raises WeightsError for anything missing, broken or inconsistent.
    """
    refuse_forward_only(stored.shapes, stored.where)
    char_embed, embedding = (stored.shapes.get(name_of(name)) for name in ("char_embed", "embedding"))
    check_n_characters(options, char_embed, str(options_path))
    if "char_cnn" not in options and "n_tokens_vocab" not in options and embedding:
        options = {**options, "n_tokens_vocab": embedding[0]}  # bilm-tf may leave it out
    config = config_from(options, options_path)
    expected = ((name_of(entry.dataset), entry.dataset_shape) for entry in layout(config))
    check_shapes(expected, stored.shapes, stored.where, stored.what)
    stored.check([name_of(entry.dataset) for entry in layout(config)])
    words = None if config.n_words is None else table_words(vocabulary_folder, config.n_words)
    bilm = new_bilm(config, words, stored.where)
    places = bilm.state_dict()
    for entry in layout(config):
        # Straight into its place: nothing is held twice.
        place = places[entry.parameter].view(entry.dataset_shape)
        stored.read_into(name_of(entry.dataset), place)
        checked_values(place, name_of(entry.dataset), stored.where)
    bilm.invalidate()
    return bilm
