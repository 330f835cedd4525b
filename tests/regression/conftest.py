from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import spacy

from spacy_elmo import BiLM
from tests.pipeline.toys import blank, examples, getter, ner_config, toy_bilm, with_elmo


@pytest.fixture(scope="session")
def bilm() -> BiLM:
    return toy_bilm()


@pytest.fixture(scope="session")
def trained(bilm: BiLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved pipeline of `elmo` and a `ner` that listens and knows the toy sentences' entities."""
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    nlp.add_pipe("ner", config=ner_config(with_elmo(elmo_dropout=0.0)))
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(getter(nlp))
    optimizer.learn_rate = 0.01
    for _ in range(120):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    path = tmp_path_factory.mktemp("trained") / "model"
    nlp.to_disk(path)
    return path


@pytest.fixture
def nlp(trained: Path) -> Any:
    """The trained pipeline, loaded anew."""
    return spacy.load(trained)
