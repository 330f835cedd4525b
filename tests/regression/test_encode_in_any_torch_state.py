"""A caller's autocast rounded float32's products, and what was cached of them; other defaults were a crash."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import spacy
import torch

from spacy_elmo import load_bilm, save_bilm
from spacy_elmo.bilm import encode as encode_module
from spacy_elmo.bilm.config import BiLMConfig
from spacy_elmo.bilm.cuda import CudaStacks
from spacy_elmo.bilm.encode import encode
from spacy_elmo.bilm.matmul import Precision, onednn_works
from spacy_elmo.bilm.model import BiLM
from spacy_elmo.bilm.stacks import make_stacks
from spacy_elmo.errors import ElmoError
from spacy_elmo.pipeline.elmo import Elmo
from spacy_elmo.weights import save_token_embeddings

SENTENCES = [["the", "bank", "of", "the", "river"], ["bank"]]


@pytest.fixture
def bilm() -> BiLM:
    return BiLM(BiLMConfig(lstm_dim=64, projection_dim=16, filters=((1, 8), (2, 8)))).initialize(0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_autocast_of_the_caller_changes_nothing(bilm: BiLM, dtype: torch.dtype, precision: Precision) -> None:
    want = copy.deepcopy(bilm).encode(SENTENCES, precision=precision)
    with torch.autocast("cpu", dtype):
        inside = bilm.encode(SENTENCES, precision=precision)
    after = bilm.encode(SENTENCES, precision=precision)
    for one, two, three in zip(want, inside, after, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("n", [5, 600])  # 600: in windows
def test_any_default_dtype(bilm: BiLM, dtype: torch.dtype, n: int) -> None:
    nlp = spacy.blank("en")
    elmo = cast(Elmo, nlp.add_pipe("elmo"))
    elmo.load_weights(bilm)
    text = "bank " * n
    want = nlp(text)._.elmo.layers
    bilm.forget_words()
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = nlp(text)._.elmo.layers
    finally:
        torch.set_default_dtype(default)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("n", [5, 600])
def test_weights_of_another_dtype_write_into_float32(bilm: BiLM, n: int) -> None:
    want = bilm.encode([["a"] * n])[0]
    out = torch.zeros_like(want)
    bilm.double().encode([["a"] * n], out=[out])
    torch.testing.assert_close(out, want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("n", [5, 600])
def test_out_of_another_dtype_is_refused(bilm: BiLM, n: int) -> None:
    out = torch.zeros(3, n, 32, dtype=torch.float64)
    with pytest.raises(ElmoError, match=r"torch\.float64 where torch\.float32"):
        bilm.encode([["a"] * n], out=[out])


@pytest.mark.parametrize("setting", ["cache_words", "max_length"])
def test_true_is_no_number(bilm: BiLM, setting: str) -> None:
    with pytest.raises(ElmoError, match=f"{setting} is at least .*True"):
        encode(bilm, [["a"]], **cast(Any, {setting: True}))


@pytest.mark.parametrize("state", [torch.bfloat16, torch.float64, "meta"], ids=str)
def test_weights_are_loaded_as_they_are(bilm: BiLM, tmp_path: Path, state: Any) -> None:
    """They were rounded to a default dtype of bfloat16, for good."""
    save_bilm(bilm, tmp_path / "native")
    save_bilm(bilm, tmp_path / "hdf5", format="bilm-hdf5")
    default = torch.get_default_dtype()
    device: Any = torch.device("meta") if state == "meta" else nullcontext()
    try:
        torch.set_default_dtype(default if state == "meta" else state)
        with device:
            loaded = [load_bilm(tmp_path / name) for name in ("native", "hdf5")]
    finally:
        torch.set_default_dtype(default)
    for one in loaded:
        for name, value in one.state_dict().items():
            assert (value.dtype, value.device.type) == (torch.float32, "cpu")
            assert torch.equal(value, bilm.state_dict()[name])


def test_autocast_does_not_round_token_embeddings(bilm: BiLM, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    found = []
    for enabled in (False, True):
        file = tmp_path / str(enabled) / "tokens.hdf5"
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            save_token_embeddings(bilm, ["the", "bank"], file)
        with h5py.File(file) as opened:
            found.append(opened["embedding"][:])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("make", [make_stacks, CudaStacks])
def test_any_default_device(bilm: BiLM, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with torch.set_default_device("cuda"): what is made without a device lands where nothing else is."""
    monkeypatch.setattr(encode_module, "make_stacks", make)
    want = copy.deepcopy(bilm).encode(SENTENCES)
    with torch.device("meta"):
        found = bilm.encode(SENTENCES)
    for one, two in zip(want, found, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whether_onednn_works_does_not_depend_on_the_default_device(dtype: torch.dtype) -> None:
    """It was found not to, and that was remembered."""
    with torch.device("meta"):
        found = onednn_works.__wrapped__(dtype)
    assert found == onednn_works.__wrapped__(dtype)
