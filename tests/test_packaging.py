"""What is built where there is a C compiler, where there is none, and where nothing compiled is wanted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from spacy_elmo import save_bilm
from spacy_elmo.layers.bilm_model import random_bilm

pytest.importorskip("setuptools", minversion="70.1", reason="needs setuptools, which builds wheels from 70.1 on")

COMPILES = (
    sys.platform != "win32"
    and shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is not None
    and Path(sysconfig.get_path("include"), "Python.h").is_file()
)
SOURCE = "spacy_elmo/bilm/_cell.c"


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """The project's files without what was built in them."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(root / name, copy / name)
    for name in ("spacy_elmo", "configs"):
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return copy


def build(checkout: Path, what: str, **environment: str) -> Path:
    """Call the hook of the build system that pip calls. RETURNS: the file that it made."""
    program = f"from setuptools import build_meta; build_meta.build_{what}('dist')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=checkout,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [made] = (checkout / "dist").iterdir()
    return made


def compiled_parts(wheel: Path) -> list[str]:
    """Names of shared libraries in a wheel, which must hold the package and not its C source."""
    names = zipfile.ZipFile(wheel).namelist()
    assert "spacy_elmo/bilm/cell.py" in names
    assert "spacy_elmo/py.typed" in names
    assert not [name for name in names if name.endswith(".c")]
    return [name for name in names if name.endswith((".so", ".pyd"))]


# Imports the package out of an unpacked wheel.
STEP = """
import torch, spacy_elmo
from spacy_elmo.bilm import cell
c, m = torch.ones(2, 3), torch.empty(2, 3)
cell.infer(torch.zeros(2, 12), c, m, None)
print(spacy_elmo.__file__, cell.compiled(), c.tolist()[0])
"""


def step_of(wheel: Path, folder: Path) -> list[str]:
    """Run a step with the package of a wheel. RETURNS: whether it was the compiled one, and its result."""
    zipfile.ZipFile(wheel).extractall(folder)
    environment = {**os.environ, "PYTHONPATH": str(folder), "SPACY_ELMO_COMPILED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STEP], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    path, *rest = done.stdout.split(maxsplit=2)
    assert Path(path).is_relative_to(folder)
    return [part.strip() for part in rest]


@pytest.mark.skipif(not COMPILES, reason="needs a C compiler and Python's headers")
def test_a_wheel_holds_the_compiled_part(checkout: Path, tmp_path: Path) -> None:
    wheel = build(checkout, "wheel")
    [name] = compiled_parts(wheel)
    assert name.startswith("spacy_elmo/bilm/_cell.")
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        # One for all Pythons from 3.10 on.
        assert name == "spacy_elmo/bilm/_cell.abi3.so"
        assert "-cp310-abi3-" in wheel.name
    assert step_of(wheel, tmp_path / "unpacked") == ["True", "[0.5, 0.5, 0.5]"]


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is compiled on Windows")
def test_a_compiler_that_fails_costs_the_compiled_part_alone(checkout: Path, tmp_path: Path) -> None:
    wheel = build(checkout, "wheel", CC="/bin/false")
    assert compiled_parts(wheel) == []
    assert step_of(wheel, tmp_path / "unpacked") == ["False", "[0.5, 0.5, 0.5]"]


def test_a_pure_wheel_is_built_on_demand(checkout: Path) -> None:
    wheel = build(checkout, "wheel", SPACY_ELMO_COMPILED="0")
    assert compiled_parts(wheel) == []
    assert wheel.name.endswith("-py3-none-any.whl")


@pytest.mark.parametrize("compiled", ["0", "1"])
def test_the_sdist_holds_the_source_of_the_compiled_part(checkout: Path, compiled: str) -> None:
    with tarfile.open(build(checkout, "sdist", SPACY_ELMO_COMPILED=compiled)) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"setup.py", SOURCE} <= set(names)


@pytest.mark.slow
def test_a_folder_and_an_entry_point_put_weights_into_the_wheel(checkout: Path, tmp_path: Path) -> None:
    folder = checkout / "spacy_elmo" / "models" / "tlh"
    save_bilm(random_bilm(lstm_dim=8, projection_dim=4, filters=[[1, 4]], char_dim=2), folder, dtype="float16")
    (folder / "__init__.py").write_text('"""Data."""\n', encoding="utf8")
    (folder / "meta.json").write_text("{}\n", encoding="utf8")
    for name in ("README.md", "LICENSE", "pretrain.cfg", "softmax.safetensors", "vocabulary.txt"):
        (folder / name).write_text("What it says.\n", encoding="utf8")
    setup, mark = checkout / "setup.cfg", "spacy_elmo_weights =\n"
    text = setup.read_text(encoding="utf8")
    assert text.count(mark) == 1
    setup.write_text(text.replace(mark, f"{mark}    tlh = spacy_elmo.models.tlh\n"), encoding="utf8")
    wheel = zipfile.ZipFile(build(checkout, "wheel", SPACY_ELMO_COMPILED="0"))
    wheel.extractall(tmp_path / "unpacked")
    code = "import spacy_elmo; print(spacy_elmo.__file__, spacy_elmo.load_bilm('tlh').config.width)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "unpacked")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    path, width = done.stdout.split()
    assert Path(path).is_relative_to(tmp_path / "unpacked")
    assert width == "8"
    names = {name.rsplit("/", 1)[1] for name in wheel.namelist() if name.startswith("spacy_elmo/models/tlh/")}
    data = {"README.md", "LICENSE", "config.json", "meta.json", "model.safetensors", "pretrain.cfg"}
    assert names == {"__init__.py", *data}
    licences = {name.partition(".dist-info/licenses/")[2] for name in wheel.namelist() if "/licenses/" in name}
    assert {"LICENSE", "spacy_elmo/models/tlh/LICENSE"} <= licences
