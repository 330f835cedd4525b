from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import Result

from spacy_elmo import load_bilm

Call = Callable[..., Result]


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    for name, text in (("a.txt", "Ann ( sees ) US .\n\n"), ("b.txt", "Bob hears us .")):
        (tmp_path / name).write_text(text, encoding="utf8")
    return [tmp_path / "a.txt", tmp_path / "b.txt"]


def test_vectors_of_several_files(call: Call, model: Path, texts: list[Path], tmp_path: Path) -> None:
    result = call("embed", *texts, tmp_path / "v.npz", "--weights", model)
    assert result.exit_code == 0, result.output
    assert result.output.split() == f"3 sentences, 10 words: {tmp_path / 'v.npz'}".split()
    right = load_bilm(model).encode([["Ann", "(", "sees", ")", "US", "."], [], ["Bob", "hears", "us", "."]])
    with np.load(tmp_path / "v.npz") as file:
        for number, layers in enumerate(right):
            np.testing.assert_allclose(file[str(number)], layers.numpy(), atol=1e-6)


def test_all_options(call: Call, model: Path, texts: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    options = "--layers 1 --dtype float16 --precision bfloat16 --pretokenized --lang de --batch 3 --state zero"
    more = ["--text", "spacy-elmo.ptb_brackets.v1", "--no-resume", "--force"]
    (tmp_path / "v.h5").write_bytes(b"old")
    result = call("embed", *texts, tmp_path / "v.h5", "--weights", model, *options.split(), *more)
    assert result.exit_code == 0, result.output
    import h5py

    bilm = load_bilm(model)
    right = bilm.encode([["Ann", "-LRB-", "sees", "-RRB-", "US", "."]], "zero", precision="bfloat16")[0][1]
    with h5py.File(tmp_path / "v.h5", "r") as file:
        assert file["0"].dtype == np.float16
        np.testing.assert_allclose(file["0"][...], right.numpy(), rtol=2e-3, atol=2e-6)
        assert [file[str(number)].shape[0] for number in range(3)] == [6, 0, 4]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["none.txt", "v.npz"], "none.txt cannot be read"),
        (["a.txt", "v.txt"], "files named .h5"),
        (["a.txt", "v.npz", "--layers", "9"], "not 9"),
        (["a.txt", "v.npz", "--layers", "low"], "not 'low'"),
        (["a.txt", "v.npz", "--text", "upper"], "not 'upper'"),
        (["a.txt", "v.npz", "--dtype", "int8"], "not 'int8'"),
        (["a.txt", "b.txt"], "files named .h5"),
    ],
)
def test_what_is_wrong_is_one_line(
    call: Call,
    model: Path,
    texts: list[Path],
    tmp_path: Path,
    wrong: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("embed", *wrong, "--weights", model)
    assert result.exit_code == 1
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_weights_have_to_be_given(call: Call, texts: list[Path], tmp_path: Path) -> None:
    result = call("embed", *texts, tmp_path / "v.npz")
    assert result.exit_code == 2


def test_a_missing_library_is_named(
    call: Call, model: Path, texts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library, extra, name in (("h5py", "hdf5", "v.h5"), ("pyarrow", "parquet", "v.parquet")):
        monkeypatch.setitem(sys.modules, library, None)
        result = call("embed", *texts, tmp_path / name, "--weights", model)
        assert result.exit_code == 1
        assert f'pip install "spacy-elmo[{extra}]"' in " ".join(result.output.split())


def test_the_command_runs_in_a_process_of_its_own(model: Path, texts: list[Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spacy", "elmo", "embed", *map(str, texts), str(tmp_path / "v.npz")]
    done = subprocess.run([*command, "--weights", str(model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "3 sentences, 10 words" in done.stdout
    assert done.stderr == ""
