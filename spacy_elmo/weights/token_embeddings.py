"""Files of token embeddings: what the token encoder made of each line of a vocabulary, so that it need not run again.

bilm-tf dumps them as an HDF5 file with one dataset, `embedding` (V, P), and runs the LSTMs of the original weights on
them: row i is the token vector of line i of the vocabulary, which holds `<S>` and `</S>`; other words read as `<UNK>`.
That is a biLM that reads words, and so it becomes one here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from ..bilm.model import BiLM
from ..errors import WeightsError
from .build import build, read_options
from .hdf5_file import Datasets, opened_hdf5
from .layout import check_shapes, layout
from .native import config_from

_TABLE = "embedding"


def load_token_embeddings(options_path: Path | str, weights_path: Path | str, embeddings_path: Path | str) -> BiLM:
    """The biLM that reads the words of a file of token embeddings, from a table, and nothing else.

    options_path, weights_path: of the biLM that made the embeddings, in HDF5; its LSTMs are used.
    embeddings_path: the file, with the vocabulary of its rows beside it: see `find_vocabulary`.
    Raises WeightsError for anything missing, broken or inconsistent, and if h5py is not installed.
    """
    options_path, weights_path, embeddings_path = Path(options_path), Path(weights_path), Path(embeddings_path)
    options = read_options(options_path)
    with opened_hdf5(weights_path) as weights, opened_hdf5(embeddings_path) as table:
        config = config_from(options, options_path)
        expected = ((entry.dataset, entry.dataset_shape) for entry in layout(config))
        check_shapes(expected, weights.shapes, weights.where, weights.what)
        shape = table.shapes.get(_TABLE, ())
        if len(shape) != 2 or shape[1] != config.projection_dim:
            raise WeightsError(
                f"{embeddings_path}: its dataset '{_TABLE}' has shape {shape}, but token embeddings of the biLM of "
                f"{options_path} have shape (number of words, {config.projection_dim})"
            )
        words_only = {key: value for key, value in options.items() if key != "char_cnn"}
        return build(
            {**words_only, "n_tokens_vocab": shape[0]},
            options_path,
            _Both(weights, table),
            vocabulary_folder=embeddings_path.parent,
        )


def is_token_embeddings(path: Path) -> bool:
    """Whether an HDF5 file holds token embeddings, and no LSTM. WeightsError if it is broken."""
    with opened_hdf5(path) as datasets:
        return set(datasets.shapes) == {_TABLE}


class _Both:
    """The LSTMs of one file, and the table of another."""

    what = Datasets.what

    def __init__(self, weights: Datasets, table: Datasets) -> None:
        self._weights, self._table = weights, table
        self.where = f"{weights.where} with {table.where}"
        lstms = {name: shape for name, shape in weights.shapes.items() if name.startswith("RNN_")}
        self.shapes: Mapping[str, tuple[int, ...]] = {**lstms, _TABLE: table.shapes[_TABLE]}

    def check(self, names: Iterable[str]) -> None:
        """As `Datasets.check`."""
        names = list(names)
        self._weights.check([name for name in names if name != _TABLE])
        self._table.check([name for name in names if name == _TABLE])

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """As `Datasets.read_into`."""
        (self._table if name == _TABLE else self._weights).read_into(name, out)
