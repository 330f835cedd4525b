"""Our own biLM in a process of its own, so that environment variables can switch parts of it off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spacy_elmo import load_bilm
from spacy_elmo.bilm.matmul import Precision

from .protocol import Job, serve
from .texts import read_texts


def load(*, threads: int, folders: dict[str, str], texts: dict[str, str]) -> tuple[dict[str, Job], dict[str, Any]]:
    """folders: weights of each size. texts: files of sentences by name."""
    torch.set_num_threads(threads)
    bilms = {size: load_bilm(folder) for size, folder in folders.items()}
    sentences = read_texts(texts)

    def encode(size: str, text: str, precision: Precision, *, cold: bool, one_by_one: bool = False) -> dict[str, Any]:
        """cold: the word cache is empty at the start."""
        bilm, chosen = bilms[size], sentences[text]
        calls = [[sentence] for sentence in chosen] if one_by_one else [chosen]
        if cold:
            bilm.forget_words()
        start = time.perf_counter()
        for call in calls:
            bilm.encode(call, precision=precision)
        return {"seconds": time.perf_counter() - start, "amount": sum(map(len, chosen))}

    def vectors(size: str, text: str, precision: Precision, path: str) -> dict[str, Any]:
        """Write the layers of each sentence to a file."""
        arrays = bilms[size].encode(sentences[text], precision=precision)
        np.savez(Path(path), *[array.numpy() for array in arrays])
        return {}

    return {"encode": encode, "vectors": vectors}, {"facts": f"torch {torch.__version__}"}


if __name__ == "__main__":
    serve(load)
