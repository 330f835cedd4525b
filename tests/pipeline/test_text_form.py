"""`text`: what the biLM reads of a token, wherever words leave Docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc

from spacy_elmo import ElmoError

from .toys import blank, examples, getter, tagger_config, toy_bilm, with_elmo

TEXT = "Ann CAN'T swim\n (there)."
BRACKETS = {"@misc": "spacy-elmo.ptb_brackets.v1"}
MAKE = {
    "orth": lambda token: token.text,
    "lower": lambda token: token.lower_,
    "norm": lambda token: token.norm_,
    "brackets": lambda token: {"(": "-LRB-", ")": "-RRB-"}.get(token.text, token.text),
}


def pipeline(text: Any, **config: Any) -> Any:
    nlp = blank()
    nlp.add_pipe("elmo", config={"text": text, **config}).load_weights(toy_bilm())
    return nlp


def expected(doc: Doc, form: str) -> np.ndarray:
    words = [MAKE[form](token) for token in doc if not token.is_space]
    (layers,) = toy_bilm().encode([words])
    array = np.zeros((3, len(doc), 16), dtype="f")
    array[:, [token.i for token in doc if not token.is_space]] = layers.numpy()
    return array


@pytest.mark.parametrize("form", MAKE)
def test_the_component_reads_that_form(form: str, tmp_path: Path) -> None:
    nlp = pipeline(BRACKETS if form == "brackets" else form, span_getter={"@misc": "spacy-elmo.doc_spans.v1"})
    doc = nlp(TEXT)
    np.testing.assert_allclose(doc._.elmo.layers, expected(doc, form), atol=1e-5)
    nlp.to_disk(tmp_path / "nlp")
    again = spacy.load(tmp_path / "nlp")
    np.testing.assert_array_equal(again(TEXT)._.elmo.layers, doc._.elmo.layers)
    # An option of the component: it can be changed when a pipeline is loaded.
    other = spacy.load(tmp_path / "nlp", config={"components": {"elmo": {"text": "lower"}}})
    np.testing.assert_allclose(other(TEXT)._.elmo.layers, expected(doc, "lower"), atol=1e-5)


def test_words_that_are_equal_in_their_form_have_equal_vectors() -> None:
    upper, lower = pipeline("lower").pipe(["BANK", "bank"])
    np.testing.assert_array_equal(upper._.elmo.layers, lower._.elmo.layers)


def test_the_memo_and_the_layers_on_a_doc_know_the_form() -> None:
    nlp = pipeline("norm")
    elmo = nlp.get_pipe("elmo")
    doc = nlp("Ann swims")
    first = elmo.layers_for([doc], is_train=True)[0][0]  # is remembered from now on
    doc[0].norm_ = "bob"
    second = elmo.layers_for([doc], is_train=True)[0][0]
    np.testing.assert_allclose(second, toy_bilm().encode([["bob", "swims"]])[0].numpy(), atol=1e-5)
    assert abs(first - second).max() > 1e-3
    elmo.doc_layers.text = "orth"
    third = elmo.layers_for([doc], is_train=True)[0][0]
    np.testing.assert_allclose(third, toy_bilm().encode([["Ann", "swims"]])[0].numpy(), atol=1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_listeners_train_on_that_form(frozen: bool) -> None:
    nlp = pipeline("lower", frozen=frozen)
    nlp.add_pipe("tagger", config=tagger_config(with_elmo()))
    nlp.initialize(getter(nlp))
    elmo = nlp.get_pipe("elmo")
    elmo.update([])
    doc, lower = nlp.make_doc("Ann SWIMS"), nlp.make_doc("ann swims")
    layers, _ = elmo.layers_for([doc, lower], is_train=True, listener=elmo.listeners[0])
    np.testing.assert_allclose(layers[0], layers[1], atol=1e-5)
    np.testing.assert_allclose(layers[0], elmo.bilm.encode([["ann", "swims"]])[0].numpy(), atol=2e-5)
    for _ in range(2):
        assert np.isfinite(list(nlp.update(examples(nlp)).values())).all()


@pytest.mark.parametrize("text", ["lower", BRACKETS], ids=["lower", "brackets"])
def test_replaced_listeners_keep_the_form(text: Any, tmp_path: Path) -> None:
    nlp = pipeline(text)
    nlp.add_pipe("tagger", config=tagger_config(with_elmo()))
    nlp.initialize(getter(nlp))
    docs = [nlp.make_doc("Ann WENT to ( Rome )"), nlp.make_doc("ann went to -LRB- rome -RRB-")]
    tok2vec = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    before = tok2vec.predict(docs)
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec.elmo"])
    assert nlp.config["components"]["tagger"]["model"]["tok2vec"]["elmo"]["text"] == text
    nlp.remove_pipe("elmo")
    nlp.to_disk(tmp_path / "nlp")
    loaded: Any = spacy.load(tmp_path / "nlp")
    again = loaded.get_pipe("tagger").model.get_ref("tok2vec").predict(docs)
    for one, other in zip(before, again, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    plain = pipeline("orth")
    assert abs(plain("WENT")._.elmo.mean - pipeline("lower")("WENT")._.elmo.mean).max() > 1e-3


def test_a_function_without_its_config_cannot_be_written_down() -> None:
    nlp = pipeline("orth")
    nlp.add_pipe("tagger", config=tagger_config(with_elmo()))
    nlp.initialize(getter(nlp))
    nlp.get_pipe("elmo").doc_layers.text = lambda words: list(words)
    with pytest.raises(ElmoError, match="no attribute `config`"):
        nlp.replace_listeners("elmo", "tagger", ["model.tok2vec.elmo"])


def test_the_form_goes_to_other_processes() -> None:
    nlp = pipeline(BRACKETS)
    docs = list(nlp.pipe(["( a )", "b"], n_process=2))
    np.testing.assert_allclose(docs[0]._.elmo.layers, nlp("( a )")._.elmo.layers, atol=1e-5)


def test_another_form_is_refused() -> None:
    with pytest.raises(ElmoError, match=r"text is one of 'orth', 'lower', 'norm'.*'upper'"):
        blank().add_pipe("elmo", config={"text": "upper"})
