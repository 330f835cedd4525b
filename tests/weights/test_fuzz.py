"""Damaged files of every format, 200 each: what comes out is a biLM or a WeightsError, soon, and in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .fuzz import FORMATS

pytest.importorskip("h5py")

COUNT = 200


@pytest.fixture(scope="module")
def reports(root: Path) -> dict[str, Any]:
    # One process for all: it imports torch once.
    done = subprocess.run(
        [sys.executable, "-m", "tests.weights.fuzz", str(COUNT)], cwd=root, capture_output=True, text=True
    )
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, f"ended with {done.returncode} after {list(found)}: {done.stderr[-2000:]}"
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_only_weights_errors_come_out(format: str, reports: dict[str, Any]) -> None:
    report = reports[format]
    assert report["other"] == []
    assert report["loaded"] + report["refused"] == COUNT
    assert report["refused"] >= COUNT / 4  # damage is met, not passed by
    assert report["longest"] < 2.0  # CPU seconds; a whole file takes a hundredth of that
    assert report["grown_mb"] < 100
