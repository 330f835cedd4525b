from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thinc.api import SGD

from spacy_elmo import ElmoError
from spacy_elmo.layers.scalar_mix import ScalarMix_v1


def texts(seed: int = 0, lengths: tuple[int, ...] = (4, 0, 2)) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(3, n, 6)).astype("f") for n in lengths]


def initialized(scalars: list[float] | None = None, gamma: float = 1.0, **kwargs: Any) -> Any:
    model = ScalarMix_v1(**kwargs)
    model.initialize(X=texts())
    if scalars is not None:
        model.set_param("scalars", np.array(scalars, dtype="f"))
    model.set_param("gamma", np.array([gamma], dtype="f"))
    return model


def test_it_starts_as_the_plain_mean() -> None:
    layers = texts()
    for mixed, x in zip(initialized().predict(layers), layers, strict=True):
        np.testing.assert_allclose(mixed, x.mean(axis=0), atol=1e-6)


def test_softmax_weights_and_gamma() -> None:
    layers = texts()
    s = np.exp([0.3, -1.0, 2.0]) / np.exp([0.3, -1.0, 2.0]).sum()
    mixed = initialized([0.3, -1.0, 2.0], gamma=1.7).predict(layers)
    np.testing.assert_allclose(mixed[0], 1.7 * np.einsum("l,lnd->nd", s, layers[0]), rtol=1e-5)
    assert mixed[1].shape == (0, 6)


def test_huge_weights_pick_a_layer() -> None:
    layers = texts()
    picked = initialized(weights=[-9e10, 1.0, -9e10]).predict(layers)
    np.testing.assert_allclose(picked[0], layers[0][1], atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), layer_norm=st.booleans(), l2=st.sampled_from([0.0, 0.1]))
def test_gradients_are_those_of_finite_differences(seed: int, layer_norm: bool, l2: float) -> None:
    rng = np.random.default_rng(seed)
    scalars, gamma = rng.normal(size=3).astype("f"), float(rng.normal())
    layers = texts(seed)
    weights = [rng.normal(size=x.shape[1:]).astype("f") for x in layers]

    def loss(w: np.ndarray, g: float, xs: list[np.ndarray]) -> float:
        model = initialized(w.tolist(), g, layer_norm=layer_norm, l2=l2)
        total = sum(float((y.astype("d") * c).sum()) for y, c in zip(model.predict(xs), weights, strict=True))
        return total + l2 * float((w.astype("d") ** 2).sum())

    model = initialized(scalars.tolist(), gamma, layer_norm=layer_norm, l2=l2)
    _, backprop = model(layers, is_train=True)
    d_layers = backprop(weights)
    eps = 1e-2
    for j in range(3):
        step = np.eye(3, dtype="f")[j] * eps
        slope = (loss(scalars + step, gamma, layers) - loss(scalars - step, gamma, layers)) / (2 * eps)
        assert model.get_grad("scalars")[j] == pytest.approx(slope, abs=2e-2, rel=2e-2)
    slope = (loss(scalars, gamma + eps, layers) - loss(scalars, gamma - eps, layers)) / (2 * eps)
    assert model.get_grad("gamma")[0] == pytest.approx(slope, abs=2e-2, rel=2e-2)
    up, down = ([x.copy() for x in layers] for _ in range(2))
    up[0][1, 2, 3] += eps
    down[0][1, 2, 3] -= eps
    slope = (loss(scalars, gamma, up) - loss(scalars, gamma, down)) / (2 * eps)
    assert d_layers[0][1, 2, 3] == pytest.approx(slope, abs=2e-2, rel=2e-2)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_what_it_learns_does_not_hang_on_whether_the_layers_gradient_is_taken(layer_norm: bool) -> None:
    """The formulas to the bit, and the layers' gradient only where somebody takes it."""
    layers, d_outputs = texts(1), [x[0] for x in texts(2)]
    found = []
    for to_layers in (True, False):
        model = initialized([0.3, -1.0, 2.0], gamma=1.7, layer_norm=layer_norm, l2=0.1)
        _, backprop = model(layers, is_train=True)
        d_layers = backprop(d_outputs, to_layers=to_layers)
        found.append([model.get_grad("scalars").tobytes(), model.get_grad("gamma").tobytes()])
    assert d_layers == []
    assert found[0] == found[1]
    if not layer_norm:
        raw, gamma = np.array([0.3, -1.0, 2.0], dtype="f"), np.array([1.7], dtype="f")
        s = model.ops.softmax(raw.reshape((1, -1))).reshape((-1,))
        d_s, d_gamma = np.zeros(3, dtype="f"), np.zeros(1, dtype="f")
        for d_y, x in zip(d_outputs, layers, strict=True):
            d_gamma += (d_y * np.tensordot(s, x, axes=1)).sum()
            d_s += gamma * (x.reshape((3, -1)) @ d_y.reshape((-1,)))
        assert found[1] == [(s * (d_s - (s * d_s).sum()) + 0.2 * raw).astype("f").tobytes(), d_gamma.tobytes()]


def test_layer_norm_depends_on_no_other_token() -> None:
    model = initialized(layer_norm=True)
    long, short = texts(lengths=(5,)), texts(lengths=(5,))
    short[0] = short[0][:, :2]
    np.testing.assert_allclose(model.predict(long)[0][:2], model.predict(short)[0], atol=1e-6)
    normalised = initialized(layer_norm=True, weights=[0.0, -9e10, -9e10]).predict(long)[0]
    np.testing.assert_allclose(normalised.mean(axis=1), 0.0, atol=1e-6)
    np.testing.assert_allclose(normalised.std(axis=1), 1.0, atol=1e-3)
    white_space = np.zeros((3, 1, 6), dtype="f")
    assert not model.predict([white_space])[0].any()


def test_fixed_weights_get_no_gradient() -> None:
    model = initialized(weights=[0.0, 1.0, 2.0])
    _, backprop = model(texts(), is_train=True)
    backprop([np.ones(x.shape[1:], dtype="f") for x in texts()])
    assert not model.has_grad("scalars")
    assert not model.has_grad("gamma")


def test_the_penalty_is_of_a_batch_and_not_of_each_of_its_parts() -> None:
    """As `accumulate_gradient` has it: several backward passes, then one step."""
    layers, l2, w = texts(), 0.5, [1.0, -2.0, 0.5]
    model, plain = initialized(w, l2=l2), initialized(w)
    optimizer = SGD(0.1, L2=0.0, grad_clip=0.0, use_averages=False)
    for parts in (1, 4, 3):
        raw = model.get_param("scalars").copy()
        plain.set_param("scalars", raw.copy())
        for one in (model, plain):
            for _ in range(parts):
                _, backprop = one.begin_update(layers)
                backprop([np.ones(x.shape[1:], dtype="f") for x in layers])
        np.testing.assert_allclose(model.get_grad("scalars") - plain.get_grad("scalars"), 2 * l2 * raw, atol=1e-3)
        for one in (model, plain):
            one.finish_update(optimizer)
            assert not one.get_grad("scalars").any()


def test_wrong_use_is_named() -> None:
    with pytest.raises(ElmoError, match="l2 is at least 0"):
        ScalarMix_v1(l2=-1.0)
    with pytest.raises(ElmoError, match="number of layers is not known"):
        ScalarMix_v1().initialize()
    with pytest.raises(ElmoError, match="mixes 3 layers, the biLM gives 2"):
        initialized().predict([np.zeros((2, 1, 6), dtype="f")])
