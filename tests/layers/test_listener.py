"""The listener's own parts: the projection after the mix."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.training import Example

from spacy_elmo import BiLM, ElmoError
from spacy_elmo.layers.bilm_model import BiLM_v1, random_bilm, set_bilm
from spacy_elmo.layers.listener import ElmoListener_v1, ElmoTok2Vec_v1
from tests.pipeline.toys import blank, examples, getter, listener, tagger_config, toy_bilm


@pytest.fixture(scope="module")
def bilm() -> BiLM:
    return toy_bilm()


def tagger(bilm: BiLM, steps: int = 0, **settings: Any) -> Any:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(bilm)
    nlp.add_pipe("tagger", config=tagger_config(listener(**settings)))
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(getter(nlp))
    optimizer.learn_rate = 0.01
    for _ in range(steps):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    return nlp


def parts(nlp: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """The only listener, and its projection's W (projection, 2P) and b."""
    (one,) = nlp.get_pipe("elmo").listeners
    linear = one.layers[1].layers[0]
    return one, linear.get_param("W"), linear.get_param("b")


def test_a_projection_maps_the_mixed_vector_of_every_token(bilm: BiLM) -> None:
    nlp = tagger(bilm, steps=5, projection=5)
    one, W, b = parts(nlp)
    assert one.get_dim("nO") == 5
    assert W.shape == (5, 16)
    assert np.abs(b).max() > 0.0
    doc = nlp("Ann \n went .")
    layers, mix = doc._.elmo.layers, one.layers[0]
    s = np.exp(mix.get_param("scalars")) / np.exp(mix.get_param("scalars")).sum()
    mixed = mix.get_param("gamma") * np.einsum("l,lnd->nd", s, layers)
    (projected,) = one.predict([doc])
    np.testing.assert_allclose(projected, mixed @ W.T + b, atol=1e-4)
    np.testing.assert_array_equal(projected[1], b)  # white space


def test_the_projection_comes_after_the_dropout(bilm: BiLM) -> None:
    nlp = tagger(bilm, projection=16, elmo_dropout=0.5)
    one, _, _ = parts(nlp)
    doc = nlp.make_doc("Ann went to Rome .")
    one.layers[1].layers[0].set_param("W", np.eye(16, dtype="f"))
    ((dropped,), backprop) = one.begin_update([doc])
    zeros = dropped == 0.0
    assert 0.2 < zeros.mean() < 0.8
    # what was dropped teaches the projection nothing
    backprop([np.ones_like(dropped)])
    taught = one.layers[1].layers[0].get_grad("W")
    np.testing.assert_allclose(taught, np.tile(dropped.sum(axis=0), (16, 1)), rtol=1e-5, atol=1e-5)
    # and each of its outputs stays: it is the map of what is left
    one.layers[1].layers[0].set_param("W", np.ones((16, 16), dtype="f"))
    ((mapped,), _) = one.begin_update([doc])
    assert (mapped != 0.0).all()


def test_gradients_through_the_projection_are_those_of_finite_differences(bilm: BiLM) -> None:
    nlp = tagger(bilm, projection=3, elmo_dropout=0.0)
    one, _, _ = parts(nlp)
    docs = [nlp.make_doc(text) for text in ("Ann went .", "", "Rome")]
    rng = np.random.default_rng(0)
    for layer in (one.layers[0], one.layers[1].layers[0]):
        for name in layer.param_names:
            layer.set_param(name, rng.normal(size=layer.get_param(name).shape).astype("f"))
    outputs, backprop = one.begin_update(docs)
    weights = [rng.normal(size=y.shape).astype("f") for y in outputs]
    backprop(weights)

    def loss() -> float:
        return sum(float((y.astype("d") * w).sum()) for y, w in zip(one.predict(docs), weights, strict=True))

    for layer in (one.layers[0], one.layers[1].layers[0]):
        for name in layer.param_names:
            value, gradient = layer.get_param(name).copy(), layer.get_grad(name).reshape(-1)
            for i in range(0, value.size, 5):
                differences = []
                for step in (1e-2, -1e-2):
                    moved = value.copy().reshape(-1)
                    moved[i] += step
                    layer.set_param(name, moved.reshape(value.shape))
                    differences.append(loss())
                layer.set_param(name, value)
                expected = (differences[0] - differences[1]) / 2e-2
                assert gradient[i] == pytest.approx(expected, rel=2e-2, abs=2e-2), (name, i)


def test_a_projection_learns_and_is_kept(bilm: BiLM, tmp_path: Path) -> None:
    nlp = tagger(bilm, steps=150, projection=6, elmo_dropout=0.0)
    gold = [[token.tag_ for token in example.reference] for example in examples(nlp)]

    def tags(nlp: Any) -> list[list[str]]:
        return [[token.tag_ for token in nlp(example.text)] for example in examples(nlp)]

    assert tags(nlp) == gold
    _, W, _ = parts(nlp)
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    np.testing.assert_array_equal(parts(again)[1], W)
    assert tags(again) == gold
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    assert nlp.config["components"]["tagger"]["model"]["tok2vec"]["projection"] == 6
    nlp.to_disk(tmp_path)
    again = spacy.load(tmp_path)
    assert tags(nlp) == tags(again) == gold
    # and it goes on learning
    before = again.get_pipe("tagger").model.get_ref("tok2vec").layers[2].layers[0].get_param("W").copy()  # type: ignore[attr-defined]
    again.update(examples(again), sgd=again.resume_training(), losses={})
    after = again.get_pipe("tagger").model.get_ref("tok2vec").layers[2].layers[0].get_param("W")  # type: ignore[attr-defined]
    assert not np.array_equal(before, after)


def test_a_new_initialize_draws_the_projection_anew_for_the_weights_there_are(bilm: BiLM) -> None:
    nlp = blank()
    nlp.add_pipe("elmo").load_weights(random_bilm(projection_dim=4))
    nlp.add_pipe("tagger", config=tagger_config(listener(projection=5)))
    nlp.get_pipe("elmo").load_weights(bilm)  # nothing is initialized yet
    nlp.initialize(getter(nlp))
    first = parts(nlp)[1].copy()
    assert first.shape == (5, 16)
    nlp.initialize(getter(nlp))
    assert not np.array_equal(parts(nlp)[1], first)
    with pytest.raises(ElmoError, match="3 layers of width 16; these have 3 layers of width 8"):
        nlp.get_pipe("elmo").load_weights(random_bilm(projection_dim=4))


def test_a_projected_listener_takes_docs_without_tokens(bilm: BiLM) -> None:
    nlp = tagger(bilm, projection=5)
    one, _, _ = parts(nlp)
    for n in (0, 1, 2):
        outputs, backprop = one.begin_update([nlp.make_doc("")] * n)
        assert [y.shape for y in outputs] == [(0, 5)] * n
        assert backprop(outputs) == []
    empty = [Example(nlp.make_doc(""), nlp.make_doc(""))]
    nlp.update([*empty, *examples(nlp)], sgd=nlp.create_optimizer(), losses={})


def test_a_standalone_model_is_initialized_alone(bilm: BiLM) -> None:
    model = BiLM_v1()
    set_bilm(model, bilm)
    standalone = ElmoTok2Vec_v1(bilm=model, projection=7)
    docs = [blank().make_doc("Ann went .")]
    standalone.initialize(X=docs)
    assert standalone.predict(docs)[0].shape == (3, 7)
    assert standalone.get_dim("nO") == 7


def test_settings_can_be_changed_when_a_pipeline_is_loaded(bilm: BiLM, tmp_path: Path) -> None:
    """thinc's files brought the old values back, and the config had the new ones all the same."""
    nlp = tagger(bilm, steps=20, elmo_dropout=0.5, mix={"@architectures": "spacy-elmo.ScalarMix.v1", "l2": 0.5})
    nlp.to_disk(tmp_path)
    kept: list[Any] = []  # a listener does not keep its `elmo` alive

    def loaded(**settings: Any) -> tuple[Any, Any]:
        nlp: Any = spacy.load(tmp_path, config={"components": {"tagger": {"model": {"tok2vec": settings}}}})
        kept.append(nlp)
        (one,) = nlp.get_pipe("elmo").listeners
        return nlp, one

    def penalty(one: Any) -> np.ndarray:
        outputs, backprop = one.begin_update(docs)
        backprop([np.zeros_like(y) for y in outputs])
        return one.layers[0].get_grad("scalars")

    docs = [nlp.make_doc("Ann went to Rome .")]
    layers = nlp("Ann went to Rome .")._.elmo.layers
    _, before = loaded()
    raw = before.layers[0].get_param("scalars")
    assert np.abs(raw).max() > 0.0
    np.testing.assert_allclose(penalty(before), raw, rtol=1e-5)
    assert (before.begin_update(docs)[0][0] == 0.0).mean() > 0.2

    _, one = loaded(elmo_dropout=0.0, mix={"l2": 0.25})
    np.testing.assert_allclose(penalty(one), raw / 2, rtol=1e-5)
    np.testing.assert_allclose(one.begin_update(docs)[0][0], before.predict(docs)[0], atol=1e-5)
    _, one = loaded(mix={"layer_norm": True})
    assert np.abs(one.predict(docs)[0] - before.predict(docs)[0]).max() > 1e-2
    other, one = loaded(mix={"weights": [0.0, 100.0, 0.0]})
    np.testing.assert_allclose(one.predict(docs)[0], layers[1], atol=1e-4)
    (mix,) = other.get_pipe("elmo").mixes
    assert mix.weights == pytest.approx((0.0, 1.0, 0.0), abs=1e-6)
    assert (mix.gamma, mix.learned) == (1.0, False)
    other = spacy.load(tmp_path, config={"components": {"tagger": {"model": {"tok2vec": {"upstream": "nowhere"}}}}})
    with pytest.raises(ElmoError, match="no `elmo` component named 'nowhere'"):
        other("Ann went .")


def test_so_can_those_of_a_component_with_a_bilm_of_its_own(bilm: BiLM, tmp_path: Path) -> None:
    nlp = tagger(bilm, elmo_dropout=0.5)
    nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
    nlp.remove_pipe("elmo")
    nlp.to_disk(tmp_path)
    docs = [nlp.make_doc("Ann went to Rome .")]
    for rate in (0.5, 0.0):
        config = {"components": {"tagger": {"model": {"tok2vec": {"elmo_dropout": rate}}}}}
        other: Any = spacy.load(tmp_path, config=config)
        ((dropped,), _) = other.get_pipe("tagger").model.get_ref("tok2vec").begin_update(docs)
        assert bool((dropped == 0.0).any()) == (rate > 0.0)


@pytest.mark.parametrize("width", [0, -3, 1.5, True])
def test_a_projection_to_no_width_is_refused(width: Any) -> None:
    with pytest.raises(ElmoError, match="projection is a width of at least 1"):
        ElmoListener_v1(projection=width)


@pytest.mark.parametrize("standalone", [False, True])
@pytest.mark.parametrize(
    ("frozen", "grad_factor", "taken"),
    [(True, 1.0, False), (False, 0.0, False), (False, 1.0, True), (False, 0.5, True)],
)
def test_the_layers_gradient_is_made_where_somebody_takes_it(
    bilm: BiLM, frozen: bool, grad_factor: float, taken: bool, standalone: bool
) -> None:
    """With a frozen biLM it was computed, and thrown away."""
    nlp = blank()
    nlp.add_pipe("elmo", config={"frozen": frozen}).load_weights(copy.deepcopy(bilm))
    nlp.add_pipe("tagger", config=tagger_config(listener(elmo_dropout=0.0, grad_factor=grad_factor)))
    nlp.initialize(getter(nlp))
    if standalone:
        nlp.replace_listeners("elmo", "tagger", ["model.tok2vec"])
        taken = not frozen  # it has one reader, which nothing weighs
    else:
        nlp.get_pipe("elmo").update([])
    one = nlp.get_pipe("tagger").model.get_ref("tok2vec")
    mix, made = one.layers[0], []
    plain = mix._func

    def noted(model: Any, layers: Any, is_train: bool) -> Any:
        outputs, backprop = plain(model, layers, is_train)

        def backprop_noted(*args: Any, **kwargs: Any) -> Any:
            made.append(backprop(*args, **kwargs))
            return made[-1]

        return outputs, backprop_noted

    mix._func = noted
    (output,), backprop = one.begin_update([nlp.make_doc("Ann went to Rome .")])
    backprop([np.ones_like(output)])
    assert [len(d_layers) for d_layers in made] == [int(taken)]
    assert np.abs(mix.get_grad("scalars")).max() > 0
