"""The format of bilm-tf and AllenNLP: an `options.json` and one HDF5 file of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ..bilm.model import BiLM
from ..errors import WeightsError
from .files import HDF5_MAGIC, Content, check_weights_file, exists, json_bytes, made_folder, read_json, write_files
from .folders import OPTIONS_NAME, WEIGHTS_NAME, interrupted, refuse_beside_others
from .layout import check_shapes, checked_values, layout
from .native import check_n_characters, config_from, fill, new_bilm
from .vocabulary import VOCABULARY_NAMES, read_words, word_lines

# What h5py raises for damaged files, depending on where the damage lies.
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def load_bilm_hdf5(options_path: Path | str, weights_path: Path | str) -> BiLM:
    """Load weights that bilm-tf dumped, one-layer ones too (which bilm-tf names otherwise and cannot read back).

    Weights that read words (options without `char_cnn`) need the words of their table's rows in `vocabulary.json`,
    `vocabulary.txt` or `vocab.txt` beside the weights.
    Raises WeightsError for anything missing, broken or inconsistent, and if h5py is not installed.
    """
    options_path, weights_path = Path(options_path), Path(weights_path)
    if weights_path.parent == options_path.parent and exists(weights_path) and not exists(options_path):
        raise WeightsError(f"{options_path}: no such file{interrupted(weights_path.parent)}")
    options = read_json(options_path)
    if not isinstance(options, Mapping):
        raise WeightsError(f"{options_path}: the options are a JSON object, not {type(options).__name__}")
    if not check_weights_file(weights_path).startswith(HDF5_MAGIC):
        raise WeightsError(f"{weights_path}: is not an HDF5 file")
    h5py = _h5py()
    where = str(weights_path)
    try:
        file = h5py.File(weights_path, "r")
    except _HDF5_ERRORS as error:
        raise WeightsError(f"{where}: not a whole HDF5 file (cut short, or damaged): {error}") from error
    with file:
        datasets = _datasets(file, h5py, where)
        shapes = {name: tuple(dataset.shape) for name, dataset in datasets.items()}
        check_n_characters(options, shapes.get("char_embed"), str(options_path))
        config = config_from(_with_n_words(options, shapes), options_path)
        check_shapes(((entry.dataset, entry.dataset_shape) for entry in layout(config)), shapes, where, "dataset")
        for name, dataset in datasets.items():
            _check_stored(dataset, name, where)
        bilm = new_bilm(config, None if config.filters else _vocabulary_beside(weights_path), where)

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            for entry in layout(config):
                try:
                    values = np.asarray(datasets[entry.dataset][()], dtype=np.float32)
                except _HDF5_ERRORS as error:
                    raise WeightsError(f"{where}: dataset '{entry.dataset}' cannot be read: {error}") from error
                yield entry.parameter, torch.from_numpy(values).view(entry.shape)

        fill(bilm, tensors(), where)
    return bilm


def save_bilm_hdf5(bilm: BiLM, folder: Path | str) -> None:
    """Save `options.json` and `weights.hdf5` as bilm-tf and AllenNLP read them (and `vocabulary.txt` for a word table).

    The format has no place for a start state: a saved model starts from zeros. One layer is named like the first of
    several, the only name that the public loaders know.
    Raises WeightsError if a weight is NaN or infinite, a word does not fit a vocabulary file, h5py is missing, the
    folder holds a model of another format or other names, or it cannot be written; then what was there stays.
    """
    h5py = _h5py()
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


def _h5py() -> ModuleType:
    try:
        import h5py
    except ImportError as error:
        raise WeightsError(
            'reading and writing .hdf5 weights needs h5py, which is not installed: pip install "spacy-elmo[hdf5]"'
        ) from error
    return h5py


def _datasets(file: Any, h5py: ModuleType, where: str) -> dict[str, Any]:
    """All datasets by name, one-layer names brought to those of several layers. No values are read."""
    found: dict[str, Any] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            # TensorFlow leaves MultiRNNCell/Cell0 out of the names of a single layer.
            found[name.replace("/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/")] = node

    try:
        file.visititems(visit)
    except _HDF5_ERRORS as error:
        raise WeightsError(f"{where}: its list of datasets cannot be read: {error}") from error
    return found


def _check_stored(dataset: Any, name: str, where: str) -> None:
    """WeightsError for a dataset that is not of numbers, or whose values were never written (HDF5 reads zeros then)."""
    if dataset.dtype.kind != "f":
        raise WeightsError(f"{where}: dataset '{name}' holds {dataset.dtype}, not floating-point weights")
    if dataset.size and not dataset.id.get_storage_size():
        raise WeightsError(f"{where}: dataset '{name}' has a shape but no values: its dump was interrupted")


def _with_n_words(options: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Any]:
    """The options, completed for word-table input, where files of bilm-tf may leave the number of words out."""
    table = shapes.get("embedding", ())
    if "char_cnn" in options or "n_tokens_vocab" in options or not table:
        return options
    return {**options, "n_tokens_vocab": table[0]}


def _vocabulary_beside(weights_path: Path) -> list[str] | None:
    for name in VOCABULARY_NAMES:
        if exists(weights_path.with_name(name)):
            return read_words(weights_path.with_name(name))
    return None
