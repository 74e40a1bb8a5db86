"""One process that answers calls of one function and can be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from selfverify.errors import ConfigError
from selfverify.workers import child

START_S = 120.0
"""Seconds that a worker may take to import its function's module."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. ``value`` is meant only when ``status`` is ``done``.

    ``raised``: the function raised, which trying again would not change. ``refused``: the arguments are
    longer than allowed, or no JSON. ``timed_out`` and ``died`` (crashed, was killed, or its result was too
    long): at every try.
    """

    status: Literal["done", "raised", "refused", "timed_out", "died"]
    value: Any = None
    reason: str = ""

    @property
    def done(self) -> bool:
        """Whether there is a value."""
        return self.status == "done"


class Worker:
    """One process. `ask` is not for several threads at once."""

    def __init__(self, module: str, name: str, timeout_s: float, max_output: int, memory_mb: int) -> None:
        self.timeout_s, self.max_output = timeout_s, max_output
        paths = [path or os.getcwd() for path in sys.path]
        self.process = subprocess.Popen(
            # -P: the working folder is searched only if it is for us.
            [sys.executable, "-P", "-m", child.__name__, module, name, str(timeout_s), str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            # A session of its own: Ctrl-C is for the parent, and what the function starts dies with it.
            start_new_session=True,
        )
        ready = self._exchange(b"", START_S)
        if not ready.done:
            self.kill()
            raise ConfigError(f"a worker process for {module}.{name} does not start: {ready.reason}")

    def ask(self, request: bytes) -> Outcome:
        """The function's result for a line of arguments. After ``timed_out`` and ``died`` it is dead."""
        outcome = self._exchange(request, self.timeout_s)
        if outcome.status in ("timed_out", "died"):
            self.kill()
        return outcome

    def _exchange(self, request: bytes, limit_s: float) -> Outcome:
        assert self.process.stdin is not None and self.process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._signal()

        # Killing it ends a write to its full pipe and a read from it alike.
        timer = threading.Timer(limit_s, stop)
        timer.daemon = True
        timer.start()
        try:
            if request:
                self.process.stdin.write(request)
                self.process.stdin.flush()
            line = self.process.stdout.readline(self.max_output + 1)
        except OSError:
            line = b""
        finally:
            timer.cancel()
            timer.join()  # else it might kill a worker that has just answered and is idle by then
        if late.is_set():
            return Outcome("timed_out", reason=f"no result within {limit_s:g} s")
        if len(line) > self.max_output:
            return Outcome("died", reason=f"its result is longer than {self.max_output} bytes")
        if not line.endswith(b"\n"):
            return Outcome("died", reason="the process ended")
        reply = json.loads(line)
        if "error" in reply:
            return Outcome("raised", reason=reply["error"])
        return Outcome("done", reply["value"])

    def _signal(self) -> None:
        if self.process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            if os.name == "posix":
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()

    def kill(self) -> None:
        """End the process and wait for it, so that no zombie stays."""
        self._signal()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(OSError):  # what was still to be written has no reader any more
                stream.close()
        self.process.wait()

    def let_go(self) -> None:
        """In a fork: the process is the parent's. Neither locks nor buffers of its pipes may be touched."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            os.dup2(nowhere, stream.fileno(), inheritable=False)
        os.close(nowhere)
