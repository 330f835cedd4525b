"""What is kept was made in torch's inference mode, and could not be written to outside of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
import torch

from spacy_elmo import load_bilm, save_bilm
from spacy_elmo.bilm import encode
from spacy_elmo.bilm.adaptive import AdaptiveSoftmax
from spacy_elmo.bilm.cuda import CudaStacks
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.bilm.stacks import make_stacks
from spacy_elmo.layers.bilm_model import random_bilm
from spacy_elmo.weights import load_softmax, save_softmax
from tests.pipeline.toys import examples, getter, listener, tagger_config
from tests.weights.offering import install

from ..bilm.twins import make_bilm, numpy_twin

TF_CHECKPOINT = Path(__file__).parents[1] / "weights" / "fixtures" / "tf_checkpoint"


@pytest.mark.parametrize("make", [make_stacks, CudaStacks])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_call_in_inference_mode_and_one_outside(
    precision: str, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "make_stacks", make)
    bilm = make_bilm(1)
    with torch.inference_mode():
        bilm.encode([["The", "cat"]], precision=precision)  # type: ignore[arg-type]
    for words in (["The", "dog"], [f"w{i}" for i in range(1500)]):
        (found,) = bilm.encode([words], precision=precision)  # type: ignore[arg-type]
        assert torch.isfinite(found).all()
    bilm.forget_words()
    with torch.inference_mode():
        (inside,) = bilm.encode([["a", "dog"]], precision=precision)  # type: ignore[arg-type]
    (outside,) = bilm.encode([["a", "dog"]], precision=precision)  # type: ignore[arg-type]
    torch.testing.assert_close(inside, outside, rtol=0, atol=1e-6)


def test_a_carried_state_goes_on_outside() -> None:
    bilm = make_bilm(2)
    batches = [[["The", "cat"]], [["sat", "on"], ["a", "mat"]], [["."], ["!"]]]
    expected = numpy_twin(bilm).encode_carried(batches)
    with torch.inference_mode():
        first = bilm.encode(batches[0], "carry")
    second = bilm.encode(batches[1], "carry")
    with torch.inference_mode():
        third = bilm.encode(batches[2], "carry")
    for found, wanted in zip((first, second, third), expected, strict=True):
        for tensor, array in zip(found, wanted, strict=True):
            torch.testing.assert_close(tensor.double(), torch.from_numpy(array), rtol=0, atol=1e-5)


def test_what_is_loaded_in_inference_mode_can_be_trained(tmp_path: Path) -> None:
    bilm = random_bilm(lstm_dim=8, projection_dim=4)
    save_bilm(bilm, tmp_path / "native")
    save_bilm(bilm, tmp_path / "hdf5", format="bilm-hdf5")
    nlp: Any = spacy.blank("xx")
    nlp.add_pipe("elmo").load_weights(bilm)
    data = nlp.to_bytes()
    again: Any = spacy.blank("xx")
    again.add_pipe("elmo")
    with torch.inference_mode():
        loaded = [load_bilm(tmp_path / name) for name in ("native", "hdf5")]
        again.from_bytes(data)
    for one in (*loaded, again.get_pipe("elmo").bilm):
        assert not any(parameter.is_inference() for parameter in one.parameters())
        for name, value in one.state_dict().items():
            assert torch.equal(value, bilm.state_dict()[name])


def test_built_in_weights_that_were_first_used_in_inference_mode_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_bilm(random_bilm(lstm_dim=8, projection_dim=4), tmp_path / "weights")
    install(tmp_path, monkeypatch, "xx", tmp_path / "weights")
    nlp: Any = spacy.blank("xx")
    elmo = nlp.add_pipe("elmo", config={"frozen": False})
    nlp.add_pipe("tagger", config=tagger_config(listener(elmo_dropout=0.0)))
    with torch.inference_mode():
        elmo.predict([nlp.make_doc("Ann went to Rome .")])
    optimizer = nlp.initialize(getter(nlp))
    before = elmo.bilm.forward_lstm.layers[0].kernel.detach().clone()
    for _ in range(5):
        nlp.update(examples(nlp), sgd=optimizer, losses={})
    assert not torch.equal(elmo.bilm.forward_lstm.layers[0].kernel, before)


@pytest.mark.parametrize("kind", ["full", "adaptive", "TensorFlow"])
def test_an_output_layer_is_float32_and_can_be_trained(kind: str, tmp_path: Path) -> None:
    folder = TF_CHECKPOINT
    if kind != "TensorFlow":
        folder = tmp_path
        made = FullSoftmax(9, 4) if kind == "full" else AdaptiveSoftmax(9, 4, cutoffs=[2, 5], div_value=1.5)
        save_softmax(made.initialize(1), folder)
    usual = load_softmax(folder)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            softmax = load_softmax(folder)
    finally:
        torch.set_default_dtype(torch.float32)
    for parameter, expected in zip(softmax.parameters(), usual.parameters(), strict=True):
        assert not parameter.is_inference()
        assert parameter.dtype is torch.float32
        assert torch.equal(parameter, expected)
