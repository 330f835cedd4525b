"""The built-in English weights, as somebody meets them who has just installed the package: each in a fresh process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "spacy_elmo" / "models" / "en"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the English weights, spacy_elmo/models/en, are not there")


def run(*arguments: str, folder: Path) -> str:
    """What a Python prints that sees the package as it is installed. folder: the working folder."""
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_bilm_by_its_name(tmp_path: Path) -> None:
    code = """
import torch, spacy_elmo
bilm = spacy_elmo.load_bilm("en")
(layers,) = bilm.encode([["It", "works", "."]])
assert layers.dtype == torch.float32 and torch.isfinite(layers).all()
print(list(layers.shape), bilm.config.n_layers + 1, bilm.config.width)
"""
    shape, n_layers, width = run("-c", code, folder=tmp_path).rsplit(maxsplit=2)
    assert json.loads(shape) == [int(n_layers), 3, int(width)]


def test_info(tmp_path: Path) -> None:
    meta = json.loads((FOLDER / "meta.json").read_text(encoding="utf8"))
    about = f"name {meta['name']}, version {meta['version']}, license {meta['license']}, "
    printed = run("-m", "spacy", "elmo", "info", "en", folder=tmp_path)
    assert about in printed
    assert "so no perplexity can be measured" in printed
    assert "problem" not in printed
    (row,) = [
        line.split() for line in run("-m", "spacy", "elmo", "info", folder=tmp_path).splitlines() if "elmo" in line
    ]
    assert row[:2] == ["en", "spacy-elmo"]


PIPELINE = """
import numpy as np, spacy
nlp = spacy.blank("en")
nlp.add_pipe("elmo")
river, mud, money = nlp.pipe([
    "The boat lay by the bank of the river.",
    "Reeds grew along the muddy bank of the stream.",
    "She borrowed some money from the bank in town.",
])
def vector(doc):
    (token,) = [token for token in doc if token.text == "bank"]
    found = token._.elmo
    assert np.isfinite(found).all() and found.any()
    return found / np.linalg.norm(found)
assert all(np.isfinite(doc._.elmo.layers).all() for doc in (river, mud, money))
assert not np.array_equal(vector(river), vector(money))
assert vector(river) @ vector(mud) > vector(river) @ vector(money) + 0.02
nlp.to_disk("pipeline")
for again in (spacy.load("pipeline"), spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())):
    np.testing.assert_allclose(again(river.text)._.elmo.layers, river._.elmo.layers, atol=2e-6)
"""


def test_a_pipeline_from_nothing_and_saved(tmp_path: Path) -> None:
    run("-c", PIPELINE, folder=tmp_path)
    weights, saved = FOLDER / "model.safetensors", tmp_path / "pipeline" / "elmo" / "model"
    assert saved.stat().st_size < weights.stat().st_size + 10_000
    by_path, by_name = (run("-m", "spacy", "elmo", "info", name, folder=tmp_path) for name in ("pipeline", "en"))
    assert re.findall("^parameters .*", by_path, re.MULTILINE) == re.findall("^parameters .*", by_name, re.MULTILINE)
