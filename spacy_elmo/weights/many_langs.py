"""The format of ELMoForManyLangs: two pickled state dicts, two dictionaries, and a config.

A folder holds
    config.json         the arguments of its training; of these only `config_path` counts,
    <the file of that>  the sizes of the model; the path is one of the author's machine, its last part is looked for,
    char.dic, word.dic  `token<TAB>row` a line, of the table of code points and of that of words,
    token_embedder.pkl, encoder.pkl   tensors, written with torch.save.

Its LSTMs are bilm-tf's with their gates in another order, so loading turns them over and the rest of the package sees
no difference. How words become token vectors is another matter: see `bilm/characters.py` and `bilm/token_encoder.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
from torch import Tensor

from ..bilm.config import PUBLISHED_FILTERS, BiLMConfig
from ..bilm.model import DIRECTIONS, BiLM
from ..errors import ElmoError, WeightsError
from .files import as_path, exists, names_in, read_json, read_text
from .folders import CONFIG_NAME, MANY_LANGS_NAMES
from .layout import check_shapes, checked_values, listed
from .native import fill, new_bilm
from .pickles import read_state_dict

TOKEN_EMBEDDER_NAME, ENCODER_NAME = MANY_LANGS_NAMES
CHARACTERS_NAME, WORDS_NAME = "char.dic", "word.dic"

# The published folders name a file that came with the program instead of holding it.
_PUBLISHED: dict[str, Any] = {
    "encoder": {
        "name": "elmo",
        "projection_dim": 512,
        "cell_clip": 3,
        "proj_clip": 3,
        "dim": 4096,
        "n_layers": 2,
    },
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": PUBLISHED_FILTERS,
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
}
# Two names of one content.
_PUBLISHED_NAMES = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def is_many_langs(folder: Path) -> bool:
    """Whether a model of ELMoForManyLangs lies in the folder, or a part of one."""
    return any(name in MANY_LANGS_NAMES for name in names_in(folder))


def load_many_langs(folder: Path | str) -> BiLM:
    """Load a folder of ELMoForManyLangs. What the model does not use (`classifier.pkl`, a dictionary) may be missing.

    Raises WeightsError for anything missing, broken or inconsistent, and for a model with the encoder "lstm", which
    has no layers to give.
    """
    folder = as_path(folder)
    where, sizes = _sizes(folder)
    encoder = _section(sizes, "encoder", "elmo", where)
    embedder = _section(sizes, "token_embedder", "cnn", where)
    characters = read_dictionary(folder / CHARACTERS_NAME) if embedder["char_dim"] else None
    vocabulary = read_dictionary(folder / WORDS_NAME) if embedder["word_dim"] else None
    config = _config(encoder, embedder, characters, vocabulary, where)

    embedder_file, encoder_file = folder / TOKEN_EMBEDDER_NAME, folder / ENCODER_NAME
    embedder_tensors = read_state_dict(embedder_file)
    for name, tokens, dictionary in (
        ("char_emb_layer.embedding.weight", characters, CHARACTERS_NAME),
        ("word_emb_layer.embedding.weight", vocabulary, WORDS_NAME),
    ):
        _check_rows(embedder_tensors.get(name), name, tokens, embedder_file, dictionary)
    check_shapes(_embedder_shapes(config), _shapes(embedder_tensors), str(embedder_file), "tensor")
    encoder_tensors = read_state_dict(encoder_file)
    check_shapes(_encoder_shapes(config), _shapes(encoder_tensors), str(encoder_file), "tensor")

    bilm = new_bilm(config, vocabulary, str(folder), characters=characters)
    fill(
        bilm,
        chain(
            _embedder_weights(_Checked(embedder_tensors, embedder_file), config),
            _encoder_weights(_Checked(encoder_tensors, encoder_file), config),
        ),
        str(folder),
    )
    return bilm


def read_dictionary(path: Path) -> list[str]:
    """The tokens of a `.dic` file, in the order of their rows.

    Lines are stripped before they are split; of a token that is nothing but white space the row is left, and it counts
    as U+3000 (as in ELMoForManyLangs). A token may stand there twice then, where that program reads its own file no
    more: here its last row counts.
    Raises WeightsError if the file is missing or broken, or its rows are not 0, 1, 2, ..., each once.
    """
    tokens: dict[int, str] = {}
    lines = read_text(path).removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        *token, row = line.strip().split("\t")
        if len(token) > 1 or not re.fullmatch("[0-9]{1,10}", row):
            raise WeightsError(f"{path}: line {number}, {line!r:.100}, is not a token, a tab and the number of its row")
        if int(row) in tokens:
            raise WeightsError(f"{path}: line {number} gives row {row} to a second token")
        tokens[int(row)] = token[0] if token else "\u3000"
    missing = next((row for row in range(len(tokens)) if row not in tokens), None)
    if missing is not None or not tokens:
        raise WeightsError(f"{path}: no line for row {missing or 0}: lines are missing, or it is no dictionary")
    return [tokens[row] for row in range(len(tokens))]


def _sizes(folder: Path) -> tuple[Path, Any]:
    """The config that `config_path` in config.json names: where it was found, and what it holds."""
    path = folder / CONFIG_NAME
    training = read_json(path)
    named = training.get("config_path") if isinstance(training, Mapping) else None
    if not isinstance(named, str):
        raise WeightsError(f"{path}: has no 'config_path', which names the file of the model's sizes")
    basename = PureWindowsPath(named).name  # both kinds of slash
    candidates = [basename] if basename not in ("", "..") else []
    if candidates and _stays_inside(named):
        candidates.insert(0, named)
    for candidate in candidates:
        if exists(folder / candidate):
            return folder / candidate, read_json(folder / candidate)
    if basename in _PUBLISHED_NAMES:
        return path, _PUBLISHED
    raise WeightsError(
        f"{path}: its config_path names {named!r:.200}: there is no {basename or 'such file'} in {folder} "
        f"(found: {listed(names_in(folder))}); put it there, it came with the program that trained the weights"
    )


def _stays_inside(path: str) -> bool:
    """Whether a path leads nowhere outside the folder that it is joined to, on any system."""
    windows = PureWindowsPath(path)
    return not PurePosixPath(path).is_absolute() and not windows.anchor and ".." not in windows.parts


def _section(sizes: Any, name: str, kind: str, where: Path) -> Mapping[str, Any]:
    """A section of the sizes, its name and keys checked."""
    section = sizes.get(name) if isinstance(sizes, Mapping) else None
    if not isinstance(section, Mapping):
        raise WeightsError(f"{where}: has no section '{name}'; it is not a config of ELMoForManyLangs")
    found = section.get("name")
    if not isinstance(found, str) or found.lower() != kind:
        reason = ""
        if name == "encoder" and isinstance(found, str) and found.lower() == "lstm":
            reason = ": it is a plain LSTM with its top layer alone, not an ELMo"
        raise WeightsError(f"{where}: the {name} is {found!r:.100}, and only {kind!r} can be loaded{reason}")
    missing = [key for key in _PUBLISHED[name] if key not in section]
    if name == "token_embedder" and not section.get("char_dim", True):
        missing = [key for key in missing if key not in ("activation", "filters", "n_highway")]
    if missing:
        raise WeightsError(f"{where}: section '{name}' lacks {listed(missing)} (found: {listed(sorted(section))})")
    return section


def _config(
    encoder: Mapping[str, Any],
    embedder: Mapping[str, Any],
    characters: list[str] | None,
    vocabulary: list[str] | None,
    where: Path,
) -> BiLMConfig:
    fields: dict[str, Any] = {
        "lstm_dim": encoder["dim"],
        "projection_dim": encoder["projection_dim"],
        "n_layers": encoder["n_layers"],
        "cell_clip": encoder["cell_clip"],
        "proj_clip": encoder["proj_clip"],
        "filters": None,
        "max_characters_per_token": embedder["max_characters_per_token"],
    }
    if characters is None and vocabulary is None:
        raise WeightsError(f"{where}: word_dim and char_dim are both 0: there is nothing to make token vectors from")
    if characters is not None:
        fields |= {name: embedder[name] for name in ("filters", "activation", "n_highway", "char_dim")}
        fields["n_characters"] = len(characters)
    if vocabulary is not None:
        fields |= {"word_dim": embedder["word_dim"], "n_words": len(vocabulary)}
    try:
        return BiLMConfig(**fields)
    except ElmoError as error:
        raise WeightsError(f"{where}: {error}") from error


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _check_rows(tensor: Tensor | None, name: str, tokens: list[str] | None, file: Path, dictionary: str) -> None:
    if tensor is not None and tokens is not None and tensor.dim() == 2 and len(tensor) != len(tokens):
        raise WeightsError(
            f"{file}: '{name}' has {len(tensor)} rows, but {dictionary} has {len(tokens)} lines: they belong to "
            "different models, or one of them is damaged"
        )


def _embedder_shapes(config: BiLMConfig) -> Shapes:
    """Names and shapes in token_embedder.pkl."""
    if config.word_dim is not None and config.n_words is not None:
        yield "word_emb_layer.embedding.weight", (config.n_words, config.word_dim)
    if config.filters is not None and config.n_characters is not None:
        n_filters = config.n_filters
        yield "char_emb_layer.embedding.weight", (config.n_characters, config.char_dim)
        for i, (width, count) in enumerate(config.filters):
            yield f"convolutions.{i}.weight", (count, config.char_dim, width)
            yield f"convolutions.{i}.bias", (count,)
        for k in range(config.n_highway):
            yield f"highways._layers.{k}.weight", (2 * n_filters, n_filters)
            yield f"highways._layers.{k}.bias", (2 * n_filters,)
    yield "projection.weight", (config.projection_dim, config.n_features)
    yield "projection.bias", (config.projection_dim,)


def _encoder_shapes(config: BiLMConfig) -> Shapes:
    """Names and shapes in encoder.pkl."""
    hidden, width = config.lstm_dim, config.projection_dim
    for direction in DIRECTIONS:
        for layer in range(config.n_layers):
            stem = f"{direction}_layer_{layer}"
            yield f"{stem}.input_linearity.weight", (4 * hidden, width)
            yield f"{stem}.state_linearity.weight", (4 * hidden, width)
            yield f"{stem}.state_linearity.bias", (4 * hidden,)
            yield f"{stem}.state_projection.weight", (width, hidden)


class _Checked:
    """Tensors of a file, each given once, as finite float32: after that its memory is free."""

    def __init__(self, tensors: dict[str, Tensor], file: Path) -> None:
        self.tensors, self.file = tensors, file

    def __call__(self, name: str) -> Tensor:
        return checked_values(self.tensors.pop(name), name, str(self.file))


def _embedder_weights(take: _Checked, config: BiLMConfig) -> Iterator[tuple[str, Tensor]]:
    """Our parameters of the token encoder."""
    prefix = "token_encoder"
    if config.word_dim is not None:
        name = "embedding" if config.filters is None else "word_embed"
        yield f"{prefix}.{name}", take("word_emb_layer.embedding.weight")
    if config.filters is not None:
        yield f"{prefix}.char_embed", take("char_emb_layer.embedding.weight")
        for i in range(len(config.filters)):
            yield f"{prefix}.conv_weights.{i}", take(f"convolutions.{i}.weight").permute(2, 1, 0)
            yield f"{prefix}.conv_biases.{i}", take(f"convolutions.{i}.bias")
        for k in range(config.n_highway):
            # There the gate lets the input through, here what is made of it: sigmoid(-x) = 1 - sigmoid(x).
            transform, gate = take(f"highways._layers.{k}.weight").chunk(2)
            yield f"{prefix}.highways.{k}.W_transform", transform.t()
            yield f"{prefix}.highways.{k}.W_carry", -gate.t()
            transform, gate = take(f"highways._layers.{k}.bias").chunk(2)
            yield f"{prefix}.highways.{k}.b_transform", transform
            yield f"{prefix}.highways.{k}.b_carry", -gate
    yield f"{prefix}.W_proj", take("projection.weight").t()
    yield f"{prefix}.b_proj", take("projection.bias")


def _encoder_weights(take: _Checked, config: BiLMConfig) -> Iterator[tuple[str, Tensor]]:
    """Our parameters of the two stacks."""
    for direction in DIRECTIONS:
        for layer in range(config.n_layers):
            stem, ours = f"{direction}_layer_{layer}", f"{direction}_lstm.layers.{layer}"
            parts = [take(f"{stem}.{part}_linearity.weight") for part in ("input", "state")]
            yield f"{ours}.kernel", torch.cat([_reordered(part.chunk(4)).t() for part in parts])
            i, f, j, o = take(f"{stem}.state_linearity.bias").chunk(4)
            # Here the forget gate's 1 is in the formula.
            yield f"{ours}.bias", _reordered((i, f - 1.0, j, o))
            yield f"{ours}.projection", take(f"{stem}.state_projection.weight").t()


def _reordered(blocks: Iterable[Tensor]) -> Tensor:
    """Gates i, f, j, o -> i, j, f, o, along the first axis."""
    i, f, j, o = blocks
    return torch.cat([i, j, f, o])
