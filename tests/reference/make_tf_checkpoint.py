"""Writes tests/weights/fixtures/tf_checkpoint: a checkpoint of bilm-tf's kind, by TensorFlow itself.

    python -m tests.reference.make_tf_checkpoint

Needs TensorFlow (2.x), which nothing else here does. The variables have the names, shapes and types that bilm-tf's
training graph gives them, Adagrad's accumulators and the two counters among them; the values are those that
`tests.reference.make_golden.draw_weights` draws, so that a test can draw them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .make_golden import draw_weights

FOLDER = Path(__file__).resolve().parents[1] / "weights" / "fixtures" / "tf_checkpoint"
SEED = 935588
STEP = 7
VOCABULARY = ["<S>", "</S>", "<UNK>", "the", ",", ".", "of", "and", "café", "日本語"]
OPTIONS: dict[str, Any] = {
    "bidirectional": True,
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 3},
        "filters": [[1, 3], [2, 3], [3, 4]],
        "max_characters_per_token": 12,
        "n_characters": 261,
        "n_highway": 1,
    },
    "dropout": 0.1,
    "lstm": {
        "cell_clip": 3,
        "dim": 7,
        "n_layers": 2,
        "proj_clip": 3,
        "projection_dim": 5,
        "use_skip_connections": True,
    },
    "all_clip_norm_val": 10.0,
    "n_epochs": 1,
    "n_train_tokens": 1000,
    "batch_size": 2,
    "n_tokens_vocab": len(VOCABULARY),
    "unroll_steps": 20,
    "n_negative_samples_batch": 4,
}


def draw() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The weights by their names in HDF5, and the softmax: W, b."""
    rng = np.random.default_rng(SEED)
    weights = draw_weights(OPTIONS, rng)
    n_words, width = OPTIONS["n_tokens_vocab"], OPTIONS["lstm"]["projection_dim"]
    softmax = {"W": rng.standard_normal((n_words, width)), "b": rng.standard_normal(n_words)}
    return weights, {name: value.astype(np.float32) for name, value in softmax.items()}


def variable_names(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights by the names of TensorFlow's variables, instead of those in HDF5."""
    named = {}
    for name, value in weights.items():
        parts = name.split("/")
        if parts[0].startswith("RNN_"):
            cell = [parts[0], "rnn"]
            cell += ["multi_rnn_cell", f"cell_{parts[3].removeprefix('Cell')}"] if len(parts) == 6 else []
            parts = [*cell, "lstm_cell", {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}[parts[-1]]]
        named["/".join(["lm", *parts])] = value
    return named


def main() -> None:
    """Write the checkpoint, its options and its vocabulary."""
    import tensorflow as tf  # type: ignore[import-untyped, unused-ignore]

    tf1 = tf.compat.v1
    weights, softmax = draw()
    values = {**variable_names(weights), **{f"lm/softmax/{name}": value for name, value in softmax.items()}}
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tf1.Graph().as_default(), tf1.Session() as session:
        for name, value in values.items():
            tf1.get_variable(name, initializer=value)
            tf1.get_variable(f"{name}/Adagrad", initializer=np.ones_like(value))
        tf1.get_variable("global_step", initializer=np.int64(STEP))
        tf1.get_variable("train_perplexity", initializer=np.float32(42.0))
        session.run(tf1.global_variables_initializer())
        prefix = str(FOLDER / "model.ckpt")
        tf1.train.Saver().save(session, prefix, global_step=STEP, write_meta_graph=False)
    # Of the machine that wrote it, as in published checkpoints.
    latest = (FOLDER / "checkpoint").read_text().replace(str(FOLDER), "/home/someone/models")
    (FOLDER / "checkpoint").write_text(latest)
    (FOLDER / "options.json").write_text(json.dumps(OPTIONS, indent=1) + "\n")
    (FOLDER / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    for path in sorted(FOLDER.iterdir()):
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
