from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spacy_elmo.pretraining.locks import locked

HOLD = """
import sys, time
from pathlib import Path
from spacy_elmo.pretraining.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_one_is_refused_and_the_file_goes_with_the_first(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        with pytest.raises(BlockingIOError), locked(path):
            raise AssertionError("never entered")
        assert path.exists()  # the refused one removes nothing
    assert not path.exists()
    with locked(path):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError), locked(path):
            raise AssertionError("never entered")
        process.kill()
    assert path.exists()
    with locked(path):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_a_file_system_without_locks_is_said_and_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    path, done = tmp_path / "lock", False
    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.warns(UserWarning, match=f"file system of {re.escape(str(tmp_path))} has no locks"), locked(path):
        done = True
    assert done
    assert not path.exists()


def test_waiting_is_said_once_and_one_holds_it_at_a_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    inside: list[int] = []
    most = 0

    def work() -> None:
        nonlocal most
        with locked(tmp_path / "lock", wait="waiting for another"):
            inside.append(1)
            most = max(most, len(inside))
            time.sleep(0.3)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert capfd.readouterr().err.count("waiting for another") == 3
    assert list(tmp_path.iterdir()) == []
