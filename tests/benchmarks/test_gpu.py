"""The GPU's script runs through on a CPU, at the smallest sizes, and says so where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.common.PAUSE", 0.0)


def test_all_rows(capsys: pytest.CaptureFixture[str]) -> None:
    switch = torch.backends.cuda.matmul.allow_tf32
    options = ["--device", "cpu", "--size", "tiny", "--training-size", "tiny", "--batch", "2"]
    gpu.main([*options, "--sentences", "12", "--seconds", "0.001", "--rounds", "2", "--threads", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("no GPU")
    rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines if line.startswith("| ")][2:]
    names = [row[0] for row in rows]
    assert len(names) == len(set(names)) == 3 * 2 + 3 * 3 + 2 + 3
    for row in rows:
        rate, unit = row[1].split()
        assert float(rate.replace(",", "")) > 0
        assert unit == ("products" if "product" in row[0] else "tokens" if "training" in row[0] else "words")
        assert float(row[3].replace(",", "")) > 0
        assert row[4].endswith("%") == (unit != "products")
    assert lines[-1].startswith("float32 on GPU and CPU, tiny: at most 0.0e+00")
    assert torch.backends.cuda.matmul.allow_tf32 == switch


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(SystemExit, match="no CUDA GPU on this machine: nothing was measured"):
        gpu.main(["--threads", "1"])
