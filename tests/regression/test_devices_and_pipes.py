"""Devices were read until the memory was full, and pipes waited for, for ever."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from spacy_elmo import load_bilm
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import load_softmax, load_vocabulary, summary
from tests.weights.many_langs_folder import write_model
from tests.weights.writers import Model, write_hdf5_model

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with a name")


def zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def null(path: Path) -> None:
    path.symlink_to(os.devnull)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def unix_socket(path: Path) -> None:
    # The name that it is made under may have 108 characters at most.
    with socket.socket(socket.AF_UNIX) as one, tempfile.TemporaryDirectory() as folder:
        one.bind(f"{folder}/s")
        shutil.move(f"{folder}/s", path)


KINDS = [zeros, null, pipe, unix_socket]
WHAT = "is a device, a pipe or a socket where a file was expected"
V01 = Path(__file__).resolve().parents[1] / "weights" / "fixtures" / "v0.1"
CHECKPOINT = V01.with_name("tf_checkpoint")


def many_langs(folder: Path) -> None:
    write_model(folder)


def hdf5(folder: Path) -> None:
    pytest.importorskip("h5py")
    write_hdf5_model(folder, Model())


def native(folder: Path) -> None:
    shutil.copytree(V01 / "characters", folder, dirs_exist_ok=True)


def checkpoint(folder: Path) -> None:
    shutil.copytree(CHECKPOINT, folder, dirs_exist_ok=True)


FILES: list[tuple[Callable[[Path], None], str]] = [
    (native, "model.safetensors"),
    (native, "config.json"),
    (hdf5, "options.json"),
    (hdf5, "weights.hdf5"),
    (checkpoint, "options.json"),
    (checkpoint, "model.ckpt-7.index"),
    (checkpoint, "model.ckpt-7.data-00000-of-00001"),
    (many_langs, "config.json"),
    (many_langs, "cnn_sizes.json"),
    (many_langs, "char.dic"),
    (many_langs, "encoder.pkl"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("write", "name"), FILES)
def test_no_part_of_weights_is_a_device(
    write: Callable[[Path], None], name: str, kind: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path)
    (tmp_path / name).unlink()
    kind(tmp_path / name)
    with pytest.raises(WeightsError, match=WHAT):
        load_bilm(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_beside_weights(kind: Callable[[Path], None], tmp_path: Path) -> None:
    native(tmp_path)
    for name in ("softmax.safetensors", "vocabulary.txt"):
        (tmp_path / name).unlink()
        kind(tmp_path / name)
    kind(tmp_path / "meta.json")
    kind(tmp_path / "alone")
    load_bilm(tmp_path)
    problems = summary(tmp_path).problems
    assert sum(WHAT in problem for problem in problems) == len(problems) == 2
    for load, name in ((load_softmax, ""), (load_vocabulary, "vocabulary.txt"), (load_bilm, "alone")):
        with pytest.raises(WeightsError, match=WHAT):
            load(tmp_path / name)


@pytest.mark.parametrize("kind", KINDS)
def test_a_latest_checkpoint_that_is_a_device_is_not_read(kind: Callable[[Path], None], tmp_path: Path) -> None:
    checkpoint(tmp_path)
    (tmp_path / "checkpoint").unlink()
    kind(tmp_path / "checkpoint")
    load_bilm(tmp_path)


def test_a_text_with_a_hole_of_gigabytes(tmp_path: Path) -> None:
    native(tmp_path)
    with (tmp_path / "config.json").open("rb+") as file:
        file.truncate(2**36)
    with pytest.raises(WeightsError, match=r"config\.json: has 68719476736 bytes, but a text here has 1048576 at"):
        load_bilm(tmp_path)
