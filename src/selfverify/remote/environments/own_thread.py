"""A thread for an object that blocks and may be used on one thread only, such as a simulator or a browser."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class OwnThread:
    """Does one thing after another on a thread that does not keep the process from ending.

    A thread cannot be stopped. What takes too long goes on behind the scenes, and the thread is left to it:
    it ends when that is done.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, function: Callable[[], T]) -> Future[T]:
        """Do something after all that was started before; the future has what it returns."""
        future: Future[T] = Future()
        self._work.put((future, function))
        return future

    async def do(self, function: Callable[[], T], limit_s: float) -> T:
        """Do something and wait for it.

        Raises:
            TimeoutError: It takes longer than ``limit_s``.
        """
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(self.start(function))

    def end(self) -> None:
        """End the thread after what was started before."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, function = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as error:
                with suppress(Exception):
                    future.set_exception(error)
            else:
                future.set_result(result)
