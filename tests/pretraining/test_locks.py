from __future__ import annotations

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
