"""What lies at a path: which family of weights, which files of it, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch

from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer
from ..bilm.softmax import FullSoftmax
from ..errors import WeightsError
from .archive import is_archive, unpacked
from .bilm_hdf5 import finish_save, load_bilm_hdf5
from .builtin import builtin_model, is_name, not_offered, same_name
from .files import HDF5_MAGIC, as_path, check_weights_file, exists, is_folder, names_in
from .folders import (
    CONFIG_NAME,
    MANY_LANGS_NAMES,
    MODEL_NAME,
    OPTIONS_NAME,
    SOFTMAX_NAME,
    checkpoints_in,
    has_options,
    hdf5_in,
    interrupted,
    options_of,
    weights_of,
)
from .layout import OutputShape, listed
from .many_langs import is_many_langs, load_many_langs
from .native import StoredOutput, load_native, load_native_softmax, native_softmax_shape
from .tensor_bundle import is_index
from .tf_checkpoint import (
    LATEST_NAME,
    checkpoint_of,
    has_index,
    latest_checkpoint,
    load_tf_checkpoint,
    load_tf_softmax,
    tf_softmax_shape,
)
from .token_embeddings import is_token_embeddings, load_token_embeddings
from .vocabulary import SOFTMAX_VOCABULARY_NAME, SPECIAL_WORDS, bilm_tf_words, check_vocabulary, load_vocabulary

Family = Literal["spacy-elmo", "bilm-tf HDF5", "bilm-tf checkpoint", "bilm-tf token embeddings", "ELMoForManyLangs"]
FAMILIES: tuple[Family, ...] = get_args(Family)

# What `elmo pretrain` calls the model to use, in the folder of a run.
BEST_NAME = "model-best"
_PICKLE_MAGIC = b"\x80"
_MANY_LANGS_SUFFIXES = (".pkl", ".dic", ".json")


@dataclass(frozen=True, kw_only=True)
class Found:
    """Weights that were recognised, and not read yet.

    family: what they are. path: the file or folder that holds them; of an archive, the archive.
    folder: where what belongs to them lies, such as a vocabulary; of an archive, while it is unpacked.
    load: reads the biLM. load_softmax: reads the output layer of its pretraining; None where there is none.
    softmax_shape: sizes of that layer, without its values; None for a checkpoint that was saved without it.
    softmax_words: its words, by row, from the vocabulary in the folder; takes V.
    All raise WeightsError for what is missing, broken or inconsistent.
    """

    family: Family
    path: Path
    folder: Path
    load: Callable[[], BiLM]
    load_softmax: Callable[[], OutputLayer] | None = None
    softmax_shape: Callable[[], OutputShape | None] | None = None
    softmax_words: Callable[[int], list[str]] | None = None


@contextmanager
def recognised(path: Path | str, weights: Path | str | None = None) -> Iterator[Found]:
    """What lies at a path, as `load_bilm` takes it. An archive stays unpacked until the block ends.

    Raises WeightsError, saying what was found, if it is no biLM's weights.
    """
    given = path  # as a path it is no name any more
    path = as_path(path)
    finish_save(path if is_folder(path) else path.parent)
    if weights is not None:
        yield _pair(path, as_path(weights))
    elif not exists(path) and has_index(path):  # the prefix of a checkpoint's files
        yield _checkpoint(options_of(path), path)
    elif not exists(path):
        # A file of that name goes first: what lies in the working folder can be seen there.
        offered = builtin_model(given)
        if offered is None:
            raise WeightsError(f"{given}: no such file or folder{_missing(given)}")
        where = offered.path()  # its errors have the name already
        with offered.named_in_errors(), recognised(where) as found:
            yield found
    elif is_folder(path):
        yield _folder(path)
    elif path.name not in MANY_LANGS_NAMES and is_archive(path):
        with unpacked(path) as folder:
            yield replace(_folder(_model_folder(folder)), path=path)
    else:
        yield _file(path)


def load_bilm(path: Path | str, weights: Path | str | None = None) -> BiLM:
    """Load a biLM, whatever the format.

    path: one of
        a folder of ours (`model.safetensors`, `config.json`), or one of the two files;
        a folder with the options and exactly one `.hdf5` file of bilm-tf or AllenNLP, under any names, or one of the
        two files: it finds the other by its name;
        a folder with the options and a TensorFlow checkpoint of bilm-tf, one of the checkpoint's files, or the path of
        its files up to ".index";
        a file of token embeddings that bilm-tf dumped, beside the weights that made them and their vocabulary: a biLM
        that reads those words;
        a folder of ELMoForManyLangs;
        a `.zip`, `.tar`, `.tar.gz` or `.tar.bz2` with one such folder in it;
        where no file has that name, the name of built-in weights (see `builtin_models`), as a string: "en", or
        "en@package". "en/", "./en" and a `pathlib.Path` are paths, never names.
    weights: the HDF5 file, or the checkpoint, that belongs to the options at `path`.
    Raises WeightsError, saying what was found and what to do, for anything that is not a whole and consistent model.
    """
    # Whatever torch makes for the caller now: what is loaded may be kept, and trained.
    with torch.inference_mode(False), torch.device("cpu"), recognised(path, weights) as found:
        return found.load()


def load_output_layer(found: Found) -> StoredOutput | None:
    """The output layer of weights that were recognised, with its vocabulary where that lies beside.

    The special words come first, as our own format has it: their rows are moved. A vocabulary that does not fit is not
    used: `why` says what is wrong with it.
    RETURNS: None where the weights have no output layer.
    Raises WeightsError for an output layer that is broken or inconsistent.
    """
    if found.load_softmax is None or found.softmax_words is None or found.softmax_shape is None:
        return None
    if found.softmax_shape() is None:
        return None
    softmax = found.load_softmax()
    if softmax.n_words is None:
        return StoredOutput(softmax, None, "it predicts vectors, not words", found.folder)
    try:
        words = found.softmax_words(softmax.n_words)
        if len(words) != softmax.n_words:
            raise WeightsError(f"the vocabulary beside it has {len(words)} words for its {softmax.n_words} rows")
        rows = sorted(range(len(words)), key=lambda row: SPECIAL_WORDS.get(words[row], len(SPECIAL_WORDS)))
        # Only bilm-tf's, which are full ones, come in another order.
        words = [words[row] for row in rows] if isinstance(softmax, FullSoftmax) else words
        check_vocabulary(words, found.folder)
    except WeightsError as error:
        return StoredOutput(softmax, None, str(error), found.folder)
    if isinstance(softmax, FullSoftmax) and rows != list(range(len(rows))):
        with torch.no_grad():
            softmax.W.copy_(softmax.W[rows])
            softmax.b.copy_(softmax.b[rows])
    return StoredOutput(softmax, words)


def load_softmax(path: Path | str) -> OutputLayer:
    """The output layer of pretraining: ours, or that in a TensorFlow checkpoint of bilm-tf.

    path: a file that `save_softmax` wrote, the folder that has it, or a checkpoint, as `load_bilm` takes it.
    Raises WeightsError for anything missing, broken or inconsistent, and for weights that come without one.
    """
    given = path
    path = as_path(path)
    own = path / SOFTMAX_NAME
    if is_folder(path) and (exists(own) or not checkpoints_in(path)):
        return load_native_softmax(own)
    if exists(path) and not (is_folder(path) or path.name == LATEST_NAME or checkpoint_of(path) or is_archive(path)):
        return load_native_softmax(path)
    with recognised(given) as found:
        if found.load_softmax is None:
            raise WeightsError(f"{path}: has no {SOFTMAX_NAME}, and these weights ({found.family}) hold no softmax")
        return found.load_softmax()


def _file(path: Path) -> Found:
    """A file by itself: what belongs to it lies beside it."""
    head = check_weights_file(path)
    folder, checkpoint = path.parent, checkpoint_of(path)
    if head.startswith(HDF5_MAGIC):
        return _hdf5(options_of(path), path)
    if path.suffix == ".safetensors":
        return _native(path)
    if path.suffix in _MANY_LANGS_SUFFIXES and is_many_langs(folder):
        return _many_langs(folder)
    if path.name == CONFIG_NAME and not hdf5_in(folder):
        return _native(path.with_name(MODEL_NAME))
    if path.name == LATEST_NAME:
        checkpoint = latest_checkpoint(folder)
    if checkpoint is not None:
        return _checkpoint(options_of(checkpoint), checkpoint)
    if path.suffix == ".json":
        checkpoint = None if hdf5_in(folder) else latest_checkpoint(folder)
        return _hdf5(path, weights_of(folder, path)) if checkpoint is None else _checkpoint(path, checkpoint)
    if head.startswith(_PICKLE_MAGIC):
        raise WeightsError(f"{path}: is a pickle, which is never read by itself; of ELMoForManyLangs, load the folder")
    if is_index(path):
        raise WeightsError(
            f"{path}: is a table of TensorFlow, but not called '.index': a checkpoint of its first format (before "
            "1.0), which is not read, or a file that was renamed"
        )
    raise WeightsError(
        f"{path}: not weights of a biLM: neither safetensors nor HDF5, nor a TensorFlow checkpoint, nor an archive"
        f"{same_name(path)}"
    )


def _folder(folder: Path) -> Found:
    # Ours first: a model that was also exported to HDF5 lies there twice, and ours holds its start state too. A
    # checkpoint last: it is what the HDF5 file beside it was made from, and three times as large.
    if exists(folder / MODEL_NAME):
        return _native(folder / MODEL_NAME)
    if is_many_langs(folder):
        return _many_langs(folder)
    if hdf5_in(folder):
        weights = weights_of(folder)
        return _hdf5(options_of(weights), weights)
    checkpoint = latest_checkpoint(folder)
    if checkpoint is not None:
        return _checkpoint(options_of(checkpoint), checkpoint)
    if has_options(folder):
        weights_of(folder)  # says what is missing
    names = [name for name in names_in(folder) if name != SOFTMAX_NAME]
    raise WeightsError(
        f"{folder}: holds no biLM: neither {MODEL_NAME} nor {OPTIONS_NAME} with an .hdf5 file or a TensorFlow "
        f"checkpoint, nor ELMoForManyLangs' {listed(list(MANY_LANGS_NAMES))} (found: {listed(names) or 'nothing'})"
        f"{interrupted(folder)}{_meant(folder, names)}{same_name(folder)}"
    )


def _missing(given: Path | str) -> str:
    """What to add to the error about a path where nothing is."""
    path = Path(given)
    if path.name == OPTIONS_NAME and is_folder(path.parent):
        return interrupted(path.parent)
    if is_name(given) and not path.suffix:
        return f", nor built-in weights of that name ({not_offered(path.name)})"
    return ""


def _meant(folder: Path, names: Sequence[str]) -> str:
    """What to add to the error about a folder that is something else of ours; empty if it is not."""
    if BEST_NAME in names:
        return f"; did you mean {folder / BEST_NAME}?"
    if {"config.cfg", "meta.json"} <= set(names):
        return "; it looks like a pipeline of spaCy, whose biLM `python -m spacy elmo convert` takes out"
    return ""


def _model_folder(root: Path) -> Path:
    """The one folder of an unpacked archive that holds a model. WeightsError if there are several."""
    folders = [Path(folder) for folder, _, _ in sorted(os.walk(root))]
    weights = [folder for folder in folders if _holds_weights(folder)]
    # Vectors of sentences may lie in a folder beside; they come without options.
    holding = [folder for folder in weights if not hdf5_in(folder) or has_options(folder)] or weights
    if len(holding) > 1:
        names = [folder.relative_to(root).as_posix() for folder in holding]
        raise WeightsError(f"{root}: holds several models ({listed(names)}): unpack it, and load one")
    # In an archive without a model: what is to be listed in the error lies in the last folder.
    return holding[0] if holding else folders[-1] if len(folders) == 2 else root


def _holds_weights(folder: Path) -> bool:
    return exists(folder / MODEL_NAME) or is_many_langs(folder) or bool(hdf5_in(folder) or checkpoints_in(folder))


def _pair(options: Path, weights: Path) -> Found:
    checkpoint = checkpoint_of(weights)
    return _hdf5(options, weights) if checkpoint is None else _checkpoint(options, checkpoint)


def _native(file: Path) -> Found:
    softmax = file.with_name(SOFTMAX_NAME)
    found = Found(family="spacy-elmo", path=file, folder=file.parent, load=partial(load_native, file))
    if not exists(softmax):
        return found
    return replace(
        found,
        load_softmax=partial(load_native_softmax, softmax),
        softmax_shape=partial(native_softmax_shape, softmax),
        softmax_words=partial(load_vocabulary, file.with_name(SOFTMAX_VOCABULARY_NAME)),
    )


def _hdf5(options: Path, file: Path) -> Found:
    if check_weights_file(file).startswith(HDF5_MAGIC) and is_token_embeddings(file):
        weights = weights_of(options.parent, options, besides=file)
        load = partial(load_token_embeddings, options, weights, file)
        return Found(family="bilm-tf token embeddings", path=file, folder=file.parent, load=load)
    return Found(family="bilm-tf HDF5", path=file, folder=file.parent, load=partial(load_bilm_hdf5, options, file))


def _checkpoint(options: Path, prefix: Path) -> Found:
    return Found(
        family="bilm-tf checkpoint",
        path=prefix,
        folder=prefix.parent,
        load=partial(load_tf_checkpoint, options, prefix),
        load_softmax=partial(load_tf_softmax, prefix),
        softmax_shape=partial(tf_softmax_shape, prefix),
        softmax_words=partial(bilm_tf_words, prefix.parent),
    )


def _many_langs(folder: Path) -> Found:
    return Found(family="ELMoForManyLangs", path=folder, folder=folder, load=partial(load_many_langs, folder))
