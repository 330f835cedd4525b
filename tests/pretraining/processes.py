"""Ranks as torchrun would start them, forked from the test so that nothing is imported again."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist


def on_ranks(n: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a function in ``n`` processes that can find each other.

    RETURNS: what each gave, or the exception that ended it.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(n)]
    processes = [
        context.Process(target=_call, args=(rank, n, port, writer, function, arguments))
        for rank, (_, writer) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    # As torchrun does: it outlasts all ranks, so that they can still ask it when the first one has ended.
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5))
    for _, writer in pipes:
        writer.close()
    found = []
    for reader, _ in pipes:
        try:
            found.append(reader.recv())
        except EOFError:
            found.append(None)  # it ended without a word
    for process in processes:
        process.join()
    del store
    return found


def _call(rank: int, n: int, port: int, writer: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(n),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RESTART_COUNT="0",
    )
    try:
        result = function(*arguments)
    except Exception as error:
        result = error
    writer.send(result)
