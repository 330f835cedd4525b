"""Signals that end a run: it finishes its step and saves first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .distributed import Ranks


@contextmanager
def stop_signals(ranks: Ranks) -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying of them; a second one acts as ever.

    Not so under torchrun: Ctrl-C comes from the terminal and again from torchrun, which itself ends who takes too long.

    RETURNS: the signals received, filled as they come.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # only the main thread may set handlers
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def reset() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        received.append(number)
        if ranks.size == 1:
            reset()

    for number in previous:
        signal.signal(number, handle)
    try:
        yield received
    finally:
        reset()
