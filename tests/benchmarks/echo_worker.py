"""A worker for tests of the protocol, with the standard library alone."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from benchmarks.peers.protocol import Job, serve


def load(*, threads: int, greeting: str) -> tuple[dict[str, Job], dict[str, Any]]:
    print("a library's chatter at import")

    def echo(text: str) -> dict[str, Any]:
        print("chatter of a job")
        return {"text": f"{greeting} {text}", "threads": [threads, int(os.environ["OMP_NUM_THREADS"])]}

    def fail() -> dict[str, Any]:
        raise ValueError("what was wrong\nand much more of it")

    def die() -> dict[str, Any]:
        print("last words", file=sys.stderr, flush=True)
        os._exit(3)

    def sleep() -> dict[str, Any]:
        time.sleep(60)
        return {}

    return {"echo": echo, "fail": fail, "die": die, "sleep": sleep}, {"facts": "echo 1.0"}


if __name__ == "__main__":
    serve(load)
