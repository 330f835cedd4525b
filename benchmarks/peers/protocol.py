"""Talk with a process that is measured: a JSON line to its standard input, a JSON line back.

Both ends, with the standard library alone: peers run in environments that have none of our packages. Between two jobs
a peer waits for input and takes no processor time, so that jobs of several processes can alternate.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Job = Callable[..., dict[str, Any]]


class PeerError(RuntimeError):
    """A peer that is not there, or a job of it that failed; the message says why in a few words."""


class Peer:
    """A process with something to be measured in it, loaded once.

    interpreter: the Python of the peer's environment. module: of its worker, as for ``python -m``.
    threads: for the thread pools that read the environment; the worker gets it as an option as well.
    env: further environment variables. timeout: seconds after which a job counts as failed and the process is ended.
    options: JSON data for the worker's ``load``.
    Raises PeerError if it does not start or load.
    """

    def __init__(
        self,
        interpreter: str | Path,
        module: str,
        *,
        threads: int,
        env: Mapping[str, str] | None = None,
        timeout: float = 3600.0,
        **options: Any,
    ) -> None:
        self.timeout = timeout
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)), **(env or {})}
        try:
            self._process = subprocess.Popen(
                [str(interpreter), "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf8",
                cwd=ROOT,
                env=environment,
            )
        except OSError as error:
            raise PeerError(f"{interpreter}: {error.strerror}") from error
        try:
            self.facts = self.call("load", threads=threads, **options)
        except PeerError:
            self.close()
            raise

    def call(self, job: str, **arguments: Any) -> dict[str, Any]:
        """Run a job and wait for it. RETURNS: what it answers. Raises PeerError if it fails or dies."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        timer = threading.Timer(self.timeout, self._process.kill)
        timer.start()
        try:
            stdin.write(json.dumps({"job": job, **arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise PeerError(f"{job}: the process ended: {self._last_error()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{job}: {answer['error']}")
        return dict(answer)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _last_error(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf8", errors="replace").strip().splitlines()
        return f"{lines[-1]:.200}" if lines else f"exit code {code}"


def serve(load: Callable[..., tuple[Mapping[str, Job], dict[str, Any]]]) -> None:
    """Be a peer: answer jobs until standard input closes.

    load: takes the options of ``Peer`` and gives the jobs by name, and facts to answer with.
    An exception is answered as an error; the process goes on.
    """
    # Libraries print what they like to standard output: the answers go to a copy, all else to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf8")
    os.dup2(2, 1)
    jobs: dict[str, Job] = {}

    def first(**options: Any) -> dict[str, Any]:
        loaded, facts = load(**options)
        jobs.update(loaded)
        return facts

    jobs["load"] = first
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = jobs[request.pop("job")](**request)
        except Exception as error:
            traceback.print_exc()
            message = str(error).strip().split("\n")[0]
            answer = {"error": f"{type(error).__name__}: {message:.200}"}
        print(json.dumps(answer), file=answers, flush=True)


def end_with_parent() -> None:
    """End this process at once when its standard input closes: a pipe's does when the process that holds the other end
    is gone, however it went."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
