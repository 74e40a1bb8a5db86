"""An event loop on a thread of its own, on which what is asynchronous runs while conversations go on.

Clients and sessions belong to the loop that they were made on. So there is one loop for the process,
whichever threads reply.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None


def start(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run a coroutine on the process's background loop; the future has its result."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


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


def _loop() -> asyncio.AbstractEventLoop:
    """The loop of this process; one that was forked starts its own."""
    global _running
    with _lock:
        if _running is None or _running[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, daemon=True, name="selfverify-agents").start()
            _running = os.getpid(), loop
        return _running[1]
