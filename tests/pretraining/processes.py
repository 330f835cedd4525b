"""Ranks as torchrun would start them, forked from the test so that nothing is imported again."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from typing import Any


def on_ranks(n: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a function in ``n`` processes that can find each other.

    RETURNS: what each gave, or the exception that ended it.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ended = context.Event()
    pipes = [context.Pipe(duplex=False) for _ in range(n)]
    processes = [
        context.Process(target=_call, args=(rank, n, port, writer, ended, function, arguments))
        for rank, (_, writer) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for _, writer in pipes:
        writer.close()
    found = []
    for reader, _ in pipes:
        try:
            found.append(reader.recv())
        except EOFError:
            found.append(None)  # it ended without a word
    ended.set()
    for process in processes:
        process.join()
    return found


def _call(
    rank: int, n: int, port: int, writer: Any, ended: Any, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    try:
        result = function(*arguments)
    except Exception as error:
        result = error
    writer.send(result)
    if rank == 0:
        # It hosts torch's store, which others may still ask; torchrun's outlasts all ranks.
        ended.wait(5.0)
