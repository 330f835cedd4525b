"""The format in which bilm-tf trains: a TensorFlow checkpoint and its `options.json`.

A checkpoint is `model.ckpt-935588.index` and `model.ckpt-935588.data-00000-of-00001` (there may be a `.meta`, which is
not read); a folder of them may have a text file `checkpoint` that names the latest. Unlike its dump in HDF5 it holds
the output layer of training, and the optimizer's accumulators, which are left alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from ..bilm.model import BiLM
from ..bilm.softmax import FullSoftmax
from ..errors import WeightsError
from .build import build, read_options
from .files import as_path, clear_errors, exists, read_text
from .folders import INDEX_SUFFIX, checkpoints_in
from .layout import OutputShape, checked_values, listed
from .tensor_bundle import TensorBundle, read_bundle

_SCOPE = "lm/"
_SOFTMAX = f"{_SCOPE}softmax/"
_BIAS = f"{_SOFTMAX}b"
LATEST_NAME = "checkpoint"
_LATEST = re.compile(r'^\s*model_checkpoint_path:\s*"(?P<path>[^"\n]*)"', re.MULTILINE)
_LARGEST_LATEST = 2**20  # bytes
_PART = re.compile(r"(?P<prefix>.+)\.(index|meta|data-\d{5}-of-\d{5})")


def load_tf_checkpoint(options_path: Path | str, prefix: Path | str) -> BiLM:
    """Load the biLM of a checkpoint of bilm-tf's training.

    prefix: the path of its files up to ".index".
    Weights that read words need the words of their table's rows in a vocabulary beside them: see `find_vocabulary`.
    Raises WeightsError for anything missing, broken or inconsistent, and for a forward-only language model.
    """
    options_path, prefix = as_path(options_path), as_path(prefix)
    options = read_options(options_path)
    weights = _weights(read_bundle(prefix))
    return build(options, options_path, weights, name_of=variable_name, vocabulary_folder=prefix.parent)


def load_tf_softmax(prefix: Path | str) -> FullSoftmax:
    """The output layer of a checkpoint. Where bilm-tf shared it with the word table, that table is its W.

    Raises WeightsError for anything missing, broken or inconsistent.
    """
    bundle = read_bundle(as_path(prefix))
    matrix, *shape = _softmax_matrix(bundle)
    bundle.check([matrix, _BIAS])
    with torch.inference_mode(False), torch.device("cpu"):
        softmax = FullSoftmax(*shape).float()
    for name, place in ((matrix, softmax.W.detach()), (_BIAS, softmax.b.detach())):
        bundle.read_into(name, place)
        checked_values(place, name, bundle.where)
    return softmax


def tf_softmax_shape(prefix: Path) -> OutputShape | None:
    """Sizes of the output layer of a checkpoint, None if it has none; only the index is read.

    Raises WeightsError if the index is broken, or the layer's parts do not fit each other.
    """
    bundle = read_bundle(prefix)
    if not any(name.startswith(_SOFTMAX) for name in bundle.entries):
        return None
    _, n_words, width = _softmax_matrix(bundle)
    return OutputShape(n_words, width, n_words * (width + 1))


def _softmax_matrix(bundle: TensorBundle) -> tuple[str, int, int]:
    """The variable that is the W of the output layer, and its shape. WeightsError if there is no such layer."""
    shapes = bundle.shapes
    matrix = f"{_SOFTMAX}W" if f"{_SOFTMAX}W" in shapes else f"{_SCOPE}embedding"
    shape = shapes.get(matrix, ())
    if len(shape) != 2 or 0 in shape or shapes.get(_BIAS) != shape[:1]:
        raise WeightsError(
            f"{bundle.where}: holds no softmax: its variables '{_SOFTMAX}W' and '{_BIAS}' have the shapes "
            f"{shapes.get(f'{_SOFTMAX}W')} and {shapes.get(_BIAS)}"
        )
    return matrix, shape[0], shape[1]


def checkpoint_of(path: Path) -> Path | None:
    """The checkpoint, by its prefix, that a path names: the prefix itself or one of its files. None for other paths."""
    match = _PART.fullmatch(path.name)
    if match:
        return path.with_name(match["prefix"])
    return path if has_index(path) else None


def has_index(prefix: Path) -> bool:
    """Whether a path is the prefix of a checkpoint's files."""
    return bool(prefix.name) and exists(prefix.with_name(prefix.name + INDEX_SUFFIX))


def latest_checkpoint(folder: Path) -> Path | None:
    """The prefix of the checkpoint in a folder: that which the file `checkpoint` names, or else the only one.

    None if there is no checkpoint. Raises WeightsError if there are several, and nothing says which one is meant.
    """
    found = checkpoints_in(folder)
    latest = _latest_name(folder / LATEST_NAME)
    if latest in found:
        return folder / latest
    if len(found) > 1:
        raise WeightsError(
            f"{folder}: has several checkpoints ({listed(found)}), and no file '{LATEST_NAME}' that names one of "
            "them: give the path of one, up to '.index'"
        )
    return folder / found[0] if found else None


def variable_name(dataset: str) -> str:
    """The TensorFlow variable that bilm-tf dumps into an HDF5 dataset of this name."""
    for there, here in (
        ("/RNN/", "/rnn/"),
        ("/MultiRNNCell/", "/multi_rnn_cell/"),
        ("/Cell", "/cell_"),
        ("/LSTMCell/", "/lstm_cell/"),
        ("/W_P_0", "/projection/kernel"),
        ("/W_0", "/kernel"),
        ("/B", "/bias"),
    ):
        dataset = dataset.replace(there, here)
    return _SCOPE + dataset


def _weights(bundle: TensorBundle) -> TensorBundle:
    """Of a checkpoint only what is a biLM's weights; one-layer names brought to those of several layers."""
    entries = {}
    for name, entry in bundle.entries.items():
        # Accumulators stand under the name of their variable; single numbers are counters.
        accumulates = name.rpartition("/")[0] in bundle.entries
        if name.startswith(_SCOPE) and not name.startswith(_SOFTMAX) and entry.shape and not accumulates:
            # TensorFlow leaves multi_rnn_cell/cell_0 out of the names of a single layer.
            entries[name.replace("/rnn/lstm_cell/", "/rnn/multi_rnn_cell/cell_0/lstm_cell/")] = entry
    return TensorBundle(bundle.prefix, bundle.n_shards, entries)


def _latest_name(path: Path) -> str | None:
    """The last part of the path that a file `checkpoint` names; the folders are those of the author's machine."""
    try:
        with clear_errors(path, "cannot be read"):
            if path.stat().st_size > _LARGEST_LATEST:
                return None
        match = _LATEST.search(read_text(path))
    except WeightsError:
        return None  # it is not needed where there is one checkpoint
    return re.split(r"[/\\]", match["path"])[-1] if match else None
