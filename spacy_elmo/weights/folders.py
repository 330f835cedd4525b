"""What lies in a folder of weights: which files of which format, and whether another model may be saved there."""

from __future__ import annotations

from pathlib import Path

from ..errors import WeightsError
from .files import is_folder, is_hidden, is_temporary, names_in, read_json
from .hdf5_file import may_hold_lstm
from .layout import listed

MODEL_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
VOCABULARY_NAME = "vocabulary.json"
CHARACTERS_NAME = "characters.json"
SOFTMAX_NAME = "softmax.safetensors"

OPTIONS_NAME = "options.json"
WEIGHTS_NAME = "weights.hdf5"
TOKEN_EMBEDDINGS_NAME = "elmo_token_embeddings.hdf5"

# What a TensorFlow checkpoint's index is called, after the name of the checkpoint.
INDEX_SUFFIX = ".index"

# ELMoForManyLangs' own; the names of its other files are everybody's.
MANY_LANGS_NAMES = ("token_embedder.pkl", "encoder.pkl")


def options_of(weights: Path) -> Path:
    """The options that belong to a file of weights, or to a checkpoint: the file in its folder whose name says so.

    That is `x_options.json` beside `x_weights.hdf5` (published models), then `options.json`, then the only one.
    Raises WeightsError if there is none, or it cannot be told which one it is.
    """
    folder, found = weights.parent, _options_in(weights.parent)
    stem = _stem(weights.name, "weights")
    partners = [name for name in found if stem and _stem(name, "options") == stem]
    for names in (partners, [name for name in found if name == OPTIONS_NAME], found):
        if len(names) == 1:
            return folder / names[0]
    if not found:
        raise WeightsError(
            f"{weights}: has no {OPTIONS_NAME} beside it: load_bilm(<the options file>, {str(weights)!r})"
            f"{interrupted(folder)}"
        )
    raise WeightsError(
        f"{weights}: has several files of options beside it ({listed(found)}): name one, "
        f"load_bilm(<the options file>, {str(weights)!r})"
    )


def weights_of(folder: Path, options: Path | None = None, *, besides: Path | None = None) -> Path:
    """The HDF5 file of weights in a folder: that of its options, by its name, or the only one (besides another).

    Where several files end like that, those that hold no LSTM do not count: token embeddings, vectors of sentences.
    Raises WeightsError if there is none, or more than one.
    """
    found = [name for name in hdf5_in(folder) if folder / name != besides]
    stem = _stem(options.name, "options") if options else ""
    partners = [name for name in found if stem and _stem(name, "weights") == stem]
    candidates = partners or found
    if len(candidates) > 1:
        candidates = [name for name in candidates if may_hold_lstm(folder / name)]
    if not found:
        other = f" beside {besides.name}" if besides else f", no TensorFlow checkpoint and no {MODEL_NAME}"
        raise WeightsError(f"{folder}: has options, but no .hdf5 file of weights{other}{interrupted(folder)}")
    if not candidates:
        raise WeightsError(f"{folder}: none of its .hdf5 files ({listed(found)}) holds the weights of a biLM")
    if len(candidates) > 1:
        raise WeightsError(
            f"{folder}: has several .hdf5 files ({listed(candidates)}): give the path of one, "
            "or load_bilm(<the options file>, <the .hdf5 file>)"
        )
    return folder / candidates[0]


def has_options(folder: Path) -> bool:
    """Whether options of bilm-tf lie in a folder."""
    return bool(_options_in(folder))


def hdf5_in(folder: Path) -> list[str]:
    """Names of the HDF5 files of a folder, by their suffix."""
    names = [name for name in names_in(folder) if name.endswith((".hdf5", ".h5")) and not is_hidden(name)]
    return [name for name in names if not is_folder(folder / name)]


def checkpoints_in(folder: Path) -> list[str]:
    """Names of the TensorFlow checkpoints of a folder: each is that of its index, without the suffix."""
    names = [name for name in names_in(folder) if name.endswith(INDEX_SUFFIX) and not is_hidden(name)]
    return [name.removesuffix(INDEX_SUFFIX) for name in names]


def interrupted(folder: Path) -> str:
    """What to add to the error of a load if a save into the folder ended half-way; empty if nothing tells of one."""
    without_options = hdf5_in(folder) and not has_options(folder)
    if not without_options and not any(map(is_temporary, names_in(folder))):
        return ""
    return "; a save into this folder may have been interrupted: save the model again"


def refuse_beside_hdf5(folder: Path) -> None:
    """WeightsError if a model of bilm-tf lies in the folder: whoever loads it could not tell which one is meant."""
    weights, options = hdf5_in(folder), _options_in(folder)
    if weights and options:
        raise _occupied(folder, "a model in HDF5", [*options, *weights])
    _refuse_beside_checkpoints(folder)


def refuse_beside_others(folder: Path) -> None:
    """WeightsError if a model that saving in HDF5 would not replace lies in the folder: ours, or one of other names."""
    if MODEL_NAME in names_in(folder):
        raise _occupied(folder, "a model in spacy-elmo's own format", [MODEL_NAME])
    ours = (OPTIONS_NAME, WEIGHTS_NAME, TOKEN_EMBEDDINGS_NAME)
    others = [name for name in [*_options_in(folder), *hdf5_in(folder)] if name not in ours]
    if others:
        raise _occupied(folder, "what may belong to another model in HDF5", others)
    _refuse_beside_checkpoints(folder)  # its options.json would be overwritten


def _refuse_beside_checkpoints(folder: Path) -> None:
    names = names_in(folder)
    found = [name for name in checkpoints_in(folder) if any(other.startswith(f"{name}.data-") for other in names)]
    if found:
        raise _occupied(folder, "a TensorFlow checkpoint", found)


def refuse_beside_output_layer(folder: Path) -> None:
    """WeightsError if an output layer lies in the folder, whose vocabulary would not be that of what is saved there."""
    if SOFTMAX_NAME in names_in(folder):
        raise _occupied(folder, "the output layer of another model", [SOFTMAX_NAME])
    _refuse_beside_checkpoints(folder)


def refuse_beside_many_langs(folder: Path) -> None:
    """WeightsError if a model of ELMoForManyLangs lies in the folder: its config.json would be overwritten."""
    found = [name for name in names_in(folder) if name in MANY_LANGS_NAMES]
    if found:
        raise _occupied(folder, "a model of ELMoForManyLangs", found)


def _occupied(folder: Path, what: str, names: list[str]) -> WeightsError:
    return WeightsError(f"{folder}: holds {what} ({listed(names)}): choose another folder, or remove it first")


def _options_in(folder: Path) -> list[str]:
    """Names of the files of options in a folder: those called so, or else those that read like some."""
    names = [name for name in names_in(folder) if not is_hidden(name)]
    ours = CONFIG_NAME if MODEL_NAME in names else ""  # has the same structure
    names = [name for name in names if name.endswith(".json") and name != ours]
    called = [name for name in names if "options" in name.lower()]
    return called or [name for name in names if reads_like_options(folder / name)]


def reads_like_options(path: Path) -> bool:
    """Whether a file holds options of a biLM, as bilm-tf structures them."""
    try:
        options = read_json(path)
    except WeightsError:
        return False
    return isinstance(options, dict) and isinstance(options.get("lstm"), dict)


def _stem(name: str, word: str) -> str:
    """What the name of a published file has before "weights" or "options": the name of the model. Empty without it."""
    before, found, _ = name.lower().partition(word)
    return before if found else ""
