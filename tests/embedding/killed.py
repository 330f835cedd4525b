"""Runs that end by kill -9 at a line of the code that writes: in a process of its own, forked from a clean one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

WRITES = ("partial_file.py", "formats.py", "embed.py")
OPTIONS: dict[str, Any] = {"pretokenized": True, "batch_words": 12}


def counted(run: Callable[[], object], at: Callable[[int], object] = lambda count: None) -> int:
    """Call ``at`` with its number at each line of the writing code. RETURNS: how many there were."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        if Path(frame.f_code.co_filename).parts[-2:-1] != ("embedding",):
            return None
        if event == "line" and frame.f_code.co_filename.endswith(WRITES):
            count += 1
            at(count)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def run_until(text: Path, output: Path, weights: Path, instant: int) -> None:
    """Embed, and die at that line."""
    from spacy_elmo.embedding import embed_file

    def kill(count: int) -> None:
        if count == instant:
            os.kill(os.getpid(), signal.SIGKILL)

    counted(lambda: embed_file(text, output, weights, **OPTIONS), kill)


def run_in_process(*arguments: Any, seconds: float | None = None) -> int:
    """``run_until`` in another process, killed from here after some seconds. RETURNS: its exit code."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spacy_elmo.embedding", "h5py"])
    process = context.Process(target=run_until, args=arguments)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode is not None
    return process.exitcode
