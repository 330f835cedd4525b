from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from thinc.api import Adam, Linear

from spacy_elmo import ElmoError
from spacy_elmo.errors import WeightsError
from spacy_elmo.layers.bilm_model import BiLM_v1, find_bilm, get_bilm, random_bilm, set_bilm

SENTENCES = [["the", "bank"], [], ["a"]]


def loaded(seed: int = 0) -> Any:
    model = BiLM_v1()
    set_bilm(model, random_bilm(lstm_dim=8, projection_dim=4, seed=seed))
    return model


def test_it_starts_empty_and_says_so() -> None:
    model = BiLM_v1()
    assert find_bilm(model) is None
    with pytest.raises(ElmoError, match="no weights yet"):
        get_bilm(model)
    with pytest.raises(ElmoError, match=r"not one of spacy-elmo\.BiLM\.v1"):
        find_bilm(Linear())


def test_it_gives_the_layers_of_each_sentence() -> None:
    model = loaded()
    layers = model.predict(SENTENCES)
    assert [x.shape for x in layers] == [(3, 2, 8), (3, 0, 8), (3, 1, 8)]
    expected = get_bilm(model).encode(SENTENCES)
    for got, wanted in zip(layers, expected, strict=True):
        np.testing.assert_array_equal(got, wanted.numpy())


def test_it_learns_through_thinc() -> None:
    model = loaded()
    target = loaded(seed=1).predict(SENTENCES)
    optimizer = Adam(0.01)

    def loss_after_step() -> float:
        layers, backprop = model.begin_update(SENTENCES)
        differences = [x - y for x, y in zip(layers, target, strict=True)]
        backprop(differences)
        model.finish_update(optimizer)
        return float(sum((d**2).sum() for d in differences))

    losses = [loss_after_step() for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]


def test_bytes_carry_config_and_weights() -> None:
    model, empty = loaded(), BiLM_v1()
    empty.from_bytes(model.to_bytes())
    assert get_bilm(empty).config == get_bilm(model).config
    for name, value in get_bilm(model).state_dict().items():
        assert torch.equal(value, get_bilm(empty).state_dict()[name])
    empty.from_bytes(BiLM_v1().to_bytes())
    assert find_bilm(empty) is None
    with pytest.raises(WeightsError):
        model.shims[0].from_bytes(b"not safetensors")


def test_a_copy_is_another_to_the_optimizer() -> None:
    model = loaded()
    copied = model.copy()
    assert copied.shims[0].id != model.shims[0].id
    assert get_bilm(copied) is not get_bilm(model)


def test_use_params_swaps_and_restores() -> None:
    model = loaded()
    shim = model.shims[0]
    bilm: Any = get_bilm(model)
    before = model.predict([["the"]])[0]
    name, parameter = next(iter(bilm.named_parameters()))
    version = bilm.version
    with model.use_params({(shim.id, name): np.zeros(tuple(parameter.shape), dtype="f")}):
        assert not bilm.token_encoder.char_embed.any()
        assert bilm.version != version
        assert not np.array_equal(model.predict([["the"]])[0], before)
    np.testing.assert_array_equal(model.predict([["the"]])[0], before)
    with model.use_params({("somebody", "else"): before}):
        assert bilm.version != version
    with (
        pytest.raises(RuntimeError, match="inside"),
        model.use_params({(shim.id, name): parameter.numpy(force=True) * 2}),
    ):
        raise RuntimeError("inside")
    np.testing.assert_array_equal(model.predict([["the"]])[0], before)


def test_random_weights_are_those_of_the_seed() -> None:
    assert torch.equal(
        random_bilm(seed=3).forward_lstm.layers[0].kernel, random_bilm(seed=3).forward_lstm.layers[0].kernel
    )
    with pytest.raises(ElmoError, match="activation"):
        random_bilm(activation="gelu")
