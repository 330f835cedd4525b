"""A seeded writer of ELMoForManyLangs folders, as that program leaves them; it knows nothing of the reader."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..reference.numpy_many_langs import NumpyManyLangs

# Sizes not alike on purpose: a swap of two must show. A clip is met often at weights of this size.
SIZES: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 5, "cell_clip": 1.0, "proj_clip": 0.7, "dim": 7, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [4, 3]],
        "n_highway": 2,
        "word_dim": 6,
        "char_dim": 3,
        "max_characters_per_token": 12,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 10},
    "dropout": 0.1,
}
# "abcdefghij" is what is left of longer words with these sizes.
WORDS = ["<oov>", "<bos>", "<eos>", "<pad>", "the", "cat", ".", "The", "abcdefghij", "日本語", "naïve", "\u3000", "123"]
CHARACTER_MARKS = ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"]
# In order of their first appearance in the text of the training, which has the words <bos> and <eos> in it.
CHARACTERS = [*"<bos>", *"thecat.Tdfgij日本語nïv\u3000🦆", "e", "<"]
SENTENCES: list[list[str]] = [
    ["The", "cat", ".", "the", "unseen"],
    [],
    ["", "abcdefghij", "abcdefghijk", "x" * 60, "日本語" * 9],
    ["naïve", "🦆🦆", "\u3000", "\u00a0", "a\u3000b", "𝔘", "\ud800", "123", "thé"],
    ["<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<S>", "</S>", "<UNK>"],
    ["cat"],
]


def changed(
    encoder: Mapping[str, Any] | None = None, token_embedder: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """``SIZES`` with other values."""
    sizes = copy.deepcopy(SIZES)
    sizes["encoder"] |= encoder or {}
    sizes["token_embedder"] |= token_embedder or {}
    return sizes


def draw_tensors(
    sizes: Mapping[str, Any], n_characters: int, n_words: int, seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Both state dicts, float32, in the order in which the program has them."""
    draw = np.random.default_rng(seed)
    embedder, encoder = sizes["token_embedder"], sizes["encoder"]
    width, hidden = encoder["projection_dim"], encoder["dim"]

    def normal(*shape: int) -> np.ndarray:
        return (0.5 * draw.standard_normal(shape)).astype(np.float32)

    tokens: dict[str, np.ndarray] = {}
    n_features = embedder["word_dim"]
    if embedder["word_dim"]:
        tokens["word_emb_layer.embedding.weight"] = normal(n_words, embedder["word_dim"])
    if embedder["char_dim"]:
        n_filters = sum(count for _, count in embedder["filters"])
        n_features += n_filters
        tokens["char_emb_layer.embedding.weight"] = normal(n_characters, embedder["char_dim"])
        for i, (size, count) in enumerate(embedder["filters"]):
            tokens[f"convolutions.{i}.weight"] = normal(count, embedder["char_dim"], size)
            tokens[f"convolutions.{i}.bias"] = normal(count)
        for k in range(embedder["n_highway"]):
            tokens[f"highways._layers.{k}.weight"] = normal(2 * n_filters, n_filters)
            tokens[f"highways._layers.{k}.bias"] = normal(2 * n_filters)
    tokens["projection.weight"] = normal(width, n_features)
    tokens["projection.bias"] = normal(width)

    layers: dict[str, np.ndarray] = {}
    for direction in ("forward", "backward"):
        for layer in range(encoder["n_layers"]):
            stem = f"{direction}_layer_{layer}"
            layers[f"{stem}.input_linearity.weight"] = normal(4 * hidden, width)
            layers[f"{stem}.state_linearity.weight"] = normal(4 * hidden, width)
            bias = normal(4 * hidden)
            bias[hidden : 2 * hidden] += 1.0  # training starts the forget gate's there
            layers[f"{stem}.state_linearity.bias"] = bias
            layers[f"{stem}.state_projection.weight"] = normal(width, hidden)
    return tokens, layers


def write_dictionary(path: Path, tokens: Sequence[str]) -> None:
    path.write_bytes("".join(f"{token}\t{row}\n" for row, token in enumerate(tokens)).encode("utf8"))


def write_pickle(path: Path, tensors: Mapping[str, np.ndarray], *, legacy: bool = False) -> None:
    """legacy: as torch wrote before 1.6, which is what the published folders hold."""
    state = {name: torch.from_numpy(value) for name, value in tensors.items()}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)


def write_model(
    folder: Path,
    sizes: Mapping[str, Any] = SIZES,
    *,
    seed: int = 0,
    legacy: bool = False,
    config_path: str = "/home/author/elmo/configs/cnn_sizes.json",
) -> NumpyManyLangs:
    """A whole folder; a dictionary that the sizes have no use for is left out.

    RETURNS: the same model in the float64 reference.
    """
    folder.mkdir(parents=True, exist_ok=True)
    characters = [*dict.fromkeys([*CHARACTERS, *CHARACTER_MARKS])]
    tokens, layers = draw_tensors(sizes, len(characters), len(WORDS), seed)
    arguments = {"seed": 1, "gpu": 0, "config_path": config_path, "max_epoch": 10, "min_count": 3, "model": "."}
    (folder / "config.json").write_text(json.dumps(arguments), encoding="utf8")
    (folder / "cnn_sizes.json").write_text(json.dumps(sizes), encoding="utf8")
    if sizes["token_embedder"]["char_dim"]:
        write_dictionary(folder / "char.dic", characters)
    if sizes["token_embedder"]["word_dim"]:
        write_dictionary(folder / "word.dic", WORDS)
    write_pickle(folder / "token_embedder.pkl", tokens, legacy=legacy)
    write_pickle(folder / "encoder.pkl", layers, legacy=legacy)
    rows, word_rows = ({token: row for row, token in enumerate(some)} for some in (characters, WORDS))
    return NumpyManyLangs(sizes, tokens, layers, rows, word_rows)
