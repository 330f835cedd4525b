"""What lies in a folder of weights: which files of which format, and whether another model may be saved there."""

from __future__ import annotations

from pathlib import Path

from ..errors import WeightsError
from .files import is_folder, is_temporary, names_in
from .layout import listed

MODEL_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
VOCABULARY_NAME = "vocabulary.json"
SOFTMAX_NAME = "softmax.safetensors"

OPTIONS_NAME = "options.json"
WEIGHTS_NAME = "weights.hdf5"


def options_in(folder: Path) -> Path | None:
    """The options of a folder: `options.json`, or the only file whose name ends like that (published models)."""
    found = _options_in(folder)
    if OPTIONS_NAME in found:
        return folder / OPTIONS_NAME
    return folder / found[0] if len(found) == 1 else None


def only_hdf5(folder: Path) -> Path:
    """The one .hdf5 file of a folder. WeightsError if there is none, or more than one."""
    found = _hdf5_in(folder)
    if not found:
        raise WeightsError(f"{folder}: has options, but no .hdf5 file of weights{interrupted(folder)}")
    if len(found) > 1:
        raise WeightsError(
            f"{folder}: has several .hdf5 files ({listed(found)}): name the weights, "
            "load_bilm(<the options file>, <the .hdf5 file>)"
        )
    return folder / found[0]


def interrupted(folder: Path) -> str:
    """What to add to the error of a load if a save into the folder ended half-way; empty if nothing tells of one."""
    without_options = _hdf5_in(folder) and not _options_in(folder)
    if not without_options and not any(map(is_temporary, names_in(folder))):
        return ""
    return "; a save into this folder may have been interrupted: save the model again"


def refuse_beside_hdf5(folder: Path) -> None:
    """WeightsError if a model in HDF5 lies in the folder: whoever loads it could not tell which one is meant."""
    weights, options = _hdf5_in(folder), _options_in(folder)
    if weights and options:
        raise _occupied(folder, "a model in HDF5", [*options, *weights])


def refuse_beside_others(folder: Path) -> None:
    """WeightsError if a model that saving in HDF5 would not replace lies in the folder: ours, or one of other names."""
    if MODEL_NAME in names_in(folder):
        raise _occupied(folder, "a model in spacy-elmo's own format", [MODEL_NAME])
    others = [name for name in [*_options_in(folder), *_hdf5_in(folder)] if name not in (OPTIONS_NAME, WEIGHTS_NAME)]
    if others:
        raise _occupied(folder, "what may belong to another model in HDF5", others)


def _occupied(folder: Path, what: str, names: list[str]) -> WeightsError:
    return WeightsError(f"{folder}: holds {what} ({listed(names)}): choose another folder, or remove it first")


def _options_in(folder: Path) -> list[str]:
    return [name for name in names_in(folder) if name.endswith(OPTIONS_NAME)]


def _hdf5_in(folder: Path) -> list[str]:
    return [name for name in names_in(folder) if name.endswith((".hdf5", ".h5")) and not is_folder(folder / name)]
