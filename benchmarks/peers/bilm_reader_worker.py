"""bilm-tf's own inference code: weights in HDF5, and token embeddings, read and run as its users do.

Environment: see bilm_worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .bilm_worker import version_1
from .protocol import Job, serve
from .texts import read_texts


def load(*, threads: int, folders: dict[str, str], texts: dict[str, str]) -> tuple[dict[str, Job], dict[str, Any]]:
    """folders: with options.json, weights.hdf5, elmo_token_embeddings.hdf5 and vocabulary.txt. texts: files by name."""
    tf = version_1()
    from bilm import Batcher, BidirectionalLanguageModel, TokenBatcher  # type: ignore[import-not-found]

    sentences = read_texts(texts)

    def run(placeholder: Any, batch: np.ndarray, *files: str, **options: Any) -> np.ndarray:
        """The first batch of a fresh session: states are zero."""
        layers = BidirectionalLanguageModel(*files, max_batch_size=len(batch), **options)(placeholder)["lm_embeddings"]
        config = tf.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads)
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            result: np.ndarray = session.run(layers, feed_dict={placeholder: batch})
        return result

    def vectors(size: str, text: str, path: str, *, columns: int, token_embeddings: bool = False) -> dict[str, Any]:
        """Write the layers of each sentence to a file. columns: characters of a word, with its marks."""
        folder = Path(folders[size])
        options, weights, table, vocabulary = (
            str(folder / name)
            for name in ("options.json", "weights.hdf5", "elmo_token_embeddings.hdf5", "vocabulary.txt")
        )
        if not Path(table).exists():  # a word table lies with the weights
            table = weights
        chosen: Sequence[list[str]] = sentences[text]
        with tf.Graph().as_default():
            if token_embeddings:
                ids = tf.placeholder("int32", shape=(None, None))
                batch = TokenBatcher(vocabulary).batch_sentences(chosen)
                more = {"use_character_inputs": False, "embedding_weight_file": table}
                stacked = run(ids, batch, options, weights, **more)
            else:
                ids = tf.placeholder("int32", shape=(None, None, columns))
                stacked = run(ids, Batcher(vocabulary, columns).batch_sentences(chosen), options, weights)
        np.savez(path, *[array[:, : len(words)] for array, words in zip(stacked, chosen, strict=True)])
        return {}

    return {"vectors": vectors}, {"facts": f"bilm 0.1.post5, tensorflow {tf.__version__}"}


if __name__ == "__main__":
    serve(load)
