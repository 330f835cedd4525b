"""Layers that were given out for training and never got a gradient were kept, with the graph behind them."""

from __future__ import annotations

import copy
import gc
from typing import Any

import torch
from spacy.training import Example

from spacy_elmo import BiLM
from spacy_elmo.layers.listener import standalone_in
from tests.pipeline.toys import blank, examples, getter, listener, ner_config


def learning(bilm: BiLM) -> Any:
    """A pipeline whose biLM learns through an entity recognizer."""
    nlp = blank()
    nlp.add_pipe("elmo", config={"frozen": False}).load_weights(copy.deepcopy(bilm))
    nlp.add_pipe("ner", config=ner_config(listener(elmo_dropout=0.0)))
    nlp.initialize(getter(nlp))
    return nlp


def test_rehearsals_leave_nothing_behind(bilm: BiLM) -> None:
    nlp = learning(bilm)
    nlp.replace_listeners("elmo", "ner", ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    optimizer = nlp.resume_training()  # the first model, that of rehearsals, is copied here
    for number in range(5):
        raw = [Example.from_dict(nlp.make_doc(f"Text number {number} of {part} ."), {}) for part in range(3)]
        nlp.rehearse(raw, sgd=optimizer)
    gc.collect()
    ((first, _),) = standalone_in(nlp.get_pipe("ner")._rehearsal_model)
    assert len(first._pending) <= 3


def test_gradients_may_come_back_in_any_order_and_too_late(bilm: BiLM) -> None:
    nlp = learning(bilm)
    elmo = nlp.get_pipe("elmo")
    docs = [eg.predicted for eg in examples(nlp)]

    def gradient(order: list[int]) -> torch.Tensor:
        passes = [elmo.doc_layers.begin_update(elmo.bilm, part) for part in (docs[:2], docs[1:])]
        for i in order:
            layers, backprop = passes[i]
            backprop([layer * (i + 1) for layer in layers])
        assert elmo.doc_layers.flush() > 0.0
        found = elmo.bilm.forward_lstm.layers[0].kernel.grad
        elmo.bilm.zero_grad(set_to_none=True)
        return found

    both = gradient([0, 1])
    size = float(both.abs().max())
    torch.testing.assert_close(gradient([1, 0]), both, rtol=0, atol=1e-4 * size)
    assert float((gradient([0]) - both).abs().max()) > 1e-2 * size
    layers, backprop = elmo.doc_layers.begin_update(elmo.bilm, docs)
    backprop(layers)
    elmo.doc_layers.flush()
    backprop(layers)  # the graph is gone by now
    assert elmo.doc_layers.flush() == 0.0
