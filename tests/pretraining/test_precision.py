from __future__ import annotations

import io
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spacy_elmo.errors import PretrainingError
from spacy_elmo.pretraining import precision
from spacy_elmo.pretraining.checkpoint import load_checkpoint, step_folder
from spacy_elmo.pretraining.loop import pretrain
from spacy_elmo.pretraining.precision import (
    bfloat16_gain,
    chosen_precision,
    has_bfloat16_units,
    onednn_products,
    onednn_switch,
    products_are_exact,
)

from .conftest import MakeConfig

SWITCH: Any = onednn_switch()
needs_switch = pytest.mark.skipif(SWITCH is None, reason="this torch has no switch for oneDNN's products")


@needs_switch
def test_the_switch_is_on_in_the_block_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "products_are_exact", lambda: True)
    before = SWITCH.fp32_precision
    assert before != "bf16"
    with onednn_products(True) as products:
        assert products == "float32 products by oneDNN"
        assert SWITCH.fp32_precision == "bf16"
    assert SWITCH.fp32_precision == before
    with pytest.raises(ZeroDivisionError), onednn_products(True):
        assert 1 / 0
    assert SWITCH.fp32_precision == before


@needs_switch
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("values", list(product(("none", "ieee", "tf32", "bf16"), repeat=3)), ids="-".join)
def test_the_switch_follows_those_above_it_afterwards_if_it_did(
    monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...], exact: bool
) -> None:
    monkeypatch.setattr(precision, "products_are_exact", lambda: exact)
    switches = [*(type(SWITCH)(backend, "all") for backend in ("generic", "mkldnn")), SWITCH]

    def shown() -> list[list[str]]:
        """Values from the top down, as they are, and with each turned in its turn."""
        seen = [[switch.fp32_precision for switch in switches]]
        for switch, value in zip(switches, values, strict=True):
            for other in ("ieee", "bf16"):
                switch.fp32_precision = other
                seen.append([switch.fp32_precision for switch in switches])
            switch.fp32_precision = value
        return seen

    try:
        for switch, value in zip(switches, values, strict=True):
            switch.fp32_precision = value
        before = shown()
        with onednn_products(True):
            assert SWITCH.fp32_precision == "bf16" or not exact
        assert shown()[:5] == before[:5]
    finally:
        for switch in switches:
            switch.fp32_precision = "none"


@needs_switch
def test_a_processor_that_would_lose_digits_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "products_are_exact", lambda: False)
    before = SWITCH.fp32_precision
    with onednn_products(True) as products:
        assert products is not None
        assert products.startswith("without oneDNN")
        assert "bfloat16" in products
        assert SWITCH.fp32_precision == before
    assert SWITCH.fp32_precision == before


def test_unasked_for_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(precision, "onednn_switch")
    with onednn_products(False) as products:
        assert products is None


def test_an_old_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "onednn_switch", lambda: None)
    with onednn_products(True) as products:
        assert products is not None
        assert "needs a torch" in products


def test_lost_digits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert products_are_exact()
    product = torch.Tensor.__matmul__

    def rounded(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        if left.dtype != torch.float32:
            return product(left, right)
        return product(left.bfloat16().to(left.dtype), right.bfloat16().to(right.dtype))

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "__matmul__", rounded)
        assert not products_are_exact()


def run(config: Any, output: Path) -> tuple[list[float], str]:
    stdout = io.StringIO()
    pretrain(config, output, stdout=stdout, stderr=io.StringIO())
    lines = (output / "losses.jsonl").read_text(encoding="utf8").splitlines()
    return [json.loads(line)["loss"] for line in lines], stdout.getvalue()


@needs_switch
def test_a_run_says_what_it_multiplies_with_and_leaves_no_switch_behind(
    toy_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = SWITCH.fp32_precision
    seen: list[str] = []
    exact = products_are_exact

    def watched() -> bool:
        seen.append(SWITCH.fp32_precision)
        return exact()

    monkeypatch.setattr(precision, "products_are_exact", watched)
    plain, text = run(toy_config(training__max_steps=3, training__onednn=False), tmp_path / "plain")
    assert "precision   float32\n" in text
    assert seen == []
    losses, text = run(toy_config(training__max_steps=3, training__onednn=True), tmp_path / "onednn")
    assert "precision   float32, float32 products by oneDNN\n" in text or "float32, without oneDNN" in text
    assert seen == ["bf16"]
    assert losses == pytest.approx(plain, abs=1e-4)
    with pytest.raises(PretrainingError, match="a run already"):
        run(toy_config(training__onednn=True), tmp_path / "onednn")
    assert SWITCH.fp32_precision == before


@needs_switch
def test_a_run_that_fails_leaves_no_switch_behind(toy_config: MakeConfig, tmp_path: Path) -> None:
    before = SWITCH.fp32_precision
    with pytest.raises(PretrainingError, match=r"not finite|loss at step"):
        run(
            toy_config(training__onednn=True, optimizer={"@misc": "spacy-elmo.adagrad.v1", "learn_rate": 1e38}),
            tmp_path / "out",
        )
    assert SWITCH.fp32_precision == before


def curves(toy_config: MakeConfig, folder: Path, steps: int, **options: Any) -> np.ndarray:
    """The losses of a run in float32 and of one in bfloat16, smoothed over 20 steps: (2, steps - 19)."""
    smoothed = []
    for name in ("float32", "bfloat16"):
        settings = {"training__precision": name, "training__onednn": False, "training__max_steps": steps}
        config = toy_config(training__eval_frequency=steps, **settings, **options)
        losses, text = run(config, folder / name)
        assert f"precision   {name}\n" in text
        smoothed.append(np.convolve(losses, np.ones(20) / 20, mode="valid"))
    return np.stack(smoothed)


def test_the_loss_falls_in_bfloat16_as_in_float32(toy_config: MakeConfig, tmp_path: Path) -> None:
    wide, narrow = curves(toy_config, tmp_path, 60)
    assert wide[-1] < 0.8 * wide[0]
    assert np.abs(narrow - wide).mean() < 0.002
    assert np.abs(narrow - wide).max() > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["sampled", "full"])
def test_the_loss_curve_of_500_steps_in_bfloat16(toy_config: MakeConfig, tmp_path: Path, objective: str) -> None:
    block: dict[str, Any] = {"@misc": f"spacy-elmo.{objective}_softmax.v1"}
    sizes = {"lstm_dim": 64, "projection_dim": 16, "filters": [[1, 8], [2, 16], [3, 16]]}
    options = {f"model__{name}": value for name, value in sizes.items()}
    wide, narrow = curves(toy_config, tmp_path, 500, objective=block, **options)
    assert np.abs(narrow - wide).mean() < 0.005
    assert narrow[-1] == pytest.approx(wide[-1], abs=0.01)


def processor(monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], gain: float) -> None:
    """Let this be one with these capabilities, so many times as fast in bfloat16."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    monkeypatch.setattr(precision, "bfloat16_gain", lambda: gain)


@pytest.mark.parametrize(
    ("capabilities", "units"),
    [
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
        ({"bf16": True}, True),
        ({"avx2": True}, False),
        ({}, False),
    ],
)
def test_auto_is_bfloat16_where_the_processor_has_units_that_are_faster(
    capabilities: dict[str, bool], units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    for gain in (0.6, 1.05, 2.0):
        processor(monkeypatch, capabilities, gain)
        assert has_bfloat16_units(cpu) is units
        assert chosen_precision("auto", cpu) == ("bfloat16" if units and gain == 2.0 else "float32")
        assert chosen_precision("float32", cpu) == "float32"
        assert chosen_precision("bfloat16", cpu) == "bfloat16"


def test_the_gain_of_bfloat16_is_measured_once_and_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    bfloat16_gain.cache_clear()
    # Eight rounds, float32 first: each product takes a second, of bfloat16 the fifth a quarter of one.
    seconds = [second for number in range(8) for second in (1.0, 0.25 if number == 4 else 1.0)]
    readings = iter([reading for second in seconds for reading in (0.0, second)])
    monkeypatch.setattr(precision.time, "perf_counter", lambda: next(readings))
    before = torch.random.get_rng_state()
    assert [bfloat16_gain(), bfloat16_gain()] == [4.0, 4.0]
    assert torch.equal(torch.random.get_rng_state(), before)
    monkeypatch.undo()
    bfloat16_gain.cache_clear()
    assert 0.01 < bfloat16_gain() < 100


def test_what_auto_became_is_stored_and_a_resume_elsewhere_says_so(
    toy_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"

    def go_on(units: bool, steps: int) -> tuple[str, dict[str, Any]]:
        processor(monkeypatch, {"avx512_bf16": units}, 2.0)
        stdout = io.StringIO()
        config = toy_config(training__max_steps=steps, training__precision="auto", training__schedule="constant")
        pretrain(config, output, resume=True, stdout=stdout, stderr=io.StringIO())
        return stdout.getvalue(), load_checkpoint(step_folder(output / "checkpoints", steps)).record

    text, record = go_on(True, 2)
    assert "steps before" not in text
    assert (record["precision"], record["config"]["training"]["precision"]) == ("bfloat16", "auto")
    assert json.loads((output / "model-last" / "meta.json").read_text(encoding="utf8"))["precision"] == "bfloat16"
    assert "\n| precision | bfloat16 |\n" in (output / "model-last" / "README.md").read_text(encoding="utf8")
    text, record = go_on(False, 4)
    assert "The steps before were made in bfloat16, those from here on are made in float32" in text
    assert "--training.precision bfloat16" in text
    assert record["precision"] == "float32"
    text, _ = go_on(False, 5)
    assert "steps before" not in text


@pytest.mark.parametrize(("units", "same"), [(True, "bfloat16"), (False, "float32")])
def test_a_run_in_auto_is_the_run_in_what_it_stands_for(
    units: bool, same: str, toy_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(monkeypatch, {"avx512_bf16": units}, 2.0)
    losses = {}
    for asked in ("auto", same):
        stdout = io.StringIO()
        config = toy_config(training__max_steps=4, training__precision=asked)
        pretrain(config, tmp_path / asked, stdout=stdout, stderr=io.StringIO())
        assert re.search(rf"^precision +{same}", stdout.getvalue(), re.MULTILINE)
        losses[asked] = [json.loads(line)["loss"] for line in (tmp_path / asked / "losses.jsonl").open()]
    assert losses["auto"] == losses[same]
