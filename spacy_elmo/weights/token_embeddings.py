"""Files of token embeddings: what the token encoder made of each line of a vocabulary, so that it need not run again.

bilm-tf dumps them as an HDF5 file with one dataset, `embedding` (V, P), and runs the LSTMs of the original weights on
them: row i is the token vector of line i of the vocabulary, which holds `<S>` and `</S>`; other words read as `<UNK>`.
That is a biLM that reads words, and so it becomes one here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ..bilm.model import BiLM
from ..bilm.words import WordVectors
from ..errors import WeightsError
from .build import build, read_options
from .files import Content, as_path, is_folder, made_folder, write_files
from .folders import (
    TOKEN_EMBEDDINGS_NAME,
    has_options,
    options_of,
    refuse_beside_many_langs,
    refuse_beside_output_layer,
)
from .foreign import refuse_foreign
from .hdf5_file import Datasets, import_h5py, opened_hdf5
from .hdf5_writer import Values, write_hdf5
from .layout import check_shapes, checked_values, layout
from .native import config_from
from .vocabulary import VOCABULARY_NAMES, table_words_of, word_lines

_TABLE = "embedding"
# Words that are encoded at once: memory does not grow with the vocabulary.
_BLOCK = 4096


def load_token_embeddings(options_path: Path | str, weights_path: Path | str, embeddings_path: Path | str) -> BiLM:
    """The biLM that reads the words of a file of token embeddings, from a table, and nothing else.

    options_path, weights_path: of the biLM that made the embeddings, in HDF5; its LSTMs are used.
    embeddings_path: the file, with the vocabulary of its rows beside it: see `find_vocabulary`.
    Raises WeightsError for anything missing, broken or inconsistent, and if h5py is not installed.
    """
    options_path, weights_path, embeddings_path = as_path(options_path), as_path(weights_path), as_path(embeddings_path)
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


def save_token_embeddings(bilm: BiLM, words: Sequence[str], path: Path | str) -> list[str]:
    """Write the token vectors of a vocabulary, as bilm-tf dumps them, and the vocabulary beside them.

    The file has one dataset, `embedding` (V, P) float32: row i is what the token encoder makes of word i. Words are
    encoded and written a block at a time. `load_bilm(file)`, with the weights in HDF5 beside it, gives a biLM that
    reads words from this table; so does bilm-tf's `TokenBatcher`.

    words: in the order of the rows, repeated ones too. Of `<S>`, `</S>` and `<UNK>`, which the readers of such a file
        need, those that are missing come first; a line that bilm-tf's readers skip (`!!!MAXTERMID`) is left out.
    path: the file, or a folder: then `elmo_token_embeddings.hdf5` in it. `vocabulary.txt` is written beside it.
    RETURNS: the word of each row.
    Raises WeightsError for a biLM that reads no characters as bytes, a word that no line can hold, a vector with NaN
    or infinite values, h5py that is missing, a folder that holds another model, or a file that cannot be written; then
    what was there stays.
    """
    path = as_path(path)
    file = path / TOKEN_EMBEDDINGS_NAME if is_folder(path) else path
    check_token_embeddings(bilm, words, file)
    _check_place(bilm, made_folder(file.parent), file)
    words = table_words_of(words)
    vocabulary = file.with_name(VOCABULARY_NAMES[0])
    values = Values((len(words), bilm.config.projection_dim), _token_vectors(bilm, words, str(file)))
    contents: dict[Path, Content] = {
        file: partial(write_hdf5, datasets={_TABLE: values}),
        vocabulary: word_lines(words, vocabulary),
    }
    write_files(contents)
    return words


def check_token_embeddings(bilm: BiLM, words: Sequence[str], file: Path) -> None:
    """WeightsError if `save_token_embeddings` would refuse this biLM or these words, or the files that lie there.

    For who saves the weights first, which may replace those that are there.
    """
    if bilm.config.filters is None or bilm.config.is_many_langs:
        raise WeightsError(
            f"{file}: token embeddings are for biLMs that read characters as bilm-tf does; this one reads "
            f"{'what ELMoForManyLangs reads' if bilm.config.is_many_langs else 'words from a table already'}"
        )
    import_h5py()  # says so before anything is made
    if is_folder(file.parent):
        refuse_beside_output_layer(file.parent)
        refuse_beside_many_langs(file.parent)
    vocabulary = file.with_name(VOCABULARY_NAMES[0])
    refuse_foreign({file: None, vocabulary: word_lines(table_words_of(words), vocabulary)})


def _check_place(bilm: BiLM, folder: Path, file: Path) -> None:
    """WeightsError if the weights that lie where a file of token embeddings is to be written are of another model."""
    if not has_options(folder):
        return
    path = options_of(file)
    options = read_options(path)
    if "char_cnn" not in options or replace(config_from(options, path), state=bilm.config.state) != bilm.config:
        raise WeightsError(f"{file}: the options beside it, {path.name}, are those of another model")


def _token_vectors(bilm: BiLM, words: Sequence[str], where: str) -> Iterator[torch.Tensor]:
    # A caller's autocast would round what is written. Not around the yield: the caller works on in between.
    with torch.no_grad(), torch.autocast(bilm.device.type, enabled=False):
        encoder = WordVectors(bilm, "float32")
    for start in range(0, len(words), _BLOCK):
        with torch.no_grad(), torch.autocast(bilm.device.type, enabled=False):
            vectors = encoder.table(bilm, words[start : start + _BLOCK], limit=0)
        yield checked_values(vectors, _TABLE, where)


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
