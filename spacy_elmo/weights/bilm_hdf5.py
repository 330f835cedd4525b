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
from .files import HDF5_MAGIC, check_weights_file, read_json, replacing, write_json
from .layout import check_shapes, checked_values, layout, listed
from .native import check_n_characters, config_from, fill, made_folder, new_bilm
from .vocabulary import VOCABULARY_NAMES, read_words, write_words

OPTIONS_NAME = "options.json"
WEIGHTS_NAME = "weights.hdf5"

# What h5py raises for damaged files, depending on where the damage lies.
_HDF5_ERRORS = (OSError, RuntimeError, KeyError, ValueError, TypeError)


def load_bilm_hdf5(options_path: Path | str, weights_path: Path | str) -> BiLM:
    """Load weights that bilm-tf dumped, one-layer ones too (which bilm-tf names otherwise and cannot read back).

    Weights that read words (options without `char_cnn`) need the words of their table's rows in `vocabulary.json`,
    `vocabulary.txt` or `vocab.txt` beside the weights.
    Raises WeightsError for anything missing, broken or inconsistent, and if h5py is not installed.
    """
    options_path, weights_path = Path(options_path), Path(weights_path)
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
    Raises WeightsError if a weight is NaN or infinite, a word does not fit a vocabulary file, or h5py is missing.
    """
    h5py = _h5py()
    folder = made_folder(folder)
    stored = bilm.state_dict()
    for entry in layout(bilm.config):
        checked_values(stored[entry.parameter], entry.parameter, str(folder))
    with replacing(folder / WEIGHTS_NAME) as temporary:
        with h5py.File(temporary, "w") as file:
            for entry in layout(bilm.config):
                values = stored[entry.parameter].detach().to(device="cpu", dtype=torch.float32)
                file.create_dataset(entry.dataset, data=values.contiguous().view(entry.dataset_shape).numpy())
        if bilm.vocabulary is not None:
            write_words(bilm.vocabulary, folder / "vocabulary.txt")
        # From here until they are written again there are no options: a save that is killed leaves no readable mixture.
        (folder / OPTIONS_NAME).unlink(missing_ok=True)
    options = bilm.config.to_options()
    options["state"] = "zero"
    write_json(options, folder / OPTIONS_NAME)


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
        if weights_path.with_name(name).exists():
            return read_words(weights_path.with_name(name))
    return None


def options_in(folder: Path) -> Path | None:
    """The options of a folder: `options.json`, or the only file whose name ends like that (published models)."""
    if (folder / OPTIONS_NAME).exists():
        return folder / OPTIONS_NAME
    found = list(folder.glob(f"*{OPTIONS_NAME}"))
    return found[0] if len(found) == 1 else None


def only_hdf5(folder: Path) -> Path:
    """The one .hdf5 file of a folder. WeightsError if there is none, or more than one."""
    found = sorted(path for path in folder.iterdir() if path.suffix in (".hdf5", ".h5") and path.is_file())
    if not found:
        raise WeightsError(f"{folder}: has options, but no .hdf5 file of weights")
    if len(found) > 1:
        raise WeightsError(
            f"{folder}: has several .hdf5 files ({listed([path.name for path in found])}): name the weights, "
            "load_bilm(<the options file>, <the .hdf5 file>)"
        )
    return found[0]
