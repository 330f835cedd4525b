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


@pytest.mark.parametrize("method", ["fork", "spawn"])
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
