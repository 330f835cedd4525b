"""Encode a text for pretraining, feed its windows, or train on them, and tell how much memory that takes."""

from __future__ import annotations

import argparse
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spacy_elmo.pretraining.config import NlpSettings
from spacy_elmo.pretraining.corpus import EncodedCorpus, encode_corpus
from spacy_elmo.pretraining.raw_text import raw_text
from spacy_elmo.pretraining.streams import Stream
from spacy_elmo.pretraining.texts import pipeline
from spacy_elmo.pretraining.vocabulary import build_vocabulary
from spacy_elmo.pretraining.workers import Workers

from ..common import peak_mb
from ..training import Training
from .protocol import Job, serve

PAUSE = 0.1  # seconds between two looks at the processes


def high_water_mb(process: int | str = "self") -> float:
    """Peak resident memory of a process, in MB (10**6 bytes); 0 where it is not to be had.

    Not `getrusage`: that counts what the process which started it held at that moment.
    """
    try:
        status = Path(f"/proc/{process}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    except (OSError, IndexError):
        return peak_mb() if process == "self" else 0.0


class Children:
    """The peak of this process's children, the largest of them, while the block lasts."""

    def __enter__(self) -> Children:
        self.peak = 0.0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(PAUSE):
            try:
                lists = [file.read_text() for file in Path("/proc/self/task").glob("*/children")]
            except OSError:
                continue
            self.peak = max([self.peak, *(high_water_mb(child) for names in lists for child in names.split())])


def load(
    *, threads: int, text: str, folder: str, rows: int, unroll_steps: int
) -> tuple[dict[str, Job], dict[str, Any]]:
    """text: the file. folder: where it is encoded. rows, unroll_steps: of a window."""
    torch.set_num_threads(threads)

    def build(n_process: int, n_characters: int) -> dict[str, Any]:
        settings = NlpSettings()
        before = high_water_mb()
        start = time.perf_counter()
        with Children() as children:
            corpus = encode_corpus(
                raw_text(text).texts(pipeline(settings)),
                folder,
                key="",
                make_nlp=partial(pipeline, settings),
                workers=partial(Workers, settings, n_process) if n_process > 1 else None,
            )
            corpus.types.character_rows(n_characters)
        return {
            "seconds": time.perf_counter() - start,
            "amount": corpus.n_words,
            "types": corpus.n_types,
            "hash": corpus.meta["sha256"],
            "disk": sum(file.stat().st_size for file in corpus.folder.iterdir()) / 1e6,
            "before": before,
            "peak": high_water_mb(),
            "children": children.peak,
        }

    def feed(max_words: int, n_characters: int) -> dict[str, Any]:
        """All windows of an epoch, the characters of their words too."""
        before = high_water_mb()
        corpus = EncodedCorpus.open(folder)
        vocabulary = build_vocabulary(corpus, max_words)
        stream = Stream(corpus, vocabulary, rows=rows, unroll_steps=unroll_steps, seed=0)
        characters = corpus.types.character_rows(n_characters)
        start = time.perf_counter()
        for step in range(stream.steps_per_epoch):
            characters[stream.window(step).type_rows].sum()
        return {
            "seconds": time.perf_counter() - start,
            "amount": stream.steps_per_epoch * rows * unroll_steps,
            "types": corpus.n_types,
            "before": before,
            "peak": high_water_mb(),
        }

    def train(size: str, max_words: int, negatives: int, steps: int) -> dict[str, Any]:
        """So many steps, after one that warms up."""
        corpus = EncodedCorpus.open(folder)
        args = argparse.Namespace(batch=rows, seed=0, negatives=negatives)
        training = Training(
            args,
            corpus,
            size=size,
            n_vocabulary=max_words,
            mode="float32, oneDNN",
            reset="sentence",
        )
        training.run(1)
        sample = training.run(steps)
        return {"seconds": sample.seconds, "amount": sample.amount, "share": training.input_shares[-1]}

    return {"build": build, "feed": feed, "train": train}, {"facts": f"torch {torch.__version__}"}


if __name__ == "__main__":
    serve(load)
