"""W086 ("will be (re)trained, but it needs the component 'elmo' which is frozen") came whatever users did about it."""

from __future__ import annotations

import logging
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train

from spacy_elmo import BiLM, save_bilm
from tests.pipeline.toys import blank, examples, getter, listener, ner_config, tagger_config, with_elmo

GOLD = [["Ann", "Rome"], ["Paris"], ["Paris", "Bob"]]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Any:
    """What spaCy logs, whose logger may not hand on to the root's."""
    logger = logging.getLogger("spacy")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def config_of(folder: Path, elmo: dict[str, Any], **training: Any) -> Any:
    """A config for `spacy train` of a new NER on top of `elmo`."""
    nlp = blank()
    nlp.add_pipe("elmo")
    nlp.add_pipe("ner", config=ner_config(listener(elmo_dropout=0.0)))
    config = nlp.config
    DocBin(docs=[eg.reference for eg in examples(nlp)]).to_disk(folder / "train.spacy")
    config["components"]["elmo"] = elmo if "source" in elmo else config["components"]["elmo"]
    if "weights" in elmo:
        config["initialize"]["components"]["elmo"] = elmo
    config["corpora"] = {
        name: {"@readers": "spacy.Corpus.v1", "path": str(folder / "train.spacy")} for name in ("train", "dev")
    }
    config["training"] |= {"max_steps": 150, "eval_frequency": 150, "dropout": 0.0, **training}
    config["training"]["optimizer"]["learn_rate"] = 0.01
    return config


@pytest.mark.parametrize(
    ("source", "training", "warned"),
    [
        # the component's own `frozen = true`, its default
        (False, {}, False),
        (True, {"frozen_components": ["elmo"], "annotating_components": ["elmo"]}, False),
        # spaCy's advice is to annotate; our listeners pull, so it works just as well
        (True, {"frozen_components": ["elmo"]}, True),
    ],
)
def test_ner_trains_on_a_frozen_elmo(
    bilm: BiLM, trained: Path, tmp_path: Path, log: Any, source: bool, training: dict[str, Any], warned: bool
) -> None:
    save_bilm(bilm, tmp_path / "bilm")
    elmo = {"source": str(trained)} if source else {"weights": str(tmp_path / "bilm")}
    nlp: Any = init_nlp(config_of(tmp_path, elmo, **training))
    assert ("W086" in log.text) is warned
    assert "W087" not in log.text
    expected = nlp("Ann went .")._.elmo.layers.copy()
    nlp, _ = train(nlp)
    assert [[ent.text for ent in nlp(eg.text).ents] for eg in examples(nlp)] == GOLD
    assert (nlp("Ann went .")._.elmo.layers == expected).all()


def test_nothing_warns_from_initialize_to_a_loaded_pipeline(bilm: BiLM, tmp_path: Path, log: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nlp = blank()
        nlp.add_pipe("elmo").load_weights(bilm)
        nlp.add_pipe("tagger", config=tagger_config(listener()))
        nlp.add_pipe("ner", config=ner_config(with_elmo()))
        optimizer = nlp.initialize(getter(nlp))
        for annotates in ([], ["elmo"]):
            nlp.update(examples(nlp), sgd=optimizer, losses={}, annotates=annotates)
        with nlp.use_params(optimizer.averages):
            nlp.evaluate(examples(nlp))
        nlp.to_disk(tmp_path)
        loaded: Any = spacy.load(tmp_path)
        docs = list(loaded.pipe(["Ann went to Rome .", ""]))
        pickle.loads(pickle.dumps(docs))
        DocBin(docs=docs, store_user_data=True).to_bytes()
        loaded.analyze_pipes()
    assert [record.getMessage() for record in log.records if record.levelno >= logging.WARNING] == []
