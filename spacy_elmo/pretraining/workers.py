"""Processes that encode shards. Each is a fresh interpreter that reads documents from a pipe until it is closed.

Not `multiprocessing`: a fork would take along the threads' state of torch, a spawn would run the caller's script again,
and both leave children behind when the parent is killed. These end with the parent, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import srsly

from ..errors import CorpusError, PretrainingError
from .config import NlpSettings
from .shards import encode_shard
from .texts import Text, Tokenizing, pipeline

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from spacy_elmo.pretraining.workers import work; work()"
_LENGTH = 8  # bytes before each message: how long it is


class Workers:
    """A pool of processes, alive inside a ``with`` block.

    settings: [nlp], what tokenizes. n_process: how many.
    """

    def __init__(self, settings: NlpSettings, n_process: int) -> None:
        self.n_process = n_process
        self._settings = settings.model_dump(mode="json")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        # A thread a process: it waits for the answer.
        self._threads = ThreadPoolExecutor(n_process)

    def __enter__(self) -> Workers:
        command = [sys.executable, "-c", _PROGRAM, *(path or os.getcwd() for path in sys.path)]
        try:
            for _ in range(self.n_process):
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                self._processes.append(process)
                self._idle.put(process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()  # what they had to do is done, or not wanted any more
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what the pipe holds reaches nobody now
                    if pipe is not None:
                        pipe.close()

    def encode(self, texts: Sequence[Text], path: Path, source: bytes) -> Future[int]:
        """Do `encode_shard` in the next process that is idle.

        RETURNS: a Future of the number of words; of CorpusError, OSError, or PretrainingError if the process died.
        """
        return self._threads.submit(self._call, {"texts": texts, "path": os.fspath(path), "source": source})

    def _call(self, message: Mapping[str, Any]) -> int:
        process = self._idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, {**message, "nlp": self._settings})
            answer = _receive(process.stdout)
        except (OSError, EOFError) as error:
            raise PretrainingError(
                f"a process that encodes text ended{_how(process.wait())}: run again, what was encoded before is kept; "
                "if memory is short, set system.n_process lower"
            ) from error
        finally:
            self._idle.put(process)
        if "errno" in answer:
            raise OSError(answer["errno"], answer["error"])
        if "error" in answer:
            raise {"CorpusError": CorpusError}.get(answer["kind"], PretrainingError)(answer["error"])
        return int(answer["words"])


def work() -> None:
    """What a process of `Workers` does: encode what comes from its standard input, until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all of a terminal's processes: the parent decides
    # What a library prints must not come between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    tokenizing: Tokenizing | None = None
    with suppress(EOFError, BrokenPipeError):
        while True:
            message = _receive(sys.stdin.buffer)
            if tokenizing is None:
                tokenizing = Tokenizing(partial(pipeline, NlpSettings(**message["nlp"])))
            answer: dict[str, Any]
            try:
                path = Path(message["path"])
                words = encode_shard(message["texts"], path, source=message["source"], tokenizing=tokenizing)
                answer = {"words": words}
            except OSError as error:
                answer = {"errno": error.errno, "error": error.strerror or str(error)}
            except (CorpusError, PretrainingError) as error:
                answer = {"kind": type(error).__name__, "error": str(error)}
            _send(answers, answer)


def _send(pipe: IO[bytes], message: Mapping[str, Any]) -> None:
    data = srsly.msgpack_dumps(dict(message))
    pipe.write(len(data).to_bytes(_LENGTH, "little") + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> dict[str, Any]:
    """The next message. RAISES: EOFError if the other side is gone."""
    head = pipe.read(_LENGTH)
    data = pipe.read(int.from_bytes(head, "little"))
    if len(head) < _LENGTH or len(data) < int.from_bytes(head, "little"):
        raise EOFError
    message: dict[str, Any] = srsly.msgpack_loads(data)
    return message


def _how(status: int) -> str:
    return f" (killed by signal {-status})" if status < 0 else f" (exit status {status})"
