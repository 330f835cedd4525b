from __future__ import annotations

from pathlib import Path

import pytest

from spacy_elmo import BiLM
from spacy_elmo.layers.bilm_model import random_bilm

# Words, a blank line, white space of all kinds, brackets, a word that the tokenizer divides.
LINES = ["The bank (river) was muddy .", "", "  Ann can't   swim\t.", "東京 Größe\u3000🎉", "( [ { } ] )", " ", "Bank"]


@pytest.fixture(scope="session")
def bilm() -> BiLM:
    return random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4], [2, 4]], char_dim=4)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(LINES * 3) + "\n", encoding="utf8")
    return path
