"""Our own format: safetensors that hold a biLM whole.

A folder has `model.safetensors`, whose header carries the config, the words of a word table and the characters of a
table of code points, and for readers `config.json` (the structure of options.json) and, where there are such tables,
`vocabulary.json` and `characters.json`. The header is what counts:
`model.safetensors` alone is a model, so a save that is killed between two files leaves nothing that could be read as
a mixture. The same bytes carry a model inside a spaCy pipeline. Nothing here is pickled.

The output layer of pretraining is a file of its own, `softmax.safetensors`, which no loader of a biLM reads.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from .. import __version__
from ..bilm.adaptive import AdaptiveSoftmax
from ..bilm.config import BiLMConfig
from ..bilm.continuous import ContinuousOutput
from ..bilm.model import BiLM
from ..bilm.output_layer import OutputLayer
from ..bilm.softmax import FullSoftmax
from ..errors import ElmoError, WeightsError, shown
from .card import CARD_NAMES, is_card
from .files import (
    HDF5_MAGIC,
    LARGEST_OPTIONS,
    LARGEST_TEXT,
    ZIP_MAGIC,
    Content,
    as_path,
    check_weights_file,
    exists,
    is_folder,
    json_bytes,
    made_folder,
    read_json,
    write_files,
)
from .folders import (
    CHARACTERS_NAME,
    CONFIG_NAME,
    MODEL_NAME,
    SOFTMAX_NAME,
    VOCABULARY_NAME,
    refuse_beside_hdf5,
    refuse_beside_many_langs,
)
from .foreign import CONFIG_KEY, OUTPUT_KEY, refuse_foreign
from .layout import OutputShape, check_shapes, checked_values, layout, start_state_shapes
from .vocabulary import SOFTMAX_VOCABULARY_NAME, word_lines

# Of stored values: in torch, and in the header of a file.
Dtype = Literal["float32", "float16"]
_DTYPES = {"float32": (torch.float32, "F32"), "float16": (torch.float16, "F16")}

_VOCABULARY_KEY = "spacy_elmo_vocabulary"
_CHARACTERS_KEY = "spacy_elmo_characters"
_VERSION_KEY = "spacy_elmo_version"
_OUTPUT_LAYERS: dict[str, Callable[..., Any]] = {
    layer.kind: layer for layer in (FullSoftmax, AdaptiveSoftmax, ContinuousOutput)
}


class StoredOutput(NamedTuple):
    """The output layer of pretraining, and its words.

    words: that it predicts, by row. None where they are not known: then no perplexity can be measured.
    why: they are not known; empty if they are.
    folder: where they were looked for and not found, or do not fit; else None.
    """

    softmax: OutputLayer
    words: list[str] | None
    why: str = ""
    folder: Path | None = None


def save_native(
    bilm: BiLM,
    path: Path | str,
    output: StoredOutput | None = None,
    card: Mapping[str, bytes] | None = None,
    *,
    dtype: Dtype = "float32",
) -> None:
    """Save a biLM as a folder, made if it is not there, in place of the one of this format that it may hold.

    output: the output layer of its pretraining, to lie beside it. None: one that lies there stays. The vocabulary of
        another one goes; one that does not fit, in the folder that `output` was read from, stays.
    card: what `read_card` found beside it, in place of another model's. None: what lies there stays.
    dtype: of the biLM's stored values, each rounded to the nearest; those of an output layer are float32 always.
    Raises WeightsError if a weight is NaN, infinite or too large for the dtype, the folder holds a model of another
    format, or it cannot be written (`path` is a file, the disk is full, ...); then what was there stays. ElmoError for
    another dtype.
    """
    if dtype not in _DTYPES:
        raise ElmoError(f"dtype is one of {', '.join(_DTYPES)}, not {shown(dtype)}")
    folder = made_folder(path)
    refuse_beside_hdf5(folder)
    refuse_beside_many_langs(folder)
    tensors = _finite_tensors(bilm, str(folder), dtype)
    contents: dict[Path, Content] = {
        folder / MODEL_NAME: partial(_write, tensors=tensors, metadata=_metadata(bilm), dtype=dtype),
        folder / CONFIG_NAME: json_bytes(bilm.config.to_options()),
        # None: remove that of another model that was saved here.
        folder / VOCABULARY_NAME: None if bilm.vocabulary is None else json_bytes(bilm.vocabulary),
        folder / CHARACTERS_NAME: None if bilm.characters is None else json_bytes(bilm.characters),
    }
    if output is not None:
        path = folder / SOFTMAX_VOCABULARY_NAME
        if output.words is not None:
            contents[path] = word_lines(output.words, path)
        elif not _is_same_folder(output.folder, folder):
            contents[path] = None
        contents[folder / SOFTMAX_NAME] = _softmax_content(output.softmax)
    if card is not None:
        names = CARD_NAMES if is_card(folder) else card  # else they are anybody's, and stay
        contents.update({folder / name: card.get(name) for name in names})
    refuse_foreign(contents)
    write_files(contents)


def _is_same_folder(source: Path | None, target: Path) -> bool:
    return source is not None and is_folder(source) and os.path.samefile(source, target)


def load_native(path: Path | str) -> BiLM:
    """Load a biLM from a folder that `save_native` wrote, or from its `model.safetensors`.

    `config.json`, `vocabulary.json` and `characters.json` are needed only beside a file whose header lacks them
    (weights renamed by other tools). A `config.json` that disagrees with the header is an error.
    Raises WeightsError for anything missing, broken or inconsistent.
    """
    path = as_path(path)
    file = path / MODEL_NAME if is_folder(path) else path
    config_path = file.with_name(CONFIG_NAME)
    with _opened(file) as stored:
        beside = read_json(config_path) if exists(config_path) else None
        options = stored.options if stored.options is not None else beside
        if options is None:
            raise WeightsError(f"{file}: its header has no config, and there is no {CONFIG_NAME} beside it")
        config = config_from(options, config_path if stored.options is None else file)
        if beside is not None and config_from(beside, config_path) != config:
            raise WeightsError(
                f"{config_path}: does not agree with the config in the header of {file.name}: it was edited, or a "
                f"save was interrupted. Delete {CONFIG_NAME} to load the weights as they were saved"
            )
        check_n_characters(beside or options, stored.shapes.get("token_encoder.char_embed"), str(config_path))
        tables = {}
        for name, size in ((VOCABULARY_NAME, config.n_words), (CHARACTERS_NAME, config.n_characters)):
            tables[name] = stored.tables[name]
            if tables[name] is None and size is not None and exists(file.with_name(name)):
                tables[name] = read_json(file.with_name(name), LARGEST_TEXT)
        return _build(config, tables, stored, str(file))


def bilm_to_bytes(bilm: BiLM) -> bytes:
    """A biLM as safetensors, config and words included. The same weights give the same bytes: in float16 where that
    holds every value as it is (of weights that were stored so), else in float32.

    Raises WeightsError if a weight is NaN or infinite.
    """
    buffer = io.BytesIO()
    tensors = _finite_tensors(bilm, "the biLM")
    exact = all(torch.equal(tensor.half().to(tensor.dtype), tensor) for tensor in tensors.values())
    _write(buffer, tensors, _metadata(bilm), "float16" if exact else "float32")
    return buffer.getvalue()


def bilm_from_bytes(data: bytes) -> BiLM:
    """The biLM of `bilm_to_bytes`. Raises WeightsError for anything missing, broken or inconsistent."""
    where = "the bytes of a biLM"
    try:
        tensors = safetensors.torch.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        stored = _stored(
            header.get("__metadata__"),
            {name: tuple(tensor.shape) for name, tensor in tensors.items()},
            tensors.__getitem__,
            where,
        )
    except (SafetensorError, ValueError, KeyError, RuntimeError, AttributeError, TypeError) as error:
        if isinstance(error, ElmoError):
            raise
        raise WeightsError(f"{where}: not a whole safetensors file: {error}") from error
    if stored.options is None:
        raise WeightsError(f"{where}: the header has no config: these are not a biLM's")
    return _build(config_from(stored.options, where), stored.tables, stored, where)


def save_softmax(softmax: OutputLayer, path: Path | str) -> None:
    """Save the output layer of pretraining. Its kind and settings are in the header.

    path: a file, or a folder: then `softmax.safetensors` in it.
    Raises WeightsError if a weight is NaN or infinite, or the file cannot be written; then an older one stays.
    """
    path = as_path(path)
    file = path / SOFTMAX_NAME if is_folder(path) else path
    contents = {file: _softmax_content(softmax)}
    refuse_foreign(contents)
    write_files(contents)


def _softmax_content(softmax: OutputLayer) -> Content:
    tensors = {name: tensor.detach() for name, tensor in softmax.stored().items()}
    for name, tensor in tensors.items():
        checked_values(tensor, name, "the softmax")
    output = json.dumps({"kind": softmax.kind, "settings": softmax.settings()}, sort_keys=True)
    return partial(_write, tensors=tensors, metadata={_VERSION_KEY: __version__, OUTPUT_KEY: output})


def load_native_softmax(path: Path | str) -> OutputLayer:
    """The output layer of pretraining, from a file or the folder that has it: of the class that was saved, but a
    sampled softmax comes back as a full one, and a continuous output without its vectors.

    Raises WeightsError for anything missing, broken or inconsistent.
    """
    path = as_path(path)
    file = path / SOFTMAX_NAME if is_folder(path) else path
    with _opened(file) as stored:
        softmax = _empty_output(stored, file)
        # As a biLM: able to learn, whatever torch makes for the caller now.
        with torch.inference_mode(False), torch.no_grad():
            softmax.to_empty(device="cpu")
            for name, place in softmax.stored().items():
                place.copy_(checked_values(stored.read(name), name, str(file)))
    return softmax


def native_softmax_shape(file: Path) -> OutputShape:
    """Sizes of the output layer in a file; its values are not read. Raises WeightsError if it has none."""
    with _opened(file) as stored:
        softmax = _empty_output(stored, file)
        n_parameters = sum(tensor.numel() for tensor in softmax.stored().values())
        return OutputShape(softmax.n_words, softmax.width, n_parameters)


def _empty_output(stored: _Stored, file: Path) -> OutputLayer:
    """The output layer that a file describes, without values: shapes are compared before anything is allocated."""
    output = stored.output
    if output is None:  # of the time when there was one kind
        shape = stored.shapes.get("W", ())
        if len(shape) != 2 or 0 in shape:
            raise WeightsError(f"{file}: is not a softmax layer: no matrix 'W' (found: {sorted(stored.shapes)})")
        output = {"kind": FullSoftmax.kind, "settings": {"n_words": shape[0], "width": shape[1]}}
    try:
        with torch.inference_mode(False), torch.device("meta"):
            softmax: OutputLayer = _OUTPUT_LAYERS[output["kind"]](**output["settings"]).float()
        # A softmax that says that its matrix is another's has none; saved ones never say so.
        shapes = {name: tuple(tensor.shape) for name, tensor in softmax.stored().items()}
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError) as error:
        raise WeightsError(f"{file}: '{OUTPUT_KEY}' in its header is no output layer of ours: {error!r}") from error
    check_shapes(iter(shapes.items()), stored.shapes, str(file), "tensor")
    return softmax


def config_from(options: Any, where: Path | str) -> BiLMConfig:
    """The config of options that were read from `where`. WeightsError if they are wrong."""
    try:
        return BiLMConfig.from_options(options)
    except ElmoError as error:
        raise WeightsError(f"{where}: {error}") from error


def check_n_characters(options: Any, shape: tuple[int, ...] | None, where: str) -> None:
    """WeightsError if the options ask for another table of characters than ELMo's."""
    char_cnn = options.get("char_cnn")
    n_characters = char_cnn.get("n_characters", 262) if isinstance(char_cnn, Mapping) else 262
    if n_characters not in (261, 262):
        raise WeightsError(
            f"{where}: char_cnn.n_characters is {n_characters!r:.100}, and the weights' char_embed has shape {shape}; "
            "bytes and marks are 261 rows: only 261 (training) and 262 (inference) are possible"
        )


class _Stored(NamedTuple):
    """What a safetensors file holds, its tensors not read yet."""

    options: Any  # parsed JSON of the config, None if the header has none
    tables: dict[str, Any]  # the same of what stands in the rows of each table, by the name of its file
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], torch.Tensor]
    output: Any  # the same of the kind and settings of an output layer


@contextmanager
def _opened(file: Path) -> Iterator[_Stored]:
    """Open a safetensors file; only its header is read."""
    head = check_weights_file(file)
    for magic, kind in ((HDF5_MAGIC, "an HDF5 file"), (ZIP_MAGIC, "a ZIP archive or a pickled PyTorch file")):
        if head.startswith(magic):
            raise WeightsError(f"{file}: is {kind}, not safetensors")
    try:
        # On the CPU: `BiLM.to` moves a model, loading never does.
        with safe_open(file, framework="pt", device="cpu") as opened:
            names = opened.keys()
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in names}

            def read(name: str) -> torch.Tensor:
                try:
                    tensor: torch.Tensor = opened.get_tensor(name)
                # Of types that torch, or the library, knows half: F4, ...
                except (NotImplementedError, AttributeError, TypeError, KeyError, ValueError) as error:
                    kind = opened.get_slice(name).get_dtype()
                    raise WeightsError(f"{file}: '{name}' holds {kind}, which cannot be read: {error}") from error
                return tensor

            yield _stored(opened.metadata(), shapes, read, str(file))
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{file}: not a whole safetensors file (cut short, or damaged): {error}") from error


def _stored(
    metadata: Mapping[str, str] | None,
    shapes: dict[str, tuple[int, ...]],
    read: Callable[[str], torch.Tensor],
    where: str,
) -> _Stored:
    found: dict[str, Any] = {}
    for key in (CONFIG_KEY, _VOCABULARY_KEY, _CHARACTERS_KEY, OUTPUT_KEY):
        text = (metadata or {}).get(key)
        if text is not None and len(text) > LARGEST_OPTIONS and key in (CONFIG_KEY, OUTPUT_KEY):
            raise WeightsError(f"{where}: '{key}' in its header has more than {LARGEST_OPTIONS} characters")
        try:
            found[key] = None if text is None else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WeightsError(f"{where}: '{key}' in its header is not valid JSON: {error}") from error
    tables = {VOCABULARY_NAME: found[_VOCABULARY_KEY], CHARACTERS_NAME: found[_CHARACTERS_KEY]}
    return _Stored(found[CONFIG_KEY], tables, shapes, read, found[OUTPUT_KEY])


def _build(config: BiLMConfig, tables: Mapping[str, Any], stored: _Stored, where: str) -> BiLM:
    """A biLM with the stored values. All names and shapes are compared before anything is allocated."""
    expected = chain(((entry.parameter, entry.shape) for entry in layout(config)), start_state_shapes(config).items())
    check_shapes(expected, stored.shapes, where, "tensor")
    bilm = new_bilm(config, tables[VOCABULARY_NAME], where, characters=tables[CHARACTERS_NAME])
    fill(bilm, ((name, stored.read(name)) for name in stored.shapes), where)
    return bilm


def new_bilm(config: BiLMConfig, vocabulary: Any, where: str, *, characters: Any = None) -> BiLM:
    """A biLM of zeros. WeightsError if a table lacks its words or characters, or has another number of them."""
    if config.n_words is None:
        vocabulary = None
    elif vocabulary is None:
        raise WeightsError(
            f"{where}: these weights read words from a table of {config.n_words} rows and have no vocabulary: put the "
            f"words, in the table's order, into {VOCABULARY_NAME} or vocabulary.txt (one a line) beside them"
        )
    if config.n_characters is None:
        characters = None
    for table, name in ((vocabulary, "vocabulary"), (characters, "table of characters")):
        if table is not None and not (isinstance(table, list) and all(isinstance(text, str) for text in table)):
            raise WeightsError(f"{where}: a {name} is a list of strings")
    if vocabulary is not None and len(vocabulary) != config.n_words:
        raise WeightsError(
            f"{where}: the vocabulary has {len(vocabulary)} words, but the word table {config.n_words} rows"
        )
    try:
        # Float32 on the CPU, and able to learn, whatever torch makes for the caller now.
        with torch.inference_mode(False), torch.device("cpu"):
            return BiLM(config, vocabulary=vocabulary, characters=characters).float()
    except ElmoError as error:
        raise WeightsError(f"{where}: {error}") from error


def fill(bilm: BiLM, tensors: Iterator[tuple[str, torch.Tensor]], where: str) -> None:
    """Copy stored values into the biLM, one tensor after the other, so that only one is held twice."""
    places = bilm.state_dict()
    for name, tensor in tensors:
        places[name].copy_(checked_values(tensor, name, where))
    bilm.invalidate()


def _finite_tensors(bilm: BiLM, where: str, dtype: Dtype = "float32") -> dict[str, torch.Tensor]:
    """All weights and the start state, by name. WeightsError for a value that no loader would take back."""
    tensors = {name: tensor.detach() for name, tensor in bilm.state_dict().items()}
    for name, tensor in tensors.items():
        checked_values(tensor, name, where)
        if tensor.numel() and not torch.isfinite(tensor.abs().max().to(_DTYPES[dtype][0])):
            raise WeightsError(
                f"{where}: '{name}' has a value of {tensor.abs().max():g}, which is too large for {dtype}: save float32"
            )
    return tensors


def _metadata(bilm: BiLM) -> dict[str, str]:
    metadata = {CONFIG_KEY: json.dumps(bilm.config.to_options()), _VERSION_KEY: __version__}
    if bilm.vocabulary is not None:
        metadata[_VOCABULARY_KEY] = json.dumps(bilm.vocabulary)
    if bilm.characters is not None:
        metadata[_CHARACTERS_KEY] = json.dumps(bilm.characters)
    return metadata


def _write(
    file: IO[bytes], tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], dtype: Dtype = "float32"
) -> None:
    """Write safetensors, one tensor at a time.

    The library's own writer holds a second copy of everything and puts the metadata in another order every time;
    here equal models are equal bytes. Format: length of the header (8 bytes, little-endian), the header in JSON padded
    with spaces to whole 8 bytes, the values.
    """
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    kind, name_of_kind = _DTYPES[dtype]
    end = 0
    for name, tensor in sorted(tensors.items()):
        start, end = end, end + kind.itemsize * tensor.numel()
        header[name] = {"dtype": name_of_kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode("ascii")
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little"))
    file.write(encoded)
    for _, tensor in sorted(tensors.items()):
        values = tensor.to(device="cpu", dtype=kind).contiguous().numpy()
        file.write((values if sys.byteorder == "little" else values.byteswap()).data)
