"""Annotate a long stream of texts with the component ``elmo``, and tell how much memory the process holds."""

from __future__ import annotations

import os
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

import spacy
import torch

from spacy_elmo import BiLM, load_bilm

from ..common import SIZES, WIKIPEDIA, peak_mb, sentence_stream
from .protocol import Job, serve


def resident_mb() -> float:
    """Resident memory of this process now, in MB (10**6 bytes); NaN where the system does not tell."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return float("nan")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def load(
    *, threads: int, size: str, precision: str, types: int, batch_size: int, seed: int, model: str | None = None
) -> tuple[dict[str, Job], dict[str, Any]]:
    """size: of the biLM. model: name or path of weights, in place of random ones. types: that the text is made of.
    batch_size: of nlp.pipe.
    """
    torch.set_num_threads(threads)
    nlp = spacy.blank("en")
    elmo: Any = nlp.add_pipe("elmo", config={"precision": precision})
    elmo.load_weights(BiLM(SIZES[size]).initialize(seed) if model is None else load_bilm(model))
    texts = (" ".join(words) for words in sentence_stream(WIKIPEDIA._replace(n_types=types), seed))
    first = next(texts)  # the stream's own memory is taken before the first look
    # One stream and one pipe over all jobs: nothing starts anew between two looks.
    docs = nlp.pipe(chain([first], texts), batch_size=batch_size)

    def annotate(sentences: int) -> dict[str, Any]:
        """Go on for some sentences."""
        start = time.perf_counter()
        words = sum(len(doc) for doc in islice(docs, sentences))
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "amount": words, "resident": resident_mb(), "peak": peak_mb()}

    return {"annotate": annotate}, {"facts": f"torch {torch.__version__}"}


if __name__ == "__main__":
    serve(load)
