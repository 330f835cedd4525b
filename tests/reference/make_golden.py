"""Writes tests/golden/bilm.npz: small seeded weights and what the numpy reference makes of them.

    python -m tests.reference.make_golden

The public golden files cover one configuration. These cover the others, and the words that are easy to get wrong.
Every case asserts that it tests what its name says: that both clips are hit, and that leaving its feature out moves the
numbers. The file holds, for each case,

    {case}/options    JSON as bytes, the structure of options.json
    {case}/shapes     JSON as bytes: [HDF5 dataset name, shape] of each tensor, in order
    {case}/weights    float32, all tensors flattened, one after the other
    {case}/layers     float64 (L+1, n, 2P): all sentences one after the other, each from the zero state
    {case}/carried    the same for the batches, batch after batch, row after row, the state carried (some cases)

and once `sentences`, `batches` (JSON as bytes: rows are sentence numbers), `vocabulary` (JSON as bytes) and
`char_ids/{columns}` of all words.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np

from .numpy_bilm import NumpyBiLM, char_ids

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bilm.npz"
SEED = 20180215
MOVED = 1e-3  # a feature left out must move some value by at least this much: 500 times the tests' tolerance

SENTENCES: list[list[str]] = [
    ["The", "cat", "sat", "on", "the", "mat", "."],
    [],
    ["", "a", "", "Z"],
    ["abcdefgé", "ab漢字漢字", "x" * 47 + "é", "y" * 60],  # cut inside a character at 10 columns, and at 50
    ["<S>", "said", "</S>", "<UNK>", "<s>"],
    ["😀👩‍👩‍👧", "日本語", "हिन्दी", "naïve"],
    ["\ud800", "a\udfffb"],  # lone surrogates
    ["no", "no", "no", "no", "no", "no", "no", "no"],  # long enough for the cells to run into their clip
]
BATCHES = [[0, 2], [3, 1, 4, 5], [7], [1, 6, 0], [4, 0, 2, 3]]
VOCABULARY = ["<S>", "</S>", "<UNK>", "the", "The", "cat", ".", "no", "", "日本語"]

BASE: dict[str, Any] = {
    "lstm": {
        "dim": 9,
        "projection_dim": 6,
        "n_layers": 2,
        "cell_clip": 3.0,
        "proj_clip": 2.0,  # not the cells' clip: a swap must show
        "use_skip_connections": True,
    },
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 3},
        "filters": [[1, 3], [2, 4], [3, 5]],
        "n_highway": 1,
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
}


def variant(*, lstm: dict[str, Any] | None = None, char_cnn: dict[str, Any] | None = None) -> dict[str, Any]:
    """BASE with some options replaced."""
    options = copy.deepcopy(BASE)
    options["lstm"].update(lstm or {})
    options["char_cnn"].update(char_cnn or {})
    return options


CASES: dict[str, dict[str, Any]] = {
    "base": variant(),
    "tanh": variant(char_cnn={"activation": "tanh", "n_highway": 2}),
    "no_skip": variant(lstm={"use_skip_connections": False}),
    "low_clips": variant(lstm={"cell_clip": 0.9, "proj_clip": 0.4}),
    "no_clip": variant(lstm={"cell_clip": None, "proj_clip": None}),
    "cell_clip_only": variant(lstm={"cell_clip": 0.9, "proj_clip": 0}),
    "one_layer": variant(lstm={"n_layers": 1}),
    "three_layers": variant(lstm={"n_layers": 3}),
    "ten_characters": variant(char_cnn={"max_characters_per_token": 10, "filters": [[1, 3], [4, 4], [7, 5]]}),
    "no_char_projection": variant(char_cnn={"filters": [[1, 2], [2, 2], [5, 2]]}),
    "no_highway": variant(char_cnn={"n_highway": 0}),
    "no_recurrent_projection": variant(lstm={"dim": 6, "cell_clip": 0.9}),
    "words": {"lstm": dict(BASE["lstm"])},
}
CARRIED = ("base", "low_clips", "three_layers", "no_recurrent_projection")


def draw_weights(options: dict[str, Any], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights of one configuration, by HDF5 name.

    Values are larger than a trained model's first ones, so that the clips are hit, and are float16 numbers, so that
    they are exact in float32 and the file compresses.
    """
    lstm = options["lstm"]
    cell, width = lstm["dim"], lstm["projection_dim"]

    def normal(scale: float, *shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float16).astype(np.float32)

    weights: dict[str, np.ndarray] = {}
    char_cnn = options.get("char_cnn")
    if char_cnn is None:
        weights["embedding"] = normal(1.0, len(VOCABULARY), width)
    else:
        dim = char_cnn["embedding"]["dim"]
        n_filters = sum(count for _, count in char_cnn["filters"])
        weights["char_embed"] = normal(0.7, 261, dim)
        for i, (size, count) in enumerate(char_cnn["filters"]):
            weights[f"CNN/W_cnn_{i}"] = normal(0.6, 1, size, dim, count)
            weights[f"CNN/b_cnn_{i}"] = normal(0.3, count)
        for k in range(char_cnn["n_highway"]):
            weights[f"CNN_high_{k}/W_carry"] = normal(0.4, n_filters, n_filters)
            weights[f"CNN_high_{k}/b_carry"] = normal(0.5, n_filters)
            weights[f"CNN_high_{k}/W_transform"] = normal(0.4, n_filters, n_filters)
            weights[f"CNN_high_{k}/b_transform"] = normal(0.3, n_filters)
        if n_filters != width:
            weights["CNN_proj/W_proj"] = normal(0.3, n_filters, width)
            weights["CNN_proj/b_proj"] = normal(0.2, width)
    for direction in (0, 1):
        for layer in range(lstm["n_layers"]):
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            # The rows of h are small: large ones would blow float32's rounding up from step to step.
            weights[f"{name}/W_0"] = np.concatenate([normal(0.4, width, 4 * cell), normal(0.12, width, 4 * cell)])
            bias = normal(0.3, 4 * cell)
            bias[:cell] += 1.0  # open input and forget gates let a cell grow past 3
            bias[2 * cell : 3 * cell] += 1.0
            weights[f"{name}/B"] = bias.astype(np.float16).astype(np.float32)
            if width < cell:
                weights[f"{name}/W_P_0"] = normal(0.9, cell, width)
    return weights


def moved(expected: list[np.ndarray], other: list[np.ndarray]) -> float:
    """Largest difference of the top layers."""
    return max(float(np.abs(a[-1] - b[-1]).max(initial=0.0)) for a, b in zip(expected, other, strict=True))


def check_case(name: str, options: dict[str, Any], weights: dict[str, np.ndarray], expected: list[np.ndarray]) -> None:
    """AssertionError if the case would pass without the feature that it is there for."""

    def changes(**rooms: dict[str, Any]) -> bool:
        changed = copy.deepcopy(options)
        for room, replaced in rooms.items():
            changed[room].update(replaced)
        return moved(expected, NumpyBiLM(changed, weights, vocabulary=VOCABULARY).encode(SENTENCES)) > MOVED

    lstm = options["lstm"]
    hits = NumpyBiLM(options, weights, vocabulary=VOCABULARY)
    hits.encode(SENTENCES)
    if lstm["cell_clip"]:
        assert hits.clip_hits["cell"] > 0, name
        assert changes(lstm={"cell_clip": None}), name
    else:
        assert changes(lstm={"cell_clip": 3.0}), name
    if lstm["projection_dim"] == lstm["dim"]:
        assert hits.clip_hits["proj"] == 0, name
    elif lstm["proj_clip"]:
        assert hits.clip_hits["proj"] > 0, name
        assert changes(lstm={"proj_clip": None}), name
    else:
        assert changes(lstm={"proj_clip": 2.0}), name
    if lstm["n_layers"] > 1:
        assert changes(lstm={"use_skip_connections": not lstm["use_skip_connections"]}), name
    if "char_cnn" in options:
        char_cnn = options["char_cnn"]
        padding_zeroed = weights["char_embed"].copy()
        padding_zeroed[260] = 0.0
        zeroed = NumpyBiLM(options, {**weights, "char_embed": padding_zeroed}).encode(SENTENCES)
        assert moved(expected, zeroed) > MOVED, name
        other = "relu" if char_cnn["activation"] == "tanh" else "tanh"
        assert changes(char_cnn={"activation": other}), name
        columns = char_cnn["max_characters_per_token"]
        assert any(splits_character(word, columns - 2) for sentence in SENTENCES for word in sentence), name
        assert changes(char_cnn={"max_characters_per_token": columns + 1}), name


def splits_character(word: str, n_bytes: int) -> bool:
    try:
        word.encode("utf-8", "ignore")[:n_bytes].decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def make_golden() -> dict[str, np.ndarray]:
    def as_bytes(value: Any) -> np.ndarray:
        return np.frombuffer(json.dumps(value).encode("ascii"), dtype=np.uint8)

    words = [word for sentence in SENTENCES for word in sentence]
    arrays: dict[str, np.ndarray] = {
        "sentences": as_bytes(SENTENCES),
        "batches": as_bytes(BATCHES),
        "vocabulary": as_bytes(VOCABULARY),
        "char_ids/10": np.array([char_ids(word, 10) for word in words], dtype=np.int16),
        "char_ids/50": np.array([char_ids(word, 50) for word in words], dtype=np.int16),
    }
    for number, (name, options) in enumerate(CASES.items()):
        weights = draw_weights(options, np.random.default_rng([SEED, number]))
        reference = NumpyBiLM(options, weights, vocabulary=VOCABULARY)
        expected = reference.encode(SENTENCES)
        check_case(name, options, weights, expected)
        arrays[f"{name}/options"] = as_bytes(options)
        arrays[f"{name}/shapes"] = as_bytes([[key, list(value.shape)] for key, value in weights.items()])
        arrays[f"{name}/weights"] = np.concatenate([value.ravel() for value in weights.values()])
        arrays[f"{name}/layers"] = np.concatenate(expected, axis=1)
        if name in CARRIED:
            carried = reference.encode_carried([[SENTENCES[i] for i in batch] for batch in BATCHES])
            arrays[f"{name}/carried"] = np.concatenate([layers for batch in carried for layers in batch], axis=1)
            assert moved(carried[-1], [expected[i] for i in BATCHES[-1]]) > MOVED, name
    return arrays


if __name__ == "__main__":
    golden = make_golden()
    GOLDEN.parent.mkdir(exist_ok=True)
    np.savez_compressed(GOLDEN, **golden)  # type: ignore[arg-type]
    print(f"{GOLDEN}: {len(golden)} arrays, {GOLDEN.stat().st_size} bytes")
