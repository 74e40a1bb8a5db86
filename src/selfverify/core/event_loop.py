"""Event loops in threads of their own, on which code that waits, such as an episode, runs coroutines.

Environments and judges of agents are asynchronous: they run while conversations go on. Clients and sessions
belong to the loop that they were made on. So there is one loop for the process (`start`), whichever threads
reply.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GOODBYE_S = 5.0
"""Seconds that cancelled coroutines have to clean up in `EventLoop.close`."""


class EventLoop:
    """Runs coroutines for other threads, all at the same time, on one loop that goes on between the calls.

    A browser or a websocket belongs to the loop it was opened on. So all coroutines of one environment have
    to run on the same loop, and all environments of a process can share one.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str = "event loop") -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._one_closes = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True, name=name)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float) -> T:
        """The result of a coroutine, whatever that may raise.

        Args:
            coroutine: Is run on the loop.
            seconds: How long it may take. It is cancelled then, so that what it holds is given back.

        Raises:
            TimeoutError: It took longer.
            RuntimeError: The loop is closed, or the call comes from a coroutine of the loop itself, which
                would wait for itself.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                f"{self._thread.name}: a coroutine of the loop cannot wait for the loop; await instead"
            )
        future = self.start(coroutine)
        try:
            return future.result(seconds)
        except TimeoutError:
            if not future.cancel():
                raise  # the coroutine's own
            raise TimeoutError(f"{self._thread.name}: it took longer than {seconds} s") from None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop without waiting for it; cancelling the future cancels it.

        Raises:
            RuntimeError: The loop is closed.
        """
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError(f"{self._thread.name}: the loop is closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel what still runs, and end the thread. A coroutine that blocks the loop is left behind.

        Raises:
            RuntimeError: A coroutine of the loop calls it, which would wait for its own end.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"{self._thread.name}: a coroutine of the loop cannot close the loop")
        with self._one_closes:
            if not self._loop.is_closed():
                self._close()

    def _close(self) -> None:
        goodbye = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
        try:
            goodbye.result(_GOODBYE_S)
        except TimeoutError:
            goodbye.cancel()
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_GOODBYE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _serve(self) -> None:
        """Run the loop until it is closed, also behind a coroutine that wants to leave the process.

        asyncio lets `SystemExit` and `KeyboardInterrupt` end a loop. All others would wait for ever.
        """
        while not self._closing:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                kind = type(error).__name__
                logger.warning("%s: a coroutine has raised %s; the others go on", self._thread.name, kind)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_lock = threading.Lock()
_loops: dict[int, EventLoop] = {}
"""By process: one that was forked starts its own."""


def start(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run a coroutine on the process's loop; the future has its result."""
    with _lock:
        if os.getpid() not in _loops:
            _loops[os.getpid()] = EventLoop("selfverify-agents")
        loop = _loops[os.getpid()]
    return loop.start(work)


def finish_inline(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for anything, without an event loop.

    Raises:
        RuntimeError: It waits for something after all.
    """
    try:
        work.send(None)
    except StopIteration as finished:
        result: T = finished.value
        return result
    work.close()
    raise RuntimeError("a coroutine that was said never to wait is waiting")
