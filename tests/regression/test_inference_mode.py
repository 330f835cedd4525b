"""What is kept from call to call was made in torch's inference mode, and could not be written to outside of it."""

from __future__ import annotations

import pytest
import torch

from ..bilm.twins import make_bilm, numpy_twin


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_call_in_inference_mode_and_one_outside(precision: str) -> None:
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
