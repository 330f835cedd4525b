"""Listeners once took any array of the right shape on a Doc for the layers of that Doc under the present weights."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.training import Example

from spacy_elmo import BiLM
from tests.pipeline.toys import blank, examples, getter, listener, ner_config, tagger_config


def trained(bilm: BiLM, **elmo: Any) -> Any:
    nlp = blank()
    nlp.add_pipe("elmo", config=elmo).load_weights(copy.deepcopy(bilm))
    nlp.add_pipe("tagger", config=tagger_config(listener(elmo_dropout=0.0)))
    nlp.initialize(getter(nlp))
    return nlp


def other_weights(bilm: BiLM) -> BiLM:
    return copy.deepcopy(bilm).initialize(99)


def mixed(nlp: Any, doc: Any) -> np.ndarray:
    (one,) = nlp.get_pipe("elmo").listeners
    return one.predict([doc])[0]


def fresh(nlp: Any, words: list[str]) -> np.ndarray:
    return mixed(nlp, spacy.tokens.Doc(nlp.vocab, words=words))


def test_rows_of_earlier_weights(bilm: BiLM) -> None:
    nlp = trained(bilm)
    doc = nlp("Ann went to Rome .")
    nlp.get_pipe("elmo").load_weights(other_weights(bilm))
    np.testing.assert_array_equal(mixed(nlp, doc), fresh(nlp, [token.text for token in doc]))


def test_rows_of_another_pipeline(bilm: BiLM) -> None:
    nlp, other = trained(bilm), trained(other_weights(bilm))
    doc = other("Ann went to Rome .")
    np.testing.assert_array_equal(mixed(nlp, doc), fresh(nlp, [token.text for token in doc]))
    (one,) = nlp.get_pipe("elmo").listeners
    inside, _ = one([doc], is_train=True)
    np.testing.assert_array_equal(inside[0], fresh(nlp, [token.text for token in doc]))


def test_rows_of_other_tokens_in_the_same_number(bilm: BiLM) -> None:
    nlp = trained(bilm)
    doc = nlp("Ann went to NewYork today .")
    with doc.retokenize() as retokenizer:
        retokenizer.merge(doc[1:3])
        retokenizer.split(doc[3], ["New", "York"], heads=[doc[3], doc[3]])
    assert len(doc) == 6
    np.testing.assert_array_equal(mixed(nlp, doc), fresh(nlp, [token.text for token in doc]))


def test_rows_that_fit_are_taken_and_not_computed_again(bilm: BiLM, monkeypatch: pytest.MonkeyPatch) -> None:
    nlp = trained(bilm)
    nlp.get_pipe("elmo").doc_layers.cache_mb = 0
    calls = []
    encode = BiLM.encode

    def counting(self: BiLM, *args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return encode(self, *args, **kwargs)

    monkeypatch.setattr(BiLM, "encode", counting)
    nlp("Ann went to Rome .")
    assert len(calls) == 1


def test_a_discarded_doc_is_forgotten(bilm: BiLM) -> None:
    nlp = trained(bilm)
    for i in range(50):
        nlp(f"Text number {i} .")
    assert len(nlp.get_pipe("elmo").doc_layers._given) <= 1


def test_a_waiting_gradient_is_not_lost_to_an_update_without_elmo(bilm: BiLM) -> None:
    def moved(interrupted: bool) -> float:
        nlp = trained(bilm, frozen=False)
        elmo = nlp.get_pipe("elmo")
        spacy.util.fix_random_seed(0)
        optimizer = nlp.resume_training()
        before = elmo.bilm.forward_lstm.layers[0].kernel.detach().clone()
        nlp.update(examples(nlp), sgd=optimizer, losses={})
        if interrupted:
            nlp.get_pipe("tagger").update(examples(nlp), losses={})
        nlp.update(examples(nlp), sgd=optimizer, losses={})
        return float((elmo.bilm.forward_lstm.layers[0].kernel - before).norm().detach())

    assert moved(interrupted=False) > 0
    assert moved(interrupted=True) > 0


def test_weights_of_other_inner_sizes_between_two_updates(bilm: BiLM) -> None:
    from spacy_elmo.layers.bilm_model import random_bilm

    nlp = trained(bilm, frozen=False)
    optimizer = nlp.resume_training()
    for _ in range(2):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    nlp.get_pipe("elmo").load_weights(random_bilm(lstm_dim=24, projection_dim=8))
    for _ in range(2):
        nlp.update(examples(nlp), sgd=optimizer, losses={})


def test_rehearsal_keeps_its_elmo(bilm: BiLM) -> None:
    nlp = trained(bilm)
    optimizer = nlp.resume_training()
    gold = [Example.from_dict(nlp.make_doc("Ann went to Rome ."), {})]
    nlp.rehearse(gold, sgd=optimizer)


def test_ner_trains_with_sentences_of_an_earlier_component(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", config={"span_getter": {"@misc": "spacy-elmo.sent_spans.v1"}}).load_weights(bilm)
    nlp.add_pipe("ner", config=ner_config(listener(elmo_dropout=0.0)))
    optimizer = nlp.initialize(getter(nlp))
    optimizer.learn_rate = 0.01
    losses = [nlp.update(examples(nlp), sgd=optimizer, losses={}, annotates=["sentencizer"])["ner"] for _ in range(60)]
    assert losses[-1] < 0.5 * losses[0]
    with pytest.raises(ValueError, match="annotating_components"):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
