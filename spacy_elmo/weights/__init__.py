"""Files <-> BiLM: one module a format, and one function that recognises them all."""

from __future__ import annotations

from pathlib import Path

from ..bilm.model import BiLM
from ..errors import WeightsError
from .bilm_hdf5 import load_bilm_hdf5, save_bilm_hdf5
from .files import HDF5_MAGIC, ZIP_MAGIC, check_weights_file, exists, is_folder, names_in
from .folders import CONFIG_NAME, MODEL_NAME, OPTIONS_NAME, SOFTMAX_NAME, interrupted, only_hdf5, options_in
from .layout import listed
from .native import (
    bilm_from_bytes,
    bilm_to_bytes,
    load_native,
    load_softmax,
    save_native,
    save_softmax,
)
from .vocabulary import load_vocabulary, save_vocabulary

__all__ = [
    "bilm_from_bytes",
    "bilm_to_bytes",
    "load_bilm",
    "load_bilm_hdf5",
    "load_native",
    "load_softmax",
    "load_vocabulary",
    "save_bilm",
    "save_bilm_hdf5",
    "save_native",
    "save_softmax",
    "save_vocabulary",
]


def load_bilm(path: Path | str, weights: Path | str | None = None) -> BiLM:
    """Load a biLM, whatever the format.

    path: one of
        a folder of ours (`model.safetensors`, `config.json`), or its `model.safetensors`;
        a folder with bilm-tf's or AllenNLP's `options.json` and exactly one `.hdf5` file, or one of the two files;
        with `weights`, the options file alone.
    weights: the `.hdf5` file that belongs to the options at `path`.
    Raises WeightsError, saying what was found and what to do, for anything that is not a whole and consistent model.
    """
    path = Path(path)
    if weights is not None:
        return load_bilm_hdf5(path, weights)
    if not exists(path):
        hint = interrupted(path.parent) if path.name == OPTIONS_NAME and is_folder(path.parent) else ""
        raise WeightsError(f"{path}: no such file or folder{hint}")
    if is_folder(path):
        return _load_folder(path)
    head = check_weights_file(path)
    if head.startswith(HDF5_MAGIC):
        options = options_in(path.parent)
        if options is None:
            raise WeightsError(
                f"{path}: has no {OPTIONS_NAME} beside it: load_bilm(<the options file>, {str(path)!r})"
                f"{interrupted(path.parent)}"
            )
        return load_bilm_hdf5(options, path)
    if path.suffix == ".safetensors":
        return load_native(path)
    if path.name == CONFIG_NAME:
        return load_native(path.with_name(MODEL_NAME))
    if path.suffix == ".json":
        return load_bilm_hdf5(path, only_hdf5(path.parent))
    if head.startswith(ZIP_MAGIC):
        raise WeightsError(
            f"{path}: is an archive (or a pickle of PyTorch, which is never read): unpack it, load its folder"
        )
    raise WeightsError(f"{path}: not weights of a biLM: neither safetensors nor HDF5")


def save_bilm(bilm: BiLM, path: Path | str) -> None:
    """Save a biLM as a folder in our own format: see `native.py`.

    Raises WeightsError for NaN or infinite weights, a folder that holds a model in HDF5, or one that cannot be
    written; then what was there stays.
    """
    save_native(bilm, path)


def _load_folder(folder: Path) -> BiLM:
    # Ours first: a model that was also exported to HDF5 lies there twice, and ours holds its start state too.
    if exists(folder / MODEL_NAME):
        return load_native(folder)
    options = options_in(folder)
    if options is not None:
        return load_bilm_hdf5(options, only_hdf5(folder))
    names = [name for name in names_in(folder) if name != SOFTMAX_NAME]
    raise WeightsError(
        f"{folder}: holds no biLM: neither {MODEL_NAME} nor {OPTIONS_NAME} with an .hdf5 file "
        f"(found: {listed(names) or 'nothing'}){interrupted(folder)}"
    )
