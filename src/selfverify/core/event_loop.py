"""One event loop for the process, on a thread of its own, on which code that waits runs coroutines.

Environments and judges of agents are asynchronous: they run while conversations go on. A browser, a websocket
or a client belongs to the loop that it was opened on. So all of a process share one, whichever threads reply.
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

_NAME = "selfverify-agents"
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process: one that was forked starts its own."""


def start(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run a coroutine on the process's loop; the future has its result, and cancelling it cancels the work.

    All coroutines run at the same time, on one loop that goes on between the calls.
    """
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=_serve, args=[loop], daemon=True, name=_NAME).start()
    return asyncio.run_coroutine_threadsafe(work, loop)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop; a coroutine that raises SystemExit does not end it.

    asyncio lets `SystemExit` and `KeyboardInterrupt` end a loop. All others would wait for ever.
    """
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            logger.warning("%s: a coroutine has raised %s; the others go on", _NAME, type(error).__name__)


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
