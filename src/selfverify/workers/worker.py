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

from selfverify.core.errors import ConfigError
from selfverify.workers import child

START_S = 120.0
"""Seconds that a worker may take to import its function's module."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """How a call ended. There is a ``value`` only when ``status`` is ``done``.

    ``raised``: the function raised, which another try would not change. ``refused``: the arguments are too
    long, or no JSON. ``timed_out``: every try took too long. ``died``: at the last try the process
    crashed, was killed, or wrote too long a result.
    """

    status: Literal["done", "raised", "refused", "timed_out", "died"]
    value: Any = None
    reason: str = ""

    @property
    def done(self) -> bool:
        """Whether there is a value."""
        return self.status == "done"


class Worker:
    """One process that answers calls of one function, from `begin` on. Only one thread at a time may use it.

    `kill` may be called by any thread at any time.
    """

    def __init__(self, module: str, name: str, timeout_s: float, max_output: int, memory_mb: int) -> None:
        self.function, self.timeout_s, self.max_output = f"{module}.{name}", timeout_s, max_output
        paths = [path or os.getcwd() for path in sys.path]
        self.process = subprocess.Popen(
            # -P: the worker searches the working folder only if this process does.
            [sys.executable, "-P", "-m", child.__name__, module, name, str(timeout_s), str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            # In a session of its own it does not get Ctrl-C, and is killed with whatever it started.
            start_new_session=True,
        )

    def begin(self) -> None:
        """Wait until the process can be asked.

        Raises:
            ConfigError: It does not start, or was killed meanwhile.
        """
        ready = self._exchange(b"", START_S)
        if not ready.done:
            self.kill()
            raise ConfigError(f"a worker process for {self.function} does not start: {ready.reason}")

    def ask(self, request: bytes) -> CallOutcome:
        """Return the outcome for a line of arguments. After ``timed_out`` or ``died`` the process is dead."""
        outcome = self._exchange(request, self.timeout_s)
        if outcome.status in ("timed_out", "died"):
            self.kill()
        return outcome

    def _exchange(self, request: bytes, limit_s: float) -> CallOutcome:
        assert self.process.stdin is not None and self.process.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._signal()

        # Killing the process ends a write to its full pipe as well as a read.
        timer = threading.Timer(limit_s, stop)
        timer.daemon = True
        timer.start()
        try:
            if request:
                self.process.stdin.write(request)
                self.process.stdin.flush()
            line = self.process.stdout.readline(self.max_output + 1)
        except (OSError, ValueError):
            line = b""  # its pipes are broken, or another thread has closed them (`kill`)
        finally:
            timer.cancel()
            timer.join()  # else it might kill a worker that has just answered and is idle by then
        if late.is_set():
            return CallOutcome("timed_out", reason=f"no result within {limit_s:g} s")
        if len(line) > self.max_output:
            return CallOutcome("died", reason=f"its result is longer than {self.max_output} bytes")
        if not line.endswith(b"\n"):
            return CallOutcome("died", reason="the process ended")
        reply = json.loads(line)
        if "error" in reply:
            return CallOutcome("raised", reason=reply["error"])
        return CallOutcome("done", reply["value"])

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
        """In a fork: leave the process to the parent, without touching locks or buffers of its pipes."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            os.dup2(nowhere, stream.fileno(), inheritable=False)
        os.close(nowhere)
