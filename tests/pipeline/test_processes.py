"""``nlp.pipe(n_process=2)`` under fork, from a process whose torch threads have run, and under spawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import multiprocessing, sys
import numpy as np, spacy, torch
from spacy_elmo.layers.bilm_model import random_bilm

if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    torch.set_num_threads(2)
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo").load_weights(random_bilm(lstm_dim=64, projection_dim=32))
    texts = [f"The bank number {i} raised rates ." * (1 + i % 7) for i in range(40)]
    expected = [nlp(text)._.elmo.layers for text in texts]  # the parent is warm
    for doc, wanted in zip(nlp.pipe(texts, n_process=2, batch_size=8), expected, strict=True):
        np.testing.assert_allclose(doc._.elmo.layers, wanted, atol=1e-5)
    pairs = list(nlp.pipe(((text, i) for i, text in enumerate(texts)), as_tuples=True, n_process=2, batch_size=3))
    assert [i for _, i in pairs] == list(range(40))
    print("equal")
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_two_processes_give_equal_vectors(method: str, tmp_path: Path) -> None:
    if method == "fork" and sys.platform in ("win32", "darwin"):
        pytest.skip("fork is not to be used on this platform")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf8")
    done = subprocess.run(
        [sys.executable, str(script), method], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "equal"


AFTER_TRAINING = """
import multiprocessing, sys
import spacy
from spacy.language import Language
from spacy.training import Example
from spacy_elmo.layers.bilm_model import random_bilm

@Language.component("memo")
def memo(doc):
    doc.user_data["memo"] = [len(elmo.doc_layers._memo), elmo.doc_layers.trains]
    return doc

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    nlp = spacy.blank("en")
    elmo = nlp.add_pipe("elmo")
    elmo.load_weights(random_bilm())
    nlp.add_pipe("memo")
    nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("a"), {})])
    texts = [f"The bank number {i} ." for i in range(20)]
    in_children = [list(doc.user_data["memo"]) for doc in nlp.pipe(texts, n_process=2, batch_size=4)]
    print(in_children == [[0, False]] * 20, nlp("One more .").user_data["memo"])
"""


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="fork is not to be used on this platform")
def test_children_of_a_process_that_trained_keep_nothing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(AFTER_TRAINING, encoding="utf8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "[1,", "True]"]


FORKED = """
import os, signal
import numpy as np, spacy, torch
from spacy_elmo.layers.bilm_model import random_bilm

torch.set_num_threads(2)
nlp = spacy.blank("en")
nlp.add_pipe("elmo").load_weights(random_bilm(lstm_dim=64, projection_dim=32))
texts = [f"The bank number {i} raised rates ." * (1 + i % 7) for i in range(10)]
expected = [nlp(text)._.elmo.layers for text in texts]  # the parent is warm
pid = os.fork()
if pid == 0:
    signal.alarm(100)
    status = 1
    try:
        for text, wanted in zip(texts, expected, strict=True):
            np.testing.assert_allclose(nlp(text)._.elmo.layers, wanted, atol=1e-5)
        status = 0 if torch.get_num_threads() == 1 else 2
    finally:
        os._exit(status)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), torch.get_num_threads())
"""


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="fork is not to be used on this platform")
def test_a_process_that_was_forked_by_others_computes_too() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "2"]
