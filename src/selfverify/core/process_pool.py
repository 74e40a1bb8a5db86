"""A pool of processes that can be killed, for functions that hang, crash or eat memory.

They do so on a model's output. A thread cannot be stopped, and an alarm reaches only the main thread and not
a C function. A process can always be killed. Arguments and results travel as JSON; nothing is
pickled.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

from selfverify.core import worker as child
from selfverify.core.errors import ConfigError
from selfverify.core.events import note

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
        self.process = subprocess.Popen(
            # -P: the worker searches the working folder only if this process does.
            [sys.executable, "-P", "-m", child.__name__, module, name, str(timeout_s), str(memory_mb)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child.search_path(),
            # In a session of its own it does not get Ctrl-C, and is killed with all that it started.
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
        if self.process.poll() is None:
            child.kill_session(self.process)

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


logger = logging.getLogger(__name__)


class WorkerPool:
    """Calls one function in up to ``workers`` processes that are killed when a call takes too long.

    Made processes stay and serve call after call. A call whose worker hangs or dies is made again in a new
    one, ``retries`` times; then it has an outcome that says so. No call raises because of what the function
    does. May be used by several threads, and by a fork, which gets processes of its own. They end with
    `close`, with the pool, and within ``timeout_s`` and some seconds after a `kill -9` of their parent.

    Args:
        function: A top-level function whose module can be imported by name, and, for workers to start
            quickly, without torch, as ``selfverify.tasks.math_worker`` does. Takes and returns JSON values.
        timeout_s: Wall-clock limit of one try.
        workers: The most processes; they start when they are first needed.
        retries: How often a call is tried again.
        cache: How many outcomes are remembered by their arguments, failures included; the least recently
            used are forgotten first.
        max_input: Length limit of a call's arguments as JSON, in bytes.
        max_output: Length limit of a result as JSON, in bytes.
        memory_mb: Address space of a worker, in MiB; a function that wants more gets a MemoryError.

    Raises:
        ConfigError: The function cannot be imported by name, here or, at the first call, in a worker.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        timeout_s: float,
        workers: int = 1,
        retries: int = 1,
        cache: int = 10_000,
        max_input: int = 100_000,
        max_output: int = 1_000_000,
        memory_mb: int = 4096,
    ) -> None:
        module, name = function.__module__, function.__qualname__
        if timeout_s <= 0 or workers < 1 or retries < 0:
            text = f"timeout_s={timeout_s}, workers={workers}, retries={retries}: at least one is too small"
            raise ConfigError(f"{text}; take a time above 0, 1 worker or more, and 0 retries or more")
        try:
            known = module != "__main__" and child.resolve(module, name) is function
        except (ImportError, AttributeError):
            known = False
        if not known:
            raise ConfigError(
                f"{module}.{name} cannot be called in a worker: it must be a top-level function of a module "
                "that can be imported"
            )
        self.name, self.workers, self.retries = name, workers, retries
        self.max_input = max_input
        self._remembered = lru_cache(maxsize=cache)(self._outcome)
        self._make = partial(Worker, module, name, timeout_s, max_output, memory_mb)
        self._works = False
        self.timeouts = self.restarts = 0
        self._fresh()
        _pools.add(self)

    def _fresh(self) -> None:
        """Start without workers, and with locks that are free."""
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.workers)
        self._all: set[Worker] = set()
        self._end = weakref.finalize(self, _kill_all, self._all)

    def call(self, *arguments: Any) -> CallOutcome:
        """Call the function with JSON values and return how the call ended."""
        try:
            request = json.dumps(arguments).encode() + b"\n"
        except (TypeError, ValueError) as error:
            return CallOutcome("refused", reason=f"the arguments are not JSON: {error}")
        if len(request) > self.max_input:
            reason = f"the arguments take {len(request)} of {self.max_input} bytes"
            return CallOutcome("refused", reason=reason)
        return self._remembered(request)

    def map(self, calls: Iterable[Sequence[Any]]) -> list[CallOutcome]:
        """Return the outcomes of several calls in their order; as many run at once as there are workers."""
        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(lambda call: self.call(*call), calls))

    def counters(self) -> dict[str, float]:
        """Return how many tries timed out, workers were replaced, and calls were answered from the cache."""
        cached = self._remembered.cache_info().hits
        counted = {"timeouts": self.timeouts, "restarts": self.restarts, "cached": cached}
        return {f"workers/{name}": float(value) for name, value in counted.items()}

    def _outcome(self, request: bytes) -> CallOutcome:
        with self._places:
            return self._try(request)

    def _try(self, request: bytes) -> CallOutcome:
        outcome = CallOutcome("died")
        for attempt in range(1 + self.retries):
            if attempt:
                text = f"{self.name}: {outcome.reason}; the call is made again"
                note(logger, "call_retried", text, function=self.name, attempt=attempt + 1)
            try:
                worker = self._take()
            except (ConfigError, OSError) as error:
                if not self._works:
                    raise  # the first one: the function's module is at fault, not the machine
                outcome = CallOutcome("died", reason=str(error))
                continue
            outcome = worker.ask(request)
            if outcome.status not in ("timed_out", "died"):
                with self._lock:
                    self._idle.append(worker)
                return outcome
            with self._lock:
                self._all.discard(worker)
                self.restarts += 1
                self.timeouts += outcome.status == "timed_out"
            text = f"{self.name}: {outcome.reason}; its worker process is replaced"
            note(logger, "worker_restarted", text, function=self.name, reason=outcome.reason)
        return outcome

    def _take(self) -> Worker:
        """Return an idle worker that is alive, or a new one.

        Raises:
            ConfigError: A new one does not start.
        """
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                # The worker was killed from outside between two calls, which is no call's fault.
                worker.kill()
                self._all.discard(worker)
                self.restarts += 1
        made = self._make()
        with self._lock:
            self._all.add(made)
        try:
            made.begin()
        except BaseException:
            made.kill()
            with self._lock:
                self._all.discard(made)
            raise
        self._works = True
        return made

    def close(self) -> None:
        """End all processes. Calls at work, and those that come later, start new ones."""
        with self._lock:
            self._idle.clear()
            _kill_all(self._all)

    def _forked(self) -> None:
        """In a fork: leave the workers and their pipes to the parent process."""
        self._end.detach()
        for worker in self._all:
            worker.let_go()
            _left_behind.append(worker)
        self._fresh()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _kill_all(workers: set[Worker]) -> None:
    while workers:
        workers.pop().kill()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()
_left_behind: list[Worker] = []
"""Workers of the parent process. They are kept: freeing one might wait for a lock that a thread of the parent
held at the fork."""


def _forked() -> None:
    for pool in _pools:
        pool._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
