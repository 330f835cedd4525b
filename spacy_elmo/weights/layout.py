"""Which tensors a config asks for: their names here, their names in a bilm-tf HDF5 file, their shapes.

Both name the same values in the same orientation, so that converting is renaming. Where that format has no place for a
tensor (those of ELMoForManyLangs' token encoder), its name there is ours: it will not be found in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch

from ..bilm.characters import N_CHARACTERS
from ..bilm.config import BiLMConfig
from ..bilm.model import DIRECTIONS
from ..errors import WeightsError

# Of smaller ones torch knows half: some cannot even be converted.
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# How many names an error lists before it says "and more".
_LISTED = 5


class Entry(NamedTuple):
    """One tensor: its parameter name, its dataset in an HDF5 file, its shape, its shape in that dataset."""

    parameter: str
    dataset: str
    shape: tuple[int, ...]
    dataset_shape: tuple[int, ...]


def layout(config: BiLMConfig) -> Iterator[Entry]:
    """The weights of a biLM, in the order of the network. Lazy: a broken file may claim a billion layers."""

    def entry(parameter: str, dataset: str, *shape: int, lead: tuple[int, ...] = ()) -> Entry:
        return Entry(parameter, dataset, shape, lead + shape)

    hidden, width = config.lstm_dim, config.projection_dim
    if config.filters is None:
        assert config.n_words is not None  # BiLMConfig has checked it
        yield entry("token_encoder.embedding", "embedding", config.n_words, config.word_dim or width)
    else:
        n_filters = config.n_filters
        if config.n_words is not None and config.word_dim is not None:
            name = "token_encoder.word_embed"
            yield entry(name, name, config.n_words, config.word_dim)
        yield entry("token_encoder.char_embed", "char_embed", config.n_characters or N_CHARACTERS, config.char_dim)
        for i, (size, count) in enumerate(config.filters):
            yield entry(
                f"token_encoder.conv_weights.{i}", f"CNN/W_cnn_{i}", size, config.char_dim, count, lead=(1,)
            )  # bilm-tf convolves an image of height 1
            yield entry(f"token_encoder.conv_biases.{i}", f"CNN/b_cnn_{i}", count)
        for k in range(config.n_highway):
            for name in ("W_carry", "W_transform"):
                yield entry(f"token_encoder.highways.{k}.{name}", f"CNN_high_{k}/{name}", n_filters, n_filters)
            for name in ("b_carry", "b_transform"):
                yield entry(f"token_encoder.highways.{k}.{name}", f"CNN_high_{k}/{name}", n_filters)
    if config.has_char_projection:
        yield entry("token_encoder.W_proj", "CNN_proj/W_proj", config.n_features, width)
        yield entry("token_encoder.b_proj", "CNN_proj/b_proj", width)
    for d, direction in enumerate(DIRECTIONS):
        for layer in range(config.n_layers):
            parameter = f"{direction}_lstm.layers.{layer}"
            cell = f"RNN_{d}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            yield entry(f"{parameter}.kernel", f"{cell}/W_0", 2 * width, 4 * hidden)
            yield entry(f"{parameter}.bias", f"{cell}/B", 4 * hidden)
            if config.has_projection:
                yield entry(f"{parameter}.projection", f"{cell}/W_P_0", hidden, width)


class OutputShape(NamedTuple):
    """Sizes of an output layer of pretraining.

    n_words: V, None where vectors are predicted. width: P. n_parameters: how many numbers it has.
    """

    n_words: int | None
    width: int
    n_parameters: int


def start_state_shapes(config: BiLMConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the start state that lies with the weights, if their policy is to start from it."""
    if config.state != "warm":
        return {}
    shapes: dict[str, tuple[int, ...]] = {}
    for direction in DIRECTIONS:
        shapes[f"start_{direction}_hidden"] = (config.n_layers, config.projection_dim)
        shapes[f"start_{direction}_cell"] = (config.n_layers, config.lstm_dim)
    return shapes


def refuse_forward_only(names: Iterable[str], where: str) -> None:
    """WeightsError if tensors, by their names in HDF5 or in a checkpoint, are of a language model of one direction."""
    tops = {name.removeprefix("lm/").split("/", 1)[0] for name in names}
    if tops & {"rnn", "RNN_0"} and "RNN_1" not in tops:
        raise WeightsError(
            f"{where}: is a forward-only language model (bilm-tf's option 'bidirectional' was false): it has no LSTM "
            "that reads backward, and ELMo's layers are made of both"
        )


def check_shapes(
    expected: Iterator[tuple[str, tuple[int, ...]]],
    found: Mapping[str, tuple[int, ...]],
    where: str,
    what: str,
) -> None:
    """Compare the tensors that a config asks for with those that a file's header lists, before any is read.

    expected: (name, shape) of each tensor, lazily.
    found: shape by name.
    where: the file, for the error. what: "tensor" or "dataset".
    Raises WeightsError naming what is missing, has another shape, or is not asked for.
    """
    missing: list[str] = []
    known = set()
    for name, shape in expected:
        if name not in found:
            missing.append(name)
            if len(missing) > _LISTED:
                break
            continue
        known.add(name)
        if tuple(found[name]) != shape:
            raise WeightsError(
                f"{where}: {what} '{name}' has shape {tuple(found[name])}, but its options ask for {shape}: "
                "these options belong to other weights"
            )
    if missing:
        raise WeightsError(f"{where}: its options ask for {what}s that it lacks: {listed(missing)}")
    unexpected = sorted(set(found) - known)
    if unexpected:
        raise WeightsError(
            f"{where}: it holds {what}s that its options do not ask for: {listed(unexpected)}; "
            "these options belong to other weights"
        )


def listed(names: list[str]) -> str:
    """The first few names, and whether there are more."""
    return ", ".join(f"{name:.200}" for name in names[:_LISTED]) + (" and more" if len(names) > _LISTED else "")


def checked_values(tensor: torch.Tensor, name: str, where: str) -> torch.Tensor:
    """The tensor as float32. WeightsError if it is of another kind or has a NaN or an infinite value."""
    if tensor.dtype not in _DTYPES:
        raise WeightsError(f"{where}: '{name}' holds {tensor.dtype}, not floating-point weights of 16 bits or more")
    tensor = tensor.to(torch.float32)
    # The extremes tell, and need no memory: a NaN anywhere makes both of them NaN.
    if tensor.numel() and not torch.isfinite(torch.stack(torch.aminmax(tensor))).all():
        broken = int((~torch.isfinite(tensor)).sum())
        raise WeightsError(
            f"{where}: '{name}' has {broken} NaN or infinite values of {tensor.numel()}: the file is damaged, "
            "or its training diverged"
        )
    return tensor
