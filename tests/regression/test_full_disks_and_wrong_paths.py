"""A full disk ended the interpreter (h5py) or gave a bare OSError, as did names too long, and files as folders."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from spacy_elmo import BiLM, BiLMConfig, load_bilm, save_bilm
from spacy_elmo.bilm.softmax import FullSoftmax
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import (
    load_bilm_hdf5,
    load_native,
    load_softmax,
    load_vocabulary,
    save_bilm_hdf5,
    save_softmax,
    save_token_embeddings,
    save_vocabulary,
)

MARKS = ["<S>", "</S>", "<UNK>"]
ROOM = 128 * 1024  # bytes on the disk that gets full


def bilm(dim: int) -> BiLM:
    return BiLM(BiLMConfig(lstm_dim=dim, projection_dim=dim, filters=((1, 4),), char_dim=2)).initialize(dim)


# name: (save something that fits or does not fit into a folder, load it)
SAVES: dict[str, tuple[Callable[[bool, Path], object], Callable[[Path], torch.Tensor | list[str]]]] = {
    "native": (
        lambda large, folder: save_bilm(bilm(64 if large else 4), folder),
        lambda folder: load_bilm(folder).state_dict()["forward_lstm.layers.0.kernel"],
    ),
    "hdf5": (
        lambda large, folder: save_bilm_hdf5(bilm(64 if large else 4), folder),
        lambda folder: load_bilm(folder).state_dict()["forward_lstm.layers.0.kernel"],
    ),
    "softmax": (
        lambda large, folder: save_softmax(FullSoftmax(5000 if large else 5, 8).initialize(0), folder),
        lambda folder: load_softmax(folder).stored()["W"],
    ),
    "token embeddings": (
        lambda large, folder: save_token_embeddings(
            bilm(4), [*MARKS, *(f"word {n}" for n in range(50_000 if large else 5))], folder
        ),
        lambda folder: load_vocabulary(folder / "vocabulary.txt"),
    ),
    "vocabulary": (
        lambda large, folder: save_vocabulary(
            [*MARKS, *(f"word {n}" for n in range(50_000 if large else 5))], folder / "vocabulary.txt"
        ),
        lambda folder: load_vocabulary(folder / "vocabulary.txt"),
    ),
}


@pytest.fixture(params=list(SAVES))
def kind(request: pytest.FixtureRequest) -> str:
    if request.param in ("hdf5", "token embeddings"):
        pytest.importorskip("h5py")
    return str(request.param)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of ROOM bytes, where the tests may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder)]
    try:
        mounted = sys.platform == "linux" and subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("may not mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond ROOM bytes: the system refuses the write as on a full disk, and nobody need be root."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def check_refused(kind: str, folder: Path, message: str, limits: AbstractContextManager[None]) -> None:
    """The second save is refused and leaves all files of the first as they are."""
    save, load = SAVES[kind]
    save(False, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with limits, pytest.raises(WeightsError, match=f"cannot be written: {message}") as info:
        save(True, folder)
    assert str(info.value).startswith(str(folder))
    assert ".tmp" not in str(info.value)  # the file that was asked for
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert len(load(folder)) > 0


def test_a_file_that_the_system_cuts_off(kind: str, tmp_path: Path) -> None:
    check_refused(kind, tmp_path, "File too large", small_files())


def test_a_full_disk(kind: str, small_disk: Path) -> None:
    check_refused(kind, small_disk, "No space left on device", nullcontext())


def test_a_disk_that_cannot_be_written(kind: str, small_disk: Path) -> None:
    @contextmanager
    def read_only() -> Iterator[None]:
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        yield

    check_refused(kind, small_disk, "Read-only file system", read_only())
    if kind in ("native", "hdf5"):
        with pytest.raises(WeightsError, match=r"new/folder: cannot be made a folder: Read-only file system"):
            SAVES[kind][0](False, small_disk / "new" / "folder")


def test_a_full_disk_while_options_are_written(small_disk: Path) -> None:
    pytest.importorskip("h5py")
    save_bilm_hdf5(bilm(4), small_disk)
    # Room for the new weights and not for the options beside them.
    needed = (small_disk / "weights.hdf5").stat().st_size // 4096 + 1
    free = os.statvfs(small_disk)
    (small_disk / "ballast").write_bytes(b"0" * 4096 * (free.f_bavail - needed))
    before = (small_disk / "options.json").read_bytes(), (small_disk / "weights.hdf5").read_bytes()
    with pytest.raises(WeightsError, match=r"options\.json: cannot be written: No space left"):
        save_bilm_hdf5(BiLM(replace(bilm(4).config, cell_clip=1.0)).initialize(9), small_disk)
    assert ((small_disk / "options.json").read_bytes(), (small_disk / "weights.hdf5").read_bytes()) == before


LONG = "x" * 300
SAVE_TO: dict[str, Callable[[Path], None]] = {
    "native": lambda path: save_bilm(bilm(4), path),
    "hdf5": lambda path: save_bilm_hdf5(bilm(4), path),
    "softmax": lambda path: save_softmax(FullSoftmax(3, 2), path),
    "vocabulary": lambda path: save_vocabulary(MARKS, path),
}
LOADERS: dict[str, Callable[[Path], object]] = {
    "load_bilm": load_bilm,
    "load_bilm with options": lambda path: load_bilm(path, path),
    "load_bilm_hdf5": lambda path: load_bilm_hdf5(path, path),
    "load_native": load_native,
    "load_softmax": load_softmax,
    "load_vocabulary": load_vocabulary,
}


@pytest.mark.parametrize("saved", list(SAVE_TO))
@pytest.mark.parametrize("name", [LONG, "a\0b", "\ud800"])
def test_names_that_no_file_can_have(saved: str, name: str, tmp_path: Path) -> None:
    if saved == "hdf5":
        pytest.importorskip("h5py")
    with pytest.raises(WeightsError, match=r": cannot be (written|made a folder): (File name too long|no file can)"):
        SAVE_TO[saved](tmp_path / name)
    with pytest.raises(WeightsError, match=r"cannot be .*: (File name too long|no file can|there is)"):
        SAVE_TO[saved](tmp_path / name / "model")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("loader", list(LOADERS))
@pytest.mark.parametrize("name", [LONG, "a\0b", "\ud800", "loop", "none", "file/none"])
def test_loading_from_what_is_no_file(loader: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / name, tmp_path / name / "options.json", tmp_path / name / "model.safetensors"):
        with pytest.raises(WeightsError, match=r"no such file|cannot be read: "):
            LOADERS[loader](path)


@pytest.mark.parametrize("saved", list(SAVE_TO))
def test_a_file_where_a_folder_is_needed(saved: str, tmp_path: Path) -> None:
    if saved == "hdf5":
        pytest.importorskip("h5py")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(WeightsError, match=r"file/model: cannot be .*(a file of that name|file is not a folder)"):
        SAVE_TO[saved](tmp_path / "file" / "model")
    assert (tmp_path / "file").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("saved", ["softmax", "vocabulary"])
def test_a_folder_that_is_missing_is_named(saved: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no/file\.txt: cannot be written: there is no folder .*/no$"):
        SAVE_TO[saved](tmp_path / "no" / "file.txt")


@pytest.mark.parametrize(
    ("saved", "name"),
    [
        ("native", "model.safetensors"),
        ("native", "config.json"),
        ("native", "vocabulary.json"),
        ("hdf5", "weights.hdf5"),
        ("hdf5", "options.json"),
        ("softmax", "softmax.safetensors"),
        ("vocabulary", ""),
    ],
)
def test_a_folder_where_a_file_is_needed(saved: str, name: str, tmp_path: Path) -> None:
    if saved == "hdf5":
        pytest.importorskip("h5py")
    folder = tmp_path / "model"
    (folder / name).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(WeightsError, match=f"{name}: is a folder where a file was expected"):
        SAVE_TO[saved](folder)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def somebody() -> Iterator[None]:
    """A user for whom permissions count: they do not for root."""
    if not hasattr(os, "seteuid"):
        pytest.skip("has no such permissions")
    user = os.geteuid()
    os.seteuid(user or 65534)
    yield
    os.seteuid(user)


@pytest.mark.usefixtures("somebody")
@pytest.mark.parametrize("mode", [0o000, 0o100, 0o400], ids=["nothing", "no list", "list only"])
def test_a_folder_that_may_not_be_read(mode: int) -> None:
    with tempfile.TemporaryDirectory() as name:  # not in tmp_path, which may be root's
        folder = Path(name) / "model"
        save_bilm(bilm(4), folder)
        (folder / "model.safetensors").rename(folder / "elsewhere.hdf5")
        folder.chmod(mode)
        try:
            for path in (folder / "model.safetensors", folder / "options.json", folder / "elsewhere.hdf5"):
                with pytest.raises(WeightsError):
                    load_bilm(path)
            with pytest.raises(WeightsError, match="cannot be read: Permission denied"):
                load_bilm(folder)
            with pytest.raises(WeightsError, match="Permission denied"):
                save_bilm(bilm(4), folder)
        finally:
            folder.chmod(0o700)
