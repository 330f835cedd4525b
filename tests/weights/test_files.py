"""Files that are replaced whole or not at all, what earlier saves left beside them, and errors that say why."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from spacy_elmo.errors import WeightsError
from spacy_elmo.weights.files import replacing, write_files


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def no_room(file: IO[bytes]) -> None:
    file.write(b"half of")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_files_that_belong_together_are_replaced_together(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    write_files({first: b"1", second: lambda file: file.write(b"2"), third: b"3"})
    write_files({first: b"one", second: b"two", third: None})
    assert names(tmp_path) == {"first", "second"}
    assert (first.read_text(), second.read_text()) == ("one", "two")


def test_one_that_cannot_be_written_leaves_all_old_ones(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    write_files({first: b"1", second: b"2", third: b"3"})
    with pytest.raises(WeightsError, match=rf"third: cannot be written: {os.strerror(errno.ENOSPC)}"):
        write_files({first: b"one", second: None, third: no_room})
    third.unlink()
    third.mkdir()
    with pytest.raises(WeightsError, match="third: is a folder where a file was expected"):
        write_files({first: b"one", second: None, third: None})
    assert names(tmp_path) == {"first", "second", "third"}
    assert (first.read_text(), second.read_text()) == ("1", "2")


def test_replacing_reports_errors_of_the_block_and_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    path.write_text("old")
    with (
        pytest.raises(WeightsError, match=r"losses\.jsonl: cannot be written: "),
        replacing(path) as new,
        new.open("wb") as file,
    ):
        no_room(file)

    def interrupted(new: Path) -> None:
        new.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), replacing(path) as new:
        interrupted(new)
    assert names(tmp_path) == {"losses.jsonl"}
    assert path.read_text() == "old"


def test_what_killed_saves_left_goes_and_nothing_else(tmp_path: Path) -> None:
    gone, this = ended_process(), os.getpid()
    left = [f".model.{gone}-00ff00ff.tmp", f".model.{this}-00ff00ff.tmp", f".model.{10**30}-00ff00ff.tmp"]
    kept = [
        f".model.{os.getppid()}-00ff00ff.tmp",  # of a process that runs
        f".other.{gone}-00ff00ff.tmp",
        f"model.{gone}-00ff00ff.tmp",
        f".model.{gone}.tmp",
        ".model.tmp",
        "model.tmp",
    ]
    for name in left + kept:
        (tmp_path / name).write_text("half")
    old = tmp_path / f".model.{os.getppid()}-abcdef01.tmp"
    old.write_text("half")
    os.utime(old, (time.time() - 100_000, time.time() - 100_000))
    with replacing(tmp_path / "model") as outer:
        outer.write_text("outer")
        write_files({tmp_path / "model": b"inner"})  # two saves at once: neither takes the other's
    assert (tmp_path / "model").read_text() == "outer"
    assert names(tmp_path) == {"model", *kept}


def test_left_over_of_a_file_that_is_not_written_any_more(tmp_path: Path) -> None:
    left = tmp_path / f".vocabulary.json.{ended_process()}-00ff00ff.tmp"
    left.write_text("half")
    write_files({tmp_path / "model": b"", tmp_path / "vocabulary.json": None})
    assert names(tmp_path) == {"model"}
