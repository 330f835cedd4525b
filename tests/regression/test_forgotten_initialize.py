"""`add_pipe` without `initialize` ended in a TypeError deep inside thinc; the error must name the missing call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy

from spacy_elmo import BiLM, ElmoError
from tests.pipeline.toys import WITHOUT_BUILTIN, blank, examples, listener, ner_config, tagger_config

TEXT = "Ann went to Rome ."
COMPONENTS = {
    "ner": (ner_config, "PER"),
    "tagger": (tagger_config, "NOUN"),
    "morphologizer": (tagger_config, "POS=NOUN"),
    "textcat": (
        lambda tok2vec: {
            "model": {
                "@architectures": "spacy.TextCatReduce.v1",
                "exclusive_classes": True,
                "use_reduce_first": False,
                "use_reduce_last": False,
                "use_reduce_max": False,
                "use_reduce_mean": True,
                "nO": None,
                "tok2vec": tok2vec,
            }
        },
        "A",
    ),
}


def uninitialized(bilm: BiLM, name: str) -> Any:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    config, label = COMPONENTS[name]
    nlp.add_pipe(name, config=config(listener())).add_label(label)
    return nlp


@pytest.mark.parametrize("name", list(COMPONENTS))
def test_one_text(bilm: BiLM, name: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s){name}.*initialize"):
        uninitialized(bilm, name)(TEXT)


@pytest.mark.parametrize("name", list(COMPONENTS))
def test_a_stream_of_texts(bilm: BiLM, name: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s){name}.*initialize"):
        list(uninitialized(bilm, name).pipe([TEXT]))


@pytest.mark.parametrize("name", ["tagger", "morphologizer"])  # with NER, spaCy itself fails before the model is run
def test_an_update(bilm: BiLM, name: str) -> None:
    nlp = uninitialized(bilm, name)
    with pytest.raises(ValueError, match=rf"(?s){name}.*initialize"):
        nlp.update(examples(nlp), sgd=nlp.create_optimizer())


@pytest.mark.parametrize(
    "use",
    [lambda nlp: nlp(TEXT), lambda nlp: list(nlp.pipe([TEXT])), lambda nlp: nlp.initialize()],
    ids=["one text", "stream", "initialize"],
)
def test_elmo_without_weights(use: Callable[[Any], object]) -> None:
    nlp = blank(WITHOUT_BUILTIN)
    nlp.add_pipe("elmo")
    with pytest.raises(ElmoError, match=r"(?s)no ELMo weights.*load_weights.*nlp\.initialize"):
        use(nlp)


def test_elmo_alone_needs_no_initialize(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    assert nlp(TEXT)._.elmo.layers.shape == (3, 5, 16)


def test_a_pipeline_loaded_without_its_elmo_says_what_is_missing(trained: Path) -> None:
    nlp: Any = spacy.load(trained, exclude=["elmo"])
    with pytest.raises(ElmoError, match="no `elmo` component before its component"):
        nlp(TEXT)
    disabled: Any = spacy.load(trained, disable=["elmo"])  # there, but not run: listeners pull
    assert [ent.text for ent in disabled(TEXT).ents] == ["Ann", "Rome"]
