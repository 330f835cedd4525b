"""The format of bilm-tf and AllenNLP: an `options.json` and one HDF5 file of weights."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

from ..bilm.model import BiLM
from ..errors import WeightsError
from .build import build, read_options
from .files import Content, as_path, exists, finish_writing, json_bytes, made_folder, write_files
from .folders import (
    OPTIONS_NAME,
    TOKEN_EMBEDDINGS_NAME,
    WEIGHTS_NAME,
    interrupted,
    refuse_beside_others,
)
from .foreign import refuse_foreign
from .hdf5_file import import_h5py, opened_hdf5
from .hdf5_writer import Values, write_hdf5
from .layout import checked_values, layout
from .vocabulary import VOCABULARY_NAMES, word_lines


def load_bilm_hdf5(options_path: Path | str, weights_path: Path | str) -> BiLM:
    """Load weights that bilm-tf dumped, one-layer ones too (which bilm-tf names otherwise and cannot read back).

    Weights that read words (options without `char_cnn`) need the words of their table's rows in a vocabulary beside
    the weights: see `find_vocabulary`.
    Raises WeightsError for anything missing, broken or inconsistent, for a forward-only language model, and if h5py is
    not installed.
    """
    options_path, weights_path = as_path(options_path), as_path(weights_path)
    finish_save(weights_path.parent)
    if weights_path.parent == options_path.parent and exists(weights_path) and not exists(options_path):
        raise WeightsError(f"{options_path}: no such file{interrupted(weights_path.parent)}")
    options = read_options(options_path)
    with opened_hdf5(weights_path) as datasets:
        return build(options, options_path, datasets, vocabulary_folder=weights_path.parent)


def save_bilm_hdf5(bilm: BiLM, folder: Path | str) -> None:
    """Save `options.json` and `weights.hdf5` as bilm-tf and AllenNLP read them (and `vocabulary.txt` for a word table).

    Values are copied as they are: the forget gate's 1 is in their formula too. One layer is named like the first of
    several, the only name that the public loaders know. The format has no place for a start state: where there is one,
    a warning says that it is left out, and the saved model starts from zeros. Token embeddings of the weights that
    are replaced (`elmo_token_embeddings.hdf5`) are removed.
    Raises WeightsError if a weight is NaN or infinite, a word does not fit a vocabulary file, the biLM is one of
    ELMoForManyLangs, h5py is missing, the folder holds a model of another format or other names, or it cannot be
    written; then what was there stays.
    """
    if bilm.config.is_many_langs:
        raise WeightsError(
            f"{folder}: bilm-tf's format has no place for the token encoder of ELMoForManyLangs: save the biLM in "
            "spacy-elmo's own format"
        )
    import_h5py()  # says so before anything is made
    folder = made_folder(folder)
    finish_save(folder)
    refuse_beside_others(folder)
    stored = bilm.state_dict()
    for entry in layout(bilm.config):
        checked_values(stored[entry.parameter], entry.parameter, str(folder))
    if bilm.config.state == "warm":
        warnings.warn(
            f"{folder}: bilm-tf's format has no place for the start state of these weights, which is left out: whoever "
            "loads them starts from zeros and gets other vectors",
            stacklevel=2,
        )
    datasets = {entry.dataset: Values(entry.dataset_shape, [stored[entry.parameter]]) for entry in layout(bilm.config)}
    # The options last: without them nothing is read, so a save that is killed leaves no readable mixture, and whoever
    # reads or saves next finishes it.
    contents: dict[Path, Content] = {
        folder / WEIGHTS_NAME: partial(write_hdf5, datasets=datasets),
        folder / TOKEN_EMBEDDINGS_NAME: None,
    }
    if bilm.vocabulary is not None:
        contents[folder / VOCABULARY_NAMES[0]] = word_lines(bilm.vocabulary, folder / VOCABULARY_NAMES[0])
    contents[folder / OPTIONS_NAME] = json_bytes({**bilm.config.to_options(), "state": "zero"})
    refuse_foreign(contents)
    write_files(contents)


def finish_save(folder: Path) -> None:
    """Bring the files of a model in HDF5 to their places whose save into this folder was killed between them."""
    names = (WEIGHTS_NAME, VOCABULARY_NAMES[0], OPTIONS_NAME)
    finish_writing(*(folder / name for name in names), gone=folder / TOKEN_EMBEDDINGS_NAME)
