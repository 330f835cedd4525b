from __future__ import annotations

from typing import Any

import pytest

from spacy_elmo.bilm import BiLM
from tests.pipeline.toys import blank, toy_bilm


@pytest.fixture(scope="session")
def bilm() -> BiLM:
    return toy_bilm()


@pytest.fixture
def nlp(bilm: BiLM) -> Any:
    """A pipeline of `elmo` alone, with weights."""
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    return nlp
