from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from benchmarks.common import Peers, Row, Sample, measure
from benchmarks.peers.protocol import ROOT, Peer, PeerError

WORKER = "tests.benchmarks.echo_worker"


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer(sys.executable, WORKER, threads=3, greeting="hello", timeout=30.0)
    yield peer
    peer.close()


def test_a_job_is_answered_whatever_is_printed(peer: Peer) -> None:
    assert peer.facts == {"facts": "echo 1.0"}
    assert peer.call("echo", text="you") == {"text": "hello you", "threads": [3, 3]}


def test_a_job_that_fails_says_why_and_the_next_one_runs(peer: Peer) -> None:
    with pytest.raises(PeerError, match=r"^fail: ValueError: what was wrong$"):
        peer.call("fail")
    assert peer.call("echo", text="again")["text"] == "hello again"


def test_a_process_that_dies_leaves_its_last_words(peer: Peer) -> None:
    with pytest.raises(PeerError, match=r"^die: the process ended: last words$"):
        peer.call("die")
    with pytest.raises(PeerError, match="the process ended"):
        peer.call("echo", text="anyone?")


def test_a_job_that_takes_too_long_is_ended(peer: Peer) -> None:
    peer.timeout = 0.2
    with pytest.raises(PeerError, match="sleep: the process ended"):
        peer.call("sleep")


def test_a_process_ends_with_the_one_that_holds_its_input() -> None:
    code = "import time; from benchmarks.peers.protocol import end_with_parent\n"
    code += "end_with_parent(); print('begun', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.stdin.close()
        assert process.wait(30) == 1


@pytest.mark.parametrize(
    ("interpreter", "module", "why"),
    [
        ("/nowhere/python", WORKER, "No such file"),
        (sys.executable, "benchmarks.peers.nothing_worker", "No module named"),
        (sys.executable, "tests.benchmarks.echo_worker", "load: TypeError"),  # without its greeting
    ],
)
def test_a_process_that_does_not_start_says_why(interpreter: str, module: str, why: str) -> None:
    with pytest.raises(PeerError, match=why):
        Peer(interpreter, module, threads=1)


def test_missing_peers_leave_the_other_rows_alone() -> None:
    with ExitStack() as stack:
        peers = Peers(stack, threads=1)
        peers.add("absent", None, "lstm_worker")
        rows = [peers.row("absent", "theirs", "encode", {}), Row("ours", lambda: Sample(2.0, 6.0))]
        measure(rows, rounds=3)
    assert rows[0].why == "not given: --absent"
    assert rows[0].samples == []
    assert rows[1].rates == [3.0] * 3
    assert rows[1].over(rows[0]) != rows[1].over(rows[0])  # NaN
