"""Memory grew with what had been annotated: states, caches and whole batches that a kept Doc held on to."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from spacy_elmo import BiLM
from tests.pipeline.toys import blank, getter, listener, tagger_config

SCRIPT = """
import resource, sys
import spacy, torch
from spacy.tokens import Doc
from spacy_elmo.layers.bilm_model import random_bilm

def peak():
    value = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return value / 1e6 if sys.platform == "darwin" else value * 1024 / 1e6

def texts(n):
    return (f"w{i % 97} of the bank , which raised its rates again in the year {i % 89} and later" for i in range(n))

torch.set_num_threads(1)
nlp = spacy.blank("en")
elmo = nlp.add_pipe("elmo")
elmo.load_weights(random_bilm(lstm_dim=64, projection_dim=64))
if sys.argv[1] == "stream":
    for _ in nlp.pipe(texts(300), batch_size=50):
        pass
    before, vectors = peak(), 0
    for doc in nlp.pipe(texts(2_000), batch_size=50):
        vectors += doc._.elmo.layers.nbytes
else:
    nlp("Warm up .")
    doc = Doc(nlp.vocab, words=[f"w{i % 997}" for i in range(12_000)])
    before = peak()
    vectors = nlp(doc)._.elmo.layers.nbytes
print(peak() - before, vectors / 1e6)
"""


def megabytes(what: str) -> tuple[float, float]:
    """By how much the peak of a process grew, and how much its vectors took."""
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", SCRIPT, what], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown, vectors = map(float, done.stdout.split())
    return grown, vectors


@pytest.mark.slow
def test_a_stream_of_docs_that_are_not_kept_takes_no_memory() -> None:
    grown, vectors = megabytes("stream")
    assert vectors > 45
    assert grown < 15


def test_a_doc_without_boundaries_takes_little_beyond_its_vectors() -> None:
    grown, vectors = megabytes("long")
    assert vectors == pytest.approx(3 * 12_000 * 128 * 4 / 1e6)
    assert grown < vectors + 15


@pytest.mark.parametrize(("store", "dtype"), [("layers", "float32"), ("layers", "float16"), ("mean", "float32")])
def test_a_kept_doc_holds_its_own_vectors_and_not_its_batch(bilm: BiLM, store: str, dtype: str) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", config={"store": store, "dtype": dtype}).load_weights(bilm)
    for doc in nlp.pipe(["One short .", "A longer text , of more words . And two sentences .", "  ", "One short ."]):
        array = doc.user_data[("elmo", "elmo")]
        assert type(array) is np.ndarray
        owner: Any = array
        while isinstance(getattr(owner, "base", None), np.ndarray):
            owner = owner.base
        tensor = getattr(owner, "base", None)  # a torch tensor that lends its memory, or None
        held = owner.nbytes if tensor is None else tensor.untyped_storage().nbytes()
        assert held == array.nbytes == len(doc) * 16 * np.dtype(dtype).itemsize * (3 if store == "layers" else 1)


@pytest.mark.parametrize("store", ["layers", "mean", "none"])
def test_the_memo_of_training_stays_within_its_bound(bilm: BiLM, store: str) -> None:
    nlp = blank()
    nlp.add_pipe("elmo", config={"cache_mb": 1, "store": store}).load_weights(bilm)
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.initialize(getter(nlp))
    texts = [" ".join(f"w{(i * 31 + j) % 997}" for j in range(100)) for i in range(100)]  # 1.9 MB of vectors
    for _ in nlp.pipe(texts):
        pass
    memo = nlp.get_pipe("elmo").doc_layers._memo
    assert 800_000 < sum(array.nbytes for array in memo.values()) <= 1_000_000
