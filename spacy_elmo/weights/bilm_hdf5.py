"""The format of bilm-tf and AllenNLP: an `options.json` and one HDF5 file of weights."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch

from ..bilm.model import BiLM
from ..errors import WeightsError
from .build import build, read_options
from .files import Content, exists, json_bytes, made_folder, write_files
from .folders import OPTIONS_NAME, WEIGHTS_NAME, interrupted, refuse_beside_others
from .hdf5_file import import_h5py, opened_hdf5
from .layout import checked_values, layout
from .vocabulary import word_lines


def load_bilm_hdf5(options_path: Path | str, weights_path: Path | str) -> BiLM:
    """Load weights that bilm-tf dumped, one-layer ones too (which bilm-tf names otherwise and cannot read back).

    Weights that read words (options without `char_cnn`) need the words of their table's rows in a vocabulary beside
    the weights: see `find_vocabulary`.
    Raises WeightsError for anything missing, broken or inconsistent, for a forward-only language model, and if h5py is
    not installed.
    """
    options_path, weights_path = Path(options_path), Path(weights_path)
    if weights_path.parent == options_path.parent and exists(weights_path) and not exists(options_path):
        raise WeightsError(f"{options_path}: no such file{interrupted(weights_path.parent)}")
    options = read_options(options_path)
    with opened_hdf5(weights_path) as datasets:
        return build(options, options_path, datasets, vocabulary_folder=weights_path.parent)


def save_bilm_hdf5(bilm: BiLM, folder: Path | str) -> None:
    """Save `options.json` and `weights.hdf5` as bilm-tf and AllenNLP read them (and `vocabulary.txt` for a word table).

    The format has no place for a start state: a saved model starts from zeros. One layer is named like the first of
    several, the only name that the public loaders know.
    Raises WeightsError if a weight is NaN or infinite, a word does not fit a vocabulary file, the biLM is one of
    ELMoForManyLangs, h5py is missing, the folder holds a model of another format or other names, or it cannot be
    written; then what was there stays.
    """
    if bilm.config.is_many_langs:
        raise WeightsError(
            f"{folder}: bilm-tf's format has no place for the token encoder of ELMoForManyLangs: save the biLM in "
            "spacy-elmo's own format"
        )
    h5py = import_h5py()
    folder = made_folder(folder)
    refuse_beside_others(folder)
    stored = bilm.state_dict()
    for entry in layout(bilm.config):
        checked_values(stored[entry.parameter], entry.parameter, str(folder))
    # The options last: without them nothing is read, so a save that is killed leaves no readable mixture.
    contents: dict[Path, Content] = {folder / WEIGHTS_NAME: _hdf5_image(bilm, h5py)}
    if bilm.vocabulary is not None:
        path = folder / "vocabulary.txt"
        contents[path] = word_lines(bilm.vocabulary, path)
    contents[folder / OPTIONS_NAME] = json_bytes({**bilm.config.to_options(), "state": "zero"})
    write_files(contents)


def _hdf5_image(bilm: BiLM, h5py: ModuleType) -> bytes:
    """The bytes of the HDF5 file, made in memory: where its own writer fails (a full disk), it ends the process."""
    stored = bilm.state_dict()
    with h5py.File(WEIGHTS_NAME, "w", driver="core", backing_store=False) as file:
        for entry in layout(bilm.config):
            values = stored[entry.parameter].detach().to(device="cpu", dtype=torch.float32)
            file.create_dataset(entry.dataset, data=values.contiguous().view(entry.dataset_shape).numpy())
        file.flush()
        return bytes(file.id.get_file_image())
