"""A pool of processes that can be killed: for functions that hang, crash or eat memory on what a model wrote.

A thread cannot be stopped, and an alarm reaches only the main thread and not a C function. A process can be
killed whatever it does. Arguments and results travel as JSON; nothing is pickled.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from selfverify.errors import ConfigError
from selfverify.events import note
from selfverify.workers import child

logger = logging.getLogger(__name__)

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


class WorkerPool:
    """Calls one function in up to ``workers`` processes that are killed when a call takes too long.

    Made processes stay and serve call after call. A call whose worker hangs or dies is made again in a new
    one, ``retries`` times; then it has an outcome that says so. No call raises because of what the function
    does. May be used by several threads, and by a fork, which gets processes of its own. They end with
    `close`, with the pool, and within ``timeout_s`` and some seconds after a `kill -9` of their parent.

    Args:
        function: A top-level function whose module can be imported by name, and, for workers to start
            quickly, without torch: what stands in ``selfverify.workers`` does. Takes and returns JSON values.
        timeout_s: Wall-clock limit of one try.
        workers: Processes at most; they start when they are first needed.
        retries: Tries after the first.
        cache: Outcomes that are remembered by arguments, failures included, least recently used out first.
        max_input: Length limit of a call's arguments as JSON, in bytes.
        max_output: Length limit of a result as JSON, in bytes.
        memory_mb: Address space of a worker, in MiB; a function that wants more gets a MemoryError.

    Raises:
        ConfigError: The function cannot be imported by name; at the first call, not in a worker either.
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
            raise ConfigError(f"timeout_s={timeout_s}, workers={workers}, retries={retries}: too small")
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
        self.max_input, self.cache_size = max_input, cache
        self._make = partial(Worker, module, name, timeout_s, max_output, memory_mb)
        self._works = False
        self.timeouts = self.restarts = self.cached = 0
        self._cache: OrderedDict[bytes, Outcome] = OrderedDict()
        self._fresh()
        _pools.add(self)

    def _fresh(self) -> None:
        """No workers yet, and locks that nobody holds."""
        self._owner = os.getpid()
        self._idle: list[Worker] = []
        self._lock = threading.Lock()
        self._places = threading.Semaphore(self.workers)
        self._all: set[Worker] = set()
        self._end = weakref.finalize(self, _kill_all, self._all)

    def call(self, *arguments: Any) -> Outcome:
        """The function's outcome for JSON values."""
        try:
            request = json.dumps(arguments).encode() + b"\n"
        except (TypeError, ValueError) as error:
            return Outcome("refused", reason=f"the arguments are not JSON: {error}")
        if len(request) > self.max_input:
            return Outcome("refused", reason=f"the arguments take {len(request)} of {self.max_input} bytes")
        with self._lock:
            found = self._cache.get(request)
            if found is not None:
                self.cached += 1
                self._cache.move_to_end(request)
                return found
        with self._places:
            outcome = self._try(request)
        with self._lock:
            if self.cache_size:
                self._cache[request] = outcome
                if len(self._cache) > self.cache_size:
                    self._cache.popitem(last=False)
        return outcome

    def map(self, calls: Iterable[Sequence[Any]]) -> list[Outcome]:
        """Outcomes of several calls in their order, as many at once as there are workers."""
        rows = list(calls)
        if self.workers == 1 or len(rows) < 2:
            return [self.call(*row) for row in rows]
        with ThreadPoolExecutor(self.workers) as threads:
            return list(threads.map(lambda row: self.call(*row), rows))

    def counters(self) -> dict[str, float]:
        """Since the pool was made: tries that timed out, workers replaced, calls answered from the cache."""
        counted = {"timeouts": self.timeouts, "restarts": self.restarts, "cached": self.cached}
        return {f"workers/{name}": float(value) for name, value in counted.items()}

    def _try(self, request: bytes) -> Outcome:
        outcome = Outcome("died")
        for attempt in range(1 + self.retries):
            if attempt:
                note(
                    logger,
                    "call_retried",
                    f"{self.name}: {outcome.reason}; the call is made again",
                    function=self.name,
                    attempt=attempt + 1,
                )
            try:
                worker = self._take()
            except (ConfigError, OSError) as error:
                if not self._works:
                    raise  # the first one: the function's module is at fault, not the machine
                outcome = Outcome("died", reason=str(error))
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
            note(
                logger,
                "worker_restarted",
                f"{self.name}: {outcome.reason}; its worker process is replaced",
                function=self.name,
                reason=outcome.reason,
            )
        return outcome

    def _take(self) -> Worker:
        """An idle worker that lives, or a new one."""
        with self._lock:
            while self._idle:
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                # It died between two calls (killed from outside): that is no call's fault.
                worker.kill()
                self._all.discard(worker)
                self.restarts += 1
        made = self._make()
        with self._lock:
            self._works = True
            self._all.add(made)
        return made

    def close(self) -> None:
        """End all processes. The next call starts new ones."""
        with self._lock:
            self._idle.clear()
            _kill_all(self._all)

    def _forked(self) -> None:
        """In a fork: the workers are the parent's, and their pipes too."""
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
"""Workers of a parent: to collect one might wait for a lock that a thread held when we were forked."""


def _forked() -> None:
    for pool in _pools:
        pool._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
