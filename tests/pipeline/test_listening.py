"""The component and those that listen to it: training, freezing, sourcing, replacing."""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as run_training
from thinc.api import Adam

from spacy_elmo import BiLM, ElmoError
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.layers.listener import listeners_in
from spacy_elmo.pipeline.elmo import Elmo
from tests.pipeline.toys import (
    WITHOUT_BUILTIN,
    blank,
    examples,
    getter,
    listener,
    ner_config,
    tagger_config,
    with_elmo,
)


def pipeline(
    bilm: BiLM, *, ner: dict[str, Any] | None = None, tagger: dict[str, Any] | None = None, **elmo: Any
) -> Any:
    """`elmo` with weights, and untrained listening components."""
    nlp = blank()
    nlp.add_pipe("elmo", config=elmo).load_weights(copy.deepcopy(bilm))
    if ner is not None:
        nlp.add_pipe("ner", config=ner_config(ner))
    if tagger is not None:
        nlp.add_pipe("tagger", config=tagger_config(tagger))
    return nlp


def elmo_of(nlp: Any, name: str = "elmo") -> Any:
    pipe = nlp.get_pipe(name)
    assert isinstance(pipe, Elmo)
    return pipe


def train(nlp: Any, steps: int, **kwargs: Any) -> list[dict[str, float]]:
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(getter(nlp))
    optimizer.learn_rate = 0.01
    return [nlp.update(examples(nlp), sgd=optimizer, losses={}, **kwargs) for _ in range(steps)]


def entities(nlp: Any) -> list[list[tuple[str, str]]]:
    return [[(ent.text, ent.label_) for ent in nlp(eg.text).ents] for eg in examples(nlp)]


GOLD = [[("Ann", "PER"), ("Rome", "LOC")], [("Paris", "LOC")], [("Paris", "LOC"), ("Bob", "PER")]]


@pytest.mark.parametrize("store", ["layers", "mean", "none"])
@pytest.mark.parametrize("tok2vec", [listener(elmo_dropout=0.0), with_elmo(elmo_dropout=0.2)])
def test_ner_learns_from_a_listener_with_any_store(bilm: BiLM, store: str, tok2vec: dict[str, Any]) -> None:
    nlp = pipeline(bilm, ner=tok2vec, store=store)
    losses = train(nlp, 200)
    assert losses[-1]["ner"] < 0.2 * losses[0]["ner"]
    assert entities(nlp) == GOLD


def test_a_frozen_bilm_stays_bit_equal_and_the_mix_moves(bilm: BiLM) -> None:
    nlp = pipeline(bilm, ner=listener())
    before = {name: value.clone() for name, value in elmo_of(nlp).loaded_bilm.state_dict().items()}
    train(nlp, 5)
    for name, value in elmo_of(nlp).loaded_bilm.state_dict().items():
        assert torch.equal(value, before[name]), name
    (one,) = elmo_of(nlp).listeners
    assert np.abs(one.layers[0].get_param("scalars")).max() > 0
    assert one.layers[0].get_param("gamma")[0] != 1.0


def test_every_listener_has_a_mix_of_its_own(bilm: BiLM) -> None:
    nlp = pipeline(bilm, ner=listener(), tagger=listener())
    train(nlp, 5)
    ner, tagger = (one.layers[0].get_param("scalars") for one in elmo_of(nlp).listeners)
    assert not np.allclose(ner, tagger)
    assert elmo_of(nlp).listening_components == ["ner", "tagger"]


@pytest.mark.parametrize("annotating", [[], ["elmo"]])
@pytest.mark.parametrize("exclude", [[], ["elmo"]])
def test_frozen_components_with_and_without_annotating(bilm: BiLM, exclude: list[str], annotating: list[str]) -> None:
    nlp = pipeline(bilm, ner=listener(elmo_dropout=0.0))
    losses = train(nlp, 60, exclude=exclude, annotates=annotating)
    assert losses[-1]["ner"] < 0.5 * losses[0]["ner"]


def test_vectors_inside_update_are_those_of_prediction(bilm: BiLM) -> None:
    for frozen in (True, False):
        for dtype in ("float32", "float16") if frozen else ("float32",):
            nlp = pipeline(bilm, ner=listener(), frozen=frozen, dtype=dtype)
            elmo = elmo_of(nlp)
            docs = [eg.predicted for eg in examples(nlp)]
            elmo.update(examples(nlp))
            inside, _ = elmo.layers_for(docs, is_train=True)
            for got, doc in zip(inside, docs, strict=True):
                # Training takes other matrix products, and these weights are drawn so large (vectors up to 18) that
                # rounding grows on its way through the layers.
                np.testing.assert_allclose(got, elmo(doc)._.elmo.layers, atol=5e-5)


def test_an_unfrozen_bilm_learns_through_all_listeners(bilm: BiLM) -> None:
    nlp = pipeline(bilm, ner=listener(elmo_dropout=0.0), tagger=listener(elmo_dropout=0.0), frozen=False)
    before = {name: value.clone() for name, value in elmo_of(nlp).loaded_bilm.state_dict().items()}
    losses = train(nlp, 60)
    assert losses[-1]["ner"] < 0.3 * losses[0]["ner"]
    assert losses[-1]["elmo"] > 0.0
    for name, value in elmo_of(nlp).loaded_bilm.state_dict().items():
        assert not torch.equal(value, before[name]), name


@pytest.mark.parametrize("before", [0, 3])
def test_an_unfrozen_bilm_that_is_excluded_stays_and_nothing_piles_up(bilm: BiLM, before: int) -> None:
    nlp = pipeline(bilm, ner=listener(elmo_dropout=0.0), frozen=False)
    train(nlp, before)
    optimizer = nlp.initialize(getter(nlp))
    optimizer.learn_rate = 0.01
    weights = {name: value.clone() for name, value in elmo_of(nlp).loaded_bilm.state_dict().items()}
    losses = [nlp.update(examples(nlp), sgd=optimizer, losses={}, exclude=["elmo"]) for _ in range(100)]
    assert losses[-1]["ner"] < 0.5 * losses[0]["ner"]
    for name, value in elmo_of(nlp).loaded_bilm.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert len(elmo_of(nlp).doc_layers._pending) <= len(examples(nlp))
    # and it learns again once it is updated again
    for _ in range(2):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    assert not torch.equal(
        elmo_of(nlp).loaded_bilm.forward_lstm.layers[0].kernel, weights["forward_lstm.layers.0.kernel"]
    )


def gradients(nlp: Any, batch: list[Example]) -> dict[str, torch.Tensor]:
    """What one update without an optimizer leaves in the biLM."""
    nlp.update(batch, sgd=None, losses={})
    elmo_of(nlp).doc_layers.flush()
    parameters = elmo_of(nlp).loaded_bilm.named_parameters()
    return {name: p.grad.clone() for name, p in parameters if p.grad is not None}


def test_gradients_arrive_when_the_last_component_has_no_gold(bilm: BiLM) -> None:
    config: dict[str, Any] = {"ner": listener(elmo_dropout=0.0), "tagger": listener(elmo_dropout=0.0), "frozen": False}
    nlp = pipeline(bilm, **config)
    spacy.util.fix_random_seed(0)
    nlp.initialize(getter(nlp))
    no_tags = [
        Example.from_dict(eg.predicted.copy(), {"entities": eg.to_dict()["doc_annotation"]["entities"]})
        for eg in examples(nlp)
    ]
    nlp.update(no_tags, sgd=Adam(0.001), losses={})  # moves weights only once gradients are there
    both = gradients(nlp, no_tags)
    assert both
    assert all(torch.isfinite(g).all() for g in both.values())
    assert max(float(g.abs().max()) for g in both.values()) > 0


def test_gradients_of_two_listeners_add_up_and_grad_factor_weighs_them(bilm: BiLM) -> None:
    results = {}
    for name, (ner, tagger) in {
        "both": (1.0, 1.0),
        "ner": (1.0, 0.0),
        "tagger": (0.0, 1.0),
        "half": (0.5, 0.0),
    }.items():
        nlp = pipeline(
            bilm,
            ner=listener(elmo_dropout=0.0, grad_factor=ner),
            tagger=listener(elmo_dropout=0.0, grad_factor=tagger),
            frozen=False,
        )
        spacy.util.fix_random_seed(0)
        nlp.initialize(getter(nlp))
        results[name] = gradients(nlp, examples(nlp))
    for name, both in results["both"].items():
        torch.testing.assert_close(both, results["ner"][name] + results["tagger"][name], atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(results["half"][name], results["ner"][name] / 2, atol=1e-6, rtol=1e-4)


def test_fine_tuned_averages_reach_the_torch_parameters(bilm: BiLM) -> None:
    nlp = pipeline(bilm, ner=listener(), frozen=False)
    optimizer = nlp.initialize(getter(nlp))
    optimizer.averages = {}
    for _ in range(10):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    elmo = elmo_of(nlp)
    last = elmo.loaded_bilm.forward_lstm.layers[0].kernel.data.clone()
    inside = {}
    with nlp.use_params(optimizer.averages):
        inside["kernel"] = elmo.loaded_bilm.forward_lstm.layers[0].kernel.data.clone()
        inside["vectors"] = nlp("Ann went to Rome .")._.elmo.layers.copy()
    assert not torch.equal(inside["kernel"], last)
    assert torch.equal(elmo.loaded_bilm.forward_lstm.layers[0].kernel.data, last)
    assert not np.array_equal(nlp("Ann went to Rome .")._.elmo.layers, inside["vectors"])


def test_an_all_empty_batch_is_an_update(bilm: BiLM) -> None:
    for frozen in (True, False):
        nlp = pipeline(bilm, ner=listener(), tagger=with_elmo(), frozen=frozen)
        optimizer = nlp.initialize(getter(nlp))
        empty = [Example.from_dict(nlp.make_doc(text), {}) for text in ("", "", " ")]
        nlp.update(empty, sgd=optimizer, losses={})
        mixed = [*empty, *examples(nlp)]
        nlp.update(mixed, sgd=optimizer, losses={}, annotates=["elmo"])


def test_evaluate_and_unannotated_docs(bilm: BiLM) -> None:
    nlp = pipeline(bilm, ner=listener(elmo_dropout=0.0), store="none")
    train(nlp, 200)
    assert nlp.evaluate(examples(nlp))["ents_f"] == 1.0
    # the component that listens, alone: it pulls what it needs
    doc = nlp.make_doc("Ann went to Rome .")
    assert [ent.text for ent in nlp.get_pipe("ner")(doc).ents] == ["Ann", "Rome"]
    with nlp.select_pipes(enable=["ner"]):
        assert [ent.text for ent in nlp("Ann went to Rome .").ents] == ["Ann", "Rome"]


def test_a_training_text_is_computed_once(bilm: BiLM, monkeypatch: pytest.MonkeyPatch) -> None:
    nlp = pipeline(bilm, ner=listener(), tagger=listener())
    read: list[list[str]] = []
    encode = BiLM.encode

    def counting(self: BiLM, sentences: Any, *args: Any, **kwargs: Any) -> Any:
        read.extend(map(list, sentences))
        return encode(self, sentences, *args, **kwargs)

    monkeypatch.setattr(BiLM, "encode", counting)
    train(nlp, 3)
    nlp.evaluate(examples(nlp))
    assert sorted(read) == sorted(eg.text.split() for eg in examples(nlp))


def test_a_memo_of_nothing_and_a_tiny_one_give_the_same(bilm: BiLM) -> None:
    expected = [loss["ner"] for loss in train(pipeline(bilm, ner=listener()), 3)]
    for cache_mb in (0, 1):
        got = [loss["ner"] for loss in train(pipeline(bilm, ner=listener(), cache_mb=cache_mb), 3)]
        assert got == pytest.approx(expected, rel=1e-4)


def test_saved_pickled_and_copied_pipelines_predict_alike(bilm: BiLM, tmp_path: Path) -> None:
    nlp = pipeline(bilm, ner=with_elmo(elmo_dropout=0.0))
    train(nlp, 200)
    nlp.to_disk(tmp_path)
    for other in (spacy.load(tmp_path), pickle.loads(pickle.dumps(nlp)), copy.deepcopy(nlp)):
        assert entities(other) == GOLD
        assert elmo_of(other).listeners[0].attrs["elmo_link"].upstream is elmo_of(other)
        # and they go on learning
        other.update(examples(other), sgd=other.resume_training(), losses={})


def test_replaced_listeners_need_no_elmo(bilm: BiLM, tmp_path: Path) -> None:
    nlp = pipeline(
        bilm,
        ner=with_elmo(elmo_dropout=0.0),
        tagger=listener(elmo_dropout=0.0),
        span_getter={"@misc": "spacy-elmo.doc_spans.v1"},
    )
    train(nlp, 200)
    tags = [token.tag_ for token in nlp("Ann went to Rome .")]
    nlp.replace_listeners("elmo", "ner", ["model.tok2vec.elmo"])
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    assert elmo_of(nlp).listeners == []
    block = nlp.config["components"]["ner"]["model"]["tok2vec"]["elmo"]
    assert block["@architectures"] == "spacy-elmo.ElmoTok2Vec.v1"
    assert block["span_getter"]["@misc"] == "spacy-elmo.doc_spans.v1"
    nlp.remove_pipe("elmo")
    nlp.to_disk(tmp_path)
    for other in (nlp, spacy.load(tmp_path)):
        assert entities(other) == GOLD
        assert [token.tag_ for token in other("Ann went to Rome .")] == tags
        other.update(examples(other), sgd=other.resume_training(), losses={})


def test_sourcing_from_another_pipeline(bilm: BiLM, tmp_path: Path) -> None:
    source = pipeline(bilm, ner=listener(elmo_dropout=0.0))
    train(source, 200)
    nlp = blank()
    nlp.add_pipe("elmo", source=source)
    nlp.add_pipe("ner", source=source)
    assert entities(nlp) == GOLD
    source.to_disk(tmp_path)
    config = nlp.config
    config["components"] = {
        "elmo": {"source": str(tmp_path)},
        "ner": {"source": str(tmp_path), "replace_listeners": ["model.tok2vec"]},
    }
    assembled = spacy.util.load_model_from_config(config)
    assert entities(assembled) == GOLD
    assert elmo_of(assembled).listeners == []


def test_adding_elmo_to_a_trained_pipeline(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe(
        "ner",
        config=ner_config(
            {
                "@architectures": "spacy.HashEmbedCNN.v2",
                "width": 16,
                "depth": 1,
                "embed_size": 200,
                "window_size": 1,
                "maxout_pieces": 2,
                "subword_features": True,
                "pretrained_vectors": None,
            }
        ),
    )
    train(nlp, 100)
    before = entities(nlp)
    nlp.add_pipe("elmo", first=True).load_weights(bilm)
    nlp.add_pipe("tagger", config=tagger_config(listener()))
    nlp.get_pipe("tagger").initialize(getter(nlp), nlp=nlp)
    optimizer = nlp.resume_training()
    nlp.update(examples(nlp), sgd=optimizer, losses={}, exclude=["ner"])
    assert entities(nlp) == before
    assert nlp("Ann .")._.elmo.layers.shape == (3, 2, 16)


def test_an_ordinary_tok2vec_beside_it(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe(
        "tok2vec",
        config={
            "model": {
                "@architectures": "spacy.HashEmbedCNN.v2",
                "width": 16,
                "depth": 1,
                "embed_size": 200,
                "window_size": 1,
                "maxout_pieces": 2,
                "subword_features": True,
                "pretrained_vectors": None,
            }
        },
    )
    nlp.add_pipe("elmo").load_weights(bilm)
    nlp.add_pipe(
        "tagger",
        config=tagger_config({"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"}),
    )
    nlp.add_pipe("ner", config=ner_config(listener()))
    assert [len(nlp.get_pipe(name).listeners) for name in ("tok2vec", "elmo")] == [1, 1]
    losses = train(nlp, 60)
    assert losses[-1]["ner"] < losses[0]["ner"]
    assert losses[-1]["tagger"] < losses[0]["tagger"]


def test_a_shared_tok2vec_made_of_elmo(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    nlp.add_pipe("tok2vec", config={"model": with_elmo(elmo_dropout=0.0)})
    for name, config in (("ner", ner_config), ("tagger", tagger_config)):
        nlp.add_pipe(
            name, config=config({"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "tok2vec"})
        )
    losses = train(nlp, 200)
    assert losses[-1]["ner"] < 0.2 * losses[0]["ner"]
    assert entities(nlp) == GOLD
    nlp.replace_listeners("tok2vec", "ner", ["model.tok2vec"])
    nlp.remove_pipe("tok2vec")
    assert entities(nlp) == GOLD


def test_listeners_by_upstream_name(bilm: BiLM) -> None:
    nlp = blank()
    small = random_bilm(lstm_dim=8, projection_dim=4)
    nlp.add_pipe("elmo", name="small").load_weights(small)
    nlp.add_pipe("elmo", name="large").load_weights(bilm)
    nlp.add_pipe("ner", config=ner_config(listener("small")))
    nlp.add_pipe("tagger", config=tagger_config(listener("*")))
    train(nlp, 2)
    assert elmo_of(nlp, "small").listening_components == ["ner"]
    # "*": the nearest before
    assert elmo_of(nlp, "large").listening_components == ["tagger"]
    widths = {name: next(iter(listeners_in(nlp.get_pipe(name).model))).get_dim("nO") for name in ("ner", "tagger")}
    assert widths == {"ner": 8, "tagger": 16}


def test_a_listener_without_elmo_says_so() -> None:
    nlp = blank()
    nlp.add_pipe("ner", config=ner_config(listener("somewhere")))
    with pytest.raises(ElmoError, match="no `elmo` component named 'somewhere' before"):
        nlp.initialize(getter(nlp))


def says_what_is_missing(nlp: Any, which: str) -> None:
    gc.collect()
    match = f"connected to nothing: there is {which} before"
    with pytest.raises(ElmoError, match=match):
        nlp("Ann went to Rome .")
    with pytest.raises(ElmoError, match=match):
        nlp.update(examples(nlp), sgd=Adam(0.001), losses={})


def test_a_listener_whose_elmo_was_removed_says_so_at_once(bilm: BiLM) -> None:
    """It went on with the pipe that was gone, and a pipeline was saved that could do nothing."""
    nlp = pipeline(bilm, ner=listener())
    train(nlp, 1)
    nlp.remove_pipe("elmo")
    says_what_is_missing(nlp, "no `elmo` component")
    nlp.add_pipe("elmo", first=True).load_weights(bilm)
    assert nlp("Ann went to Rome .")._.elmo.layers.shape == (3, 5, 16)


def test_a_listener_that_was_sourced_without_its_elmo_says_so_at_once(bilm: BiLM, tmp_path: Path) -> None:
    nlp = pipeline(bilm, ner=listener())
    train(nlp, 1)
    nlp.to_disk(tmp_path)
    config = nlp.config
    config["nlp"]["pipeline"] = ["ner"]
    config["components"] = {"ner": {"source": str(tmp_path)}}
    says_what_is_missing(spacy.util.load_model_from_config(config), "no `elmo` component")


def test_a_listener_whose_elmo_got_another_name_says_so_at_once(bilm: BiLM) -> None:
    nlp = pipeline(bilm, ner=listener("elmo"))
    train(nlp, 1)
    nlp.rename_pipe("elmo", "other")
    says_what_is_missing(nlp, "no `elmo` component named 'elmo'")
    nlp.rename_pipe("other", "elmo")
    nlp("Ann went to Rome .")


def test_a_component_that_is_pickled_alone_keeps_its_elmo(bilm: BiLM) -> None:
    nlp = pipeline(bilm, ner=listener(elmo_dropout=0.0))
    train(nlp, 5)
    ner = pickle.loads(pickle.dumps(nlp.get_pipe("ner")))
    gc.collect()
    doc = nlp.make_doc("Ann went to Rome .")
    (one,), (other,) = (listeners_in(component.model) for component in (nlp.get_pipe("ner"), ner))
    found, expected = (np.asarray(each.predict([doc])[0]) for each in (other, one))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_an_unloaded_frozen_elmo_says_so(bilm: BiLM) -> None:
    nlp = blank(WITHOUT_BUILTIN)
    nlp.add_pipe("elmo")
    nlp.add_pipe("ner", config=ner_config(listener()))
    with pytest.raises(ElmoError, match="has no ELMo weights"):
        nlp.get_pipe("ner").initialize(getter(nlp), nlp=nlp)


def test_weights_of_another_shape_are_refused_once_listeners_are_set_up(bilm: BiLM) -> None:
    nlp = pipeline(bilm, ner=listener())
    other = random_bilm(lstm_dim=8, projection_dim=4, n_layers=3)
    elmo_of(nlp).load_weights(other)  # nothing is initialized yet
    elmo_of(nlp).load_weights(bilm)
    train(nlp, 1)
    with pytest.raises(
        ElmoError, match=r"'ner' was initialized for .* 3 layers of width 16; these have 4 layers of width 8"
    ):
        elmo_of(nlp).load_weights(other)
    assert nlp("Ann .")._.elmo.layers.shape == (3, 2, 16)


def test_fixed_weights_stay_and_must_fit(bilm: BiLM) -> None:
    fixed = {"@architectures": "spacy-elmo.ScalarMix.v1", "weights": [0.0, 100.0, 0.0]}
    nlp = pipeline(bilm, ner=listener(mix=fixed))
    train(nlp, 3)
    (one,) = elmo_of(nlp).listeners
    assert one.layers[0].get_param("scalars").tolist() == [0.0, 100.0, 0.0]
    doc = nlp("Ann went .")
    np.testing.assert_allclose(one.predict([doc])[0], doc._.elmo.layers[1], atol=1e-5)
    with pytest.raises(ElmoError, match="mixes 2 layers by fixed weights"):
        pipeline(bilm, ner=listener(mix={**fixed, "weights": [0.0, 1.0]}))


def test_textcat_listens_too(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    nlp.add_pipe(
        "textcat",
        config={
            "model": {
                "@architectures": "spacy.TextCatEnsemble.v2",
                "nO": None,
                "tok2vec": with_elmo(elmo_dropout=0.0),
                "linear_model": {
                    "@architectures": "spacy.TextCatBOW.v2",
                    "exclusive_classes": True,
                    "ngram_size": 1,
                    "no_output_layer": False,
                },
            }
        },
    )
    texts = {"good and fine": "POS", "bad and awful": "NEG"}

    def batch() -> list[Example]:
        return [
            Example.from_dict(
                nlp.make_doc(text), {"cats": {"POS": float(label == "POS"), "NEG": float(label == "NEG")}}
            )
            for text, label in texts.items()
        ]

    optimizer = nlp.initialize(batch)
    for _ in range(30):
        nlp.update(batch(), sgd=optimizer, losses={})
    assert {text: max(nlp(text).cats, key=nlp(text).cats.__getitem__) for text in texts} == texts


def test_training_goes_on_from_a_saved_pipeline_by_source(bilm: BiLM, tmp_path: Path) -> None:
    nlp = pipeline(bilm, ner=listener(elmo_dropout=0.0))
    train(nlp, 200)
    nlp.to_disk(tmp_path / "model-last")
    DocBin(docs=[eg.reference for eg in examples(nlp)]).to_disk(tmp_path / "train.spacy")
    config = nlp.config
    config["components"] = {name: {"source": str(tmp_path / "model-last")} for name in ("elmo", "ner")}
    config["paths"] |= {"train": str(tmp_path / "train.spacy"), "dev": str(tmp_path / "train.spacy")}
    config["corpora"] = {
        name: {"@readers": "spacy.Corpus.v1", "path": "${paths." + name + "}"} for name in ("train", "dev")
    }
    config["training"] |= {"max_steps": 2, "eval_frequency": 1, "frozen_components": ["elmo"]}
    resumed = init_nlp(config)
    assert entities(resumed) == GOLD
    (tmp_path / "more").mkdir()
    trained, _ = run_training(resumed, tmp_path / "more")
    assert entities(trained) == GOLD
    assert entities(spacy.load(tmp_path / "more" / "model-last")) == GOLD
