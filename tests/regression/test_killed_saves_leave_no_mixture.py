"""Saves killed between two files left new weights beside an old config, or an old table beside a new vocabulary."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spacy_elmo import BiLM, BiLMConfig, load_bilm, save_bilm
from spacy_elmo.errors import WeightsError
from spacy_elmo.weights import save_bilm_hdf5

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

# For n = 1, 2, ...: copy the folder of the old model, and save the new one there in a process that dies, with no
# clean-up, just before it opens, renames or removes for the n-th time in that folder. Ends when a save was not killed.
SCRIPT = """
import itertools, os, shutil, sys
from pathlib import Path
from spacy_elmo import load_bilm, save_bilm
from spacy_elmo.weights import save_bilm_hdf5
format, old, new, target = sys.argv[1:]
bilm = load_bilm(new)
def killed_at(n, folder):
    calls = []
    def hook(event, arguments):
        if event in ("open", "os.rename", "os.remove") and folder in str(arguments[0]):
            calls.append(event)
            if len(calls) == n:
                os._exit(9)
    sys.addaudithook(hook)
    (save_bilm if format == "native" else save_bilm_hdf5)(bilm, folder)
for n in itertools.count(1):
    folder = os.path.join(target, str(n))
    shutil.copytree(old, folder) if os.path.exists(old) else os.makedirs(folder)
    child = os.fork()
    if not child:
        try:
            killed_at(n, folder)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 9:
        sys.exit(status)
"""
# State of the saved folder, once it was read: the old model, the new one, or refused with an error.
OLD, NEW, REFUSED = "old", "new", "refused"


def characters(seed: int, **changes: int) -> BiLM:
    fields: dict[str, Any] = {"lstm_dim": 6, "projection_dim": 4, "filters": ((1, 3), (3, 4)), "char_dim": 2}
    return BiLM(BiLMConfig(**{**fields, **changes})).initialize(seed)


def words(seed: int, *words: str) -> BiLM:
    config = BiLMConfig(lstm_dim=6, projection_dim=4, filters=None, n_words=3 + len(words))
    return BiLM(config, vocabulary=["<S>", "</S>", "<UNK>", *words]).initialize(seed)


def equal(found: BiLM, expected: BiLM) -> bool:
    tensors, wanted = found.state_dict(), expected.state_dict()
    return (
        found.config == expected.config
        and found.vocabulary == expected.vocabulary
        and all(torch.equal(tensors[name], tensor) for name, tensor in wanted.items())
    )


def outcomes(format: str, old: BiLM | None, new: BiLM, tmp_path: Path) -> list[str]:
    """What a save leaves that is killed at its first, second, ... step; last: the one that was not killed."""
    save = save_bilm if format == "native" else save_bilm_hdf5
    if old is not None:
        save(old, tmp_path / "old")
    save(new, tmp_path / "new")
    arguments = [format, *(str(tmp_path / name) for name in ("old", "new", "killed"))]
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments], check=True)
    found = []
    for n in range(1, len(list((tmp_path / "killed").iterdir())) + 1):
        folder = tmp_path / "killed" / str(n)
        try:
            bilm = load_bilm(folder)
        except WeightsError as error:
            told = "a save into this folder may have been interrupted" in str(error)
            found.append(REFUSED if told or not any(folder.iterdir()) else str(error))
        else:
            assert equal(bilm, new) or (old is not None and equal(bilm, old)), f"a mixture at step {n}"
            found.append(NEW if equal(bilm, new) else OLD)
        save(new, folder)  # the next save works, and cleans up
        assert equal(load_bilm(folder), new)
        assert not list(folder.glob(".*"))
    return found


PAIRS: dict[str, Callable[[], tuple[BiLM, BiLM]]] = {
    "the same options": lambda: (characters(0), characters(1)),
    "another shape": lambda: (characters(0), characters(1, projection_dim=3, n_layers=1)),
    "another clip": lambda: (characters(0), characters(1, cell_clip=1)),
    "another vocabulary": lambda: (words(0, "a", "b"), words(1, "b", "a")),
    "words after characters": lambda: (characters(0), words(1, "a")),
    "characters after words": lambda: (words(0, "a"), characters(1)),
}


OFTEN = ("the same options", "words after characters")
EACH_PAIR = [pytest.param(name, marks=() if name in OFTEN else pytest.mark.slow) for name in PAIRS]


@pytest.mark.parametrize("pair", EACH_PAIR)
def test_native_saves_leave_the_old_model_or_the_new_one(pair: str, tmp_path: Path) -> None:
    found = outcomes("native", *PAIRS[pair](), tmp_path)
    assert found == sorted(found, reverse=True)  # old until it is new
    assert set(found) == {OLD, NEW}


@pytest.mark.parametrize("pair", EACH_PAIR)
def test_hdf5_saves_leave_the_old_model_or_the_new_one(pair: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    found = outcomes("hdf5", *PAIRS[pair](), tmp_path)
    assert found == sorted(found, reverse=True)  # old until it is new
    assert set(found) == {OLD, NEW}
    assert found.count(NEW) > 1 or pair == "the same options"


def test_a_save_is_not_finished_while_it_may_go_on(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    save_bilm_hdf5(characters(0), tmp_path)
    (tmp_path / "options.json").rename(tmp_path / f".options.json.{os.getppid()}-00ff00ff.tmp")
    with pytest.raises(WeightsError, match="may have been interrupted"):
        load_bilm(tmp_path)
    (tmp_path / f".options.json.{os.getppid()}-00ff00ff.tmp").rename(tmp_path / f".options.json.{10**30}-00ff00ff.tmp")
    assert equal(load_bilm(tmp_path), characters(0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["options.json", "weights.hdf5"]


def test_half_a_description_finishes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    save_bilm_hdf5(characters(0), tmp_path)
    (tmp_path / "options.json").unlink()
    for name in ("weights.hdf5", "options.json"):  # as a save leaves them that is killed before it replaces anything
        (tmp_path / f".{name}.{10**30}-00ff00ff.tmp").write_bytes(b'{"half')
    before = (tmp_path / "weights.hdf5").read_bytes()
    with pytest.raises(WeightsError, match="may have been interrupted"):
        load_bilm(tmp_path)
    assert (tmp_path / "weights.hdf5").read_bytes() == before


@pytest.mark.parametrize("format", ["native", "hdf5"])
def test_a_first_save_that_is_killed(format: str, tmp_path: Path) -> None:
    if format == "hdf5":
        pytest.importorskip("h5py")
    found = outcomes(format, None, words(1, "a"), tmp_path)
    assert found[0] == REFUSED
    assert found[-1] == NEW
    assert OLD not in found


def test_half_a_model_in_hdf5_says_so_however_it_is_named(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    save_bilm_hdf5(characters(0), tmp_path)
    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    options.unlink()
    for arguments in ((tmp_path,), (weights,), (options,), (options, weights)):
        with pytest.raises(WeightsError, match="may have been interrupted: save the model again"):
            load_bilm(*arguments)
