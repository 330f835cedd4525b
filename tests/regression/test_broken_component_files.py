"""A damaged `elmo/model` in a saved pipeline once ended in msgpack's own errors, naming no file."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import spacy

from spacy_elmo import BiLM, ElmoError
from spacy_elmo.errors import WeightsError
from tests.pipeline.toys import WITHOUT_BUILTIN, blank, getter, listener, tagger_config


@pytest.mark.parametrize("damage", ["cut", "junk", "lfs", "empty", "gone"])
def test_damaged_model_file(bilm: BiLM, tmp_path: Path, damage: str) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    nlp.to_disk(tmp_path)
    path = tmp_path / "elmo" / "model"
    data = path.read_bytes()
    path.unlink()
    contents = {
        "cut": data[: len(data) // 2],
        "junk": b"junk" * 100,
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
        "empty": b"",
    }
    if damage in contents:
        path.write_bytes(contents[damage])
    with pytest.raises(WeightsError, match=r"component 'elmo' cannot be loaded from .*elmo"):
        spacy.load(tmp_path)
    with pytest.raises(WeightsError, match="cannot be loaded from bytes"):
        nlp.get_pipe("elmo").from_bytes(b"junk")


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        (None, "one entry a Doc"),
        ([], "one entry a Doc"),
        ([[[0, 2]]], r"list of \(start, end\) token offsets"),
        ([[(0, 1, 2)]], r"list of \(start, end\) token offsets"),
        ([[(0.0, 2.0)]], r"list of \(start, end\) token offsets"),
        ([((0, 2),)], r"list of \(start, end\) token offsets"),
        ([[(0, 1)]], "cover every token once"),
    ],
)
def test_a_span_getter_of_the_wrong_form(bilm: BiLM, spans: Any, message: str) -> None:
    nlp = blank()
    elmo = nlp.add_pipe("elmo")
    elmo.load_weights(bilm)
    elmo.doc_layers.span_getter = lambda docs: spans
    with pytest.raises(ElmoError, match=message):
        nlp("two words")


def test_a_mix_that_is_no_mix() -> None:
    with pytest.raises(ElmoError, match=r"mix is a spacy-elmo\.ScalarMix\.v1, not the model 'elmo_bilm'"):
        blank().add_pipe("tagger", config=tagger_config(listener(mix={"@architectures": "spacy-elmo.BiLM.v1"})))
    with pytest.raises(ElmoError, match="grad_factor is at least 0"):
        blank().add_pipe("tagger", config=tagger_config(listener(grad_factor=-1.0)))


def test_listeners_of_an_elmo_without_weights_cannot_be_replaced() -> None:
    nlp = blank(WITHOUT_BUILTIN)
    nlp.add_pipe("elmo")
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    with pytest.raises(ElmoError, match="has no ELMo weights"):
        nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])


def test_the_first_bilm_is_freed_once_its_listeners_have_their_own(bilm: BiLM) -> None:
    nlp = blank()
    elmo = nlp.add_pipe("elmo")
    elmo.load_weights(bilm.__class__(bilm.config).initialize(0))
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.initialize(getter(nlp))
    alive = weakref.ref(elmo.bilm)
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    del elmo
    gc.collect()
    assert alive() is None


def test_generators_are_read(bilm: BiLM) -> None:
    (layers,) = bilm.encode(iter([iter(["a", "b"])]))
    assert layers.shape == (3, 2, 16)
    assert bilm(iter([["a", "b"]]))[0].shape == (3, 2, 16)
