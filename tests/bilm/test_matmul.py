from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from spacy_elmo.bilm import matmul
from spacy_elmo.bilm.matmul import Matmul, checked_precision, onednn_works, padded
from spacy_elmo.errors import ElmoError


@pytest.fixture(params=["onednn", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Either way of multiplying; afterwards the choice is made anew."""
    onednn_works.cache_clear()
    if request.param == "plain":
        monkeypatch.setenv("SPACY_ELMO_ONEDNN", "0")
    elif not onednn_works(torch.float32):
        pytest.skip("torch's oneDNN operator does not work here, or is switched off")
    yield request.param
    onednn_works.cache_clear()


@pytest.mark.parametrize(("rows", "inner", "outer"), [(1, 1, 1), (1, 512, 300), (3, 17, 5), (130, 64, 33)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_float32_is_exact(path: str, rows: int, inner: int, outer: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, other, bias = (
        torch.randn(size, generator=generator) for size in ((rows, inner), (inner, outer), (rows, outer), (outer,))
    )
    product = Matmul(weight, bias if with_bias else None)
    assert product.dtype == torch.float32
    exact = x.double() @ weight.double()
    scale = 1e-6 * inner**0.5
    wanted = exact + bias.double() if with_bias else exact
    torch.testing.assert_close(product(x).double(), wanted, rtol=1e-6, atol=scale)
    kept = other.clone()
    torch.testing.assert_close(product.add(other, x).double(), exact + other.double(), rtol=1e-6, atol=scale)
    assert torch.equal(other, kept)


def test_views_are_read_as_they_are(path: str) -> None:
    x, weight = torch.randn(6, 40)[::2, :20], torch.randn(20, 60)[:, 10:50]
    other = torch.randn(3, 80)[:, :40]
    product = Matmul(weight)
    torch.testing.assert_close(product(x), x @ weight)
    torch.testing.assert_close(product.add(other, x), other + x @ weight)


def test_bfloat16_rounds_what_is_multiplied_and_no_more(path: str) -> None:
    x, weight, bias = torch.randn(9, 256), torch.randn(256, 40), torch.randn(40)
    product = Matmul(weight, bias, "bfloat16")
    found = product(x.bfloat16())
    assert product.dtype == found.dtype == torch.bfloat16
    wanted = (x.bfloat16().double() @ weight.bfloat16().double() + bias.bfloat16().double()).float()
    # One rounding of a result: half a unit of eight bits.
    torch.testing.assert_close(found.float(), wanted, rtol=2**-8, atol=1e-3)


def test_padded_numbers_of_rows() -> None:
    for rows in range(1, 2000):
        more = padded(rows)
        assert rows <= more <= max(rows + 1, 1.27 * rows) or rows > 256
        assert more - rows < matmul.PADDING
        assert padded(more) == more
    assert padded(257) == 512


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_any_number_of_rows(path: str, rows: int) -> None:
    product = Matmul(torch.ones(3, 4))
    assert torch.equal(product(torch.ones(rows, 3)), torch.full((rows, 4), 3.0))


def test_other_dtypes_are_multiplied_as_they_are() -> None:
    weight = torch.randn(4, 5, dtype=torch.float64)
    x = torch.randn(2, 4, dtype=torch.float64)
    assert torch.equal(Matmul(weight)(x), x @ weight)


@pytest.mark.parametrize("fault", ["missing", "raises", "wrong", "wrong sum", "nan"])
def test_an_operator_that_is_not_right_is_not_used(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    if fault == "missing":
        monkeypatch.setattr(matmul, "_pack", lambda weight: torch.ops.mkldnn.no_such_operator(weight))
    else:
        monkeypatch.setattr(matmul, "_pack", lambda weight: weight)
        monkeypatch.setattr(matmul, "_linear", lambda x, w, b: x @ w + b)
        monkeypatch.setattr(matmul, "_linear_add", lambda x, other, w: other + x @ w)
    if fault == "raises":
        monkeypatch.setattr(matmul, "_linear_add", lambda x, other, w: x @ w @ w)
    if fault == "wrong":
        monkeypatch.setattr(matmul, "_linear", lambda x, w, b: x @ w)
    if fault == "wrong sum":
        monkeypatch.setattr(matmul, "_linear_add", lambda x, other, w: other + 1.001 * (x @ w))
    if fault == "nan":
        monkeypatch.setattr(matmul, "_linear", lambda x, w, b: x @ w * torch.nan)
    monkeypatch.setenv("SPACY_ELMO_ONEDNN", "1")
    onednn_works.cache_clear()
    assert not onednn_works(torch.float32)
    x, weight = torch.randn(2, 4), torch.randn(4, 5)
    assert torch.equal(Matmul(weight)(x), x @ weight)
    onednn_works.cache_clear()


def test_no_switch_of_the_process_is_touched() -> None:
    onednn_works.cache_clear()
    before = (torch.get_num_threads(), torch.backends.mkldnn.is_available(), torch.get_float32_matmul_precision())
    random_state = torch.get_rng_state()
    onednn_works(torch.float32)
    assert (
        torch.get_num_threads(),
        torch.backends.mkldnn.is_available(),
        torch.get_float32_matmul_precision(),
    ) == before
    assert torch.equal(torch.get_rng_state(), random_state)


def test_precisions_by_name() -> None:
    assert checked_precision("bfloat16") == "bfloat16"
    with pytest.raises(ElmoError, match="precision is one of 'float32', 'bfloat16', not 'fp16'"):
        checked_precision("fp16")
