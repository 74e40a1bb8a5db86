"""Coroutines that other threads wait for, on one loop or without one."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from selfverify.core import event_loop


async def after(seconds: float, value: int) -> int:
    await asyncio.sleep(seconds)
    return value


@pytest.mark.parametrize("leaves", [SystemExit(3), KeyboardInterrupt(), OSError("the socket is gone")])
def test_a_coroutine_that_leaves_ends_alone(leaves: BaseException) -> None:
    """Its caller gets to know at once, and the others go on."""

    async def leave() -> None:
        raise leaves

    other = event_loop.start(after(0.1, 5))
    with pytest.raises(type(leaves)):
        event_loop.start(leave()).result(5.0)
    assert other.result(5.0) == 5
    assert event_loop.start(after(0.0, 6)).result(5.0) == 6


def test_what_is_cancelled_cleans_up() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def hangs() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = event_loop.start(hangs())
    assert begun.wait(5.0) and running.cancel() and ended.wait(5.0)


async def loop_and_thread() -> tuple[int, str]:
    await asyncio.sleep(0)
    return id(asyncio.get_running_loop()), threading.current_thread().name


def test_all_threads_share_one_loop() -> None:
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: event_loop.start(loop_and_thread()).result(10), range(8)))
    assert found == {event_loop.start(loop_and_thread()).result(10)}
    assert next(iter(found))[1] == "selfverify-agents"


def test_what_never_waits_needs_no_loop() -> None:
    async def inner(value: int) -> int:
        if value < 0:
            raise KeyError(value)
        return value + 1

    async def outer(value: int) -> int:
        return await inner(value) + await inner(value)

    assert event_loop.finish_inline(outer(1)) == 4
    with pytest.raises(KeyError):
        event_loop.finish_inline(outer(-1))


def test_what_waits_after_all_is_refused() -> None:
    async def waits() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="said never to wait"):
        event_loop.finish_inline(waits())
