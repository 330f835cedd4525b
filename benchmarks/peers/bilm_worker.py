"""bilm-tf, the reference implementation of ELMo's pretraining, on TensorFlow 2 through its interface of version 1.

Environment: ``pip install tensorflow-cpu tf-keras bilm==0.1.post5``. What runs is its own ``LanguageModel`` and what
its ``train`` makes of the gradients (Adagrad, clipping, carried states), without the summaries that it writes.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

import numpy as np

from .protocol import Job, serve


def version_1() -> Any:
    """TensorFlow as bilm knows it. Its packages import ``tensorflow``: they get the old interface under that name."""
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tf: Any = importlib.import_module("tensorflow.compat.v1")
    importlib.import_module("tensorflow.python.ops.init_ops")  # which bilm imports by its full name
    tf.disable_v2_behavior()
    sys.modules["tensorflow"] = tf
    return tf


class Training:
    """A graph and a session that train one model, and where they stand."""

    def __init__(self, tf: Any, options: dict[str, Any], threads: int) -> None:
        from bilm.training import LanguageModel, average_gradients, clip_grads  # type: ignore[import-not-found]

        with tf.Graph().as_default():
            global_step = tf.get_variable("global_step", [], initializer=tf.constant_initializer(0), trainable=False)
            optimizer = tf.train.AdagradOptimizer(learning_rate=0.2, initial_accumulator_value=1.0)
            with tf.variable_scope("lm"):
                self.model = LanguageModel(options, True)
            gradients = optimizer.compute_gradients(
                self.model.total_loss * options["unroll_steps"],
                aggregation_method=tf.AggregationMethod.EXPERIMENTAL_TREE,
            )
            gradients = average_gradients([gradients], options["batch_size"], options)
            gradients, _ = clip_grads(gradients, options, False, global_step)
            self.update = optimizer.apply_gradients(gradients, global_step=global_step)
            config = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
            self.session = tf.Session(config=config)
            self.session.run(tf.global_variables_initializer())
            # Of all variables, the optimizer's too.
            self.saver = tf.train.Saver(max_to_keep=1)
        flat = tf.nest.flatten
        self.starts, self.ends = flat(self.model.init_lstm_state), flat(self.model.final_lstm_state)
        rows = options["batch_size"]
        self.states = [np.zeros([rows, *tensor.shape.as_list()[1:]], dtype=np.float32) for tensor in self.starts]
        self.step = 0

    def run(self, characters: np.ndarray, targets: np.ndarray) -> float:
        """One step. characters: (2, B, T, C), targets (2, B, T), int64. RETURNS: the sampled loss."""
        model = self.model
        feed = {
            model.tokens_characters: characters[0],
            model.tokens_characters_reverse: characters[1],
            model.next_token_id: targets[0],
            model.next_token_id_reverse: targets[1],
            **dict(zip(self.starts, self.states, strict=True)),
        }
        _, loss, *self.states = self.session.run([self.update, model.total_loss, *self.ends], feed_dict=feed)
        self.step += 1
        return float(loss)

    def save(self, folder: str) -> None:
        """Write a checkpoint of TensorFlow, and the LSTM states beside it."""
        self.saver.save(self.session, os.path.join(folder, "model.ckpt"), global_step=self.step)
        np.savez(os.path.join(folder, f"states-{self.step}.npz"), *self.states)

    def restore(self, folder: str, step: int) -> None:
        """Go on where ``save`` was called after so many steps."""
        self.saver.restore(self.session, os.path.join(folder, f"model.ckpt-{step}"))
        with np.load(os.path.join(folder, f"states-{step}.npz")) as file:
            self.states = [file[name] for name in file.files]
        self.step = step


def read_windows(path: str) -> tuple[np.ndarray, np.ndarray]:
    """What a file has to be read at each step, both directions: characters (n, 2, B, T, C), targets (n, 2, B, T)."""
    with np.load(path) as file:
        characters, targets = (file[name].astype(np.int64) for name in ("characters", "targets"))
    return characters, targets


def load(
    *, threads: int, models: dict[str, dict[str, Any]], windows: str | None = None
) -> tuple[dict[str, Job], dict[str, Any]]:
    """Make the jobs.

    models: options of each, in bilm's form. windows: a file with the steps that ``train`` goes round and round.
    """
    tf = version_1()
    characters, targets = read_windows(windows) if windows is not None else (np.zeros(0), np.zeros(0))
    trainings: dict[str, Training] = {}

    def train(model: str, steps: int) -> dict[str, Any]:
        """Go on training; the graph is built in the first call."""
        if model not in trainings:
            trainings[model] = Training(tf, models[model], threads)
        training = trainings[model]
        start = time.perf_counter()
        losses = [
            training.run(*(part[training.step % len(part)] for part in (characters, targets))) for _ in range(steps)
        ]
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "amount": steps * targets[0, 0].size, "losses": losses}

    def train_for(
        model: str, windows: str, seconds: float, folder: str, step: int, keep_from: int = 0
    ) -> dict[str, Any]:
        """Train on from a step for so long, on windows of a file, the first of which is step ``keep_from``; save.

        RETURNS: the step reached, the seconds that it took, losses. The process may be another one than before.
        """
        if model not in trainings:
            trainings[model] = Training(tf, models[model], threads)
            if step:
                trainings[model].restore(folder, step)
        training = trainings[model]
        parts = read_windows(windows)
        losses: list[float] = []
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds and training.step - keep_from < len(parts[0]):
            losses.append(training.run(*(part[training.step - keep_from] for part in parts)))
        training.save(folder)
        return {"step": training.step, "seconds": spent, "losses": losses}

    return {"train": train, "train_for": train_for}, {"facts": f"bilm 0.1.post5, tensorflow {tf.__version__}"}


if __name__ == "__main__":
    serve(load)
