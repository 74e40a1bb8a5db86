"""What is asynchronous in agents: environments and judges, which run while conversations go on.

Clients and sessions belong to the loop that they were made on. So there is one loop for the process,
whichever threads reply.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from selfverify.core.event_loop import EventLoop

T = TypeVar("T")

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
