"""Coroutines that other threads wait for, on one loop or without one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from selfverify.core import event_loop
from selfverify.core.event_loop import EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop("test loop")
    yield made
    made.close()


async def after(seconds: float, value: int) -> int:
    await asyncio.sleep(seconds)
    return value


def test_results_and_errors_come_back(loop: EventLoop) -> None:
    async def fails() -> None:
        raise OSError("the socket is gone")

    async def gives_up() -> None:
        raise TimeoutError("its own")

    assert loop.run(after(0.0, 3), 5.0) == 3
    with pytest.raises(OSError, match="the socket is gone"):
        loop.run(fails(), 5.0)
    with pytest.raises(TimeoutError, match="its own"):
        loop.run(gives_up(), 5.0)


def test_what_takes_too_long_is_cancelled(loop: EventLoop) -> None:
    """It cleans up, and the loop serves others."""
    ended = threading.Event()

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError, match=r"test loop: it took longer than 0.05 s"):
        loop.run(hangs(), 0.05)
    assert ended.wait(5.0)
    assert loop.run(after(0.0, 1), 5.0) == 1


@pytest.mark.parametrize("leaves", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
def test_a_coroutine_that_leaves_ends_alone(loop: EventLoop, leaves: BaseException) -> None:
    """Its caller gets to know at once, and the others go on."""

    async def leave() -> None:
        raise leaves

    other = loop.start(after(0.1, 5))
    with pytest.raises(type(leaves)):
        loop.run(leave(), 5.0)
    assert other.result(5.0) == 5
    assert loop.run(after(0.0, 6), 5.0) == 6


def test_a_loop_that_closes_itself_is_refused(loop: EventLoop) -> None:
    async def closes() -> None:
        loop.close()

    with pytest.raises(RuntimeError, match="a coroutine of the loop cannot close the loop"):
        loop.run(closes(), 5.0)
    assert loop.run(after(0.0, 1), 5.0) == 1


def test_several_may_close_at_the_same_time() -> None:
    loop, failed = EventLoop("test loop"), list[BaseException]()

    def close() -> None:
        try:
            loop.close()
        except BaseException as error:
            failed.append(error)

    closing = [threading.Thread(target=close) for _ in range(8)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(5.0)
    assert not failed and not any(thread.is_alive() for thread in closing)


def test_a_loop_that_waits_for_itself_is_refused(loop: EventLoop) -> None:
    async def nests() -> int:
        return loop.run(after(0.0, 1), 5.0)

    with pytest.raises(RuntimeError, match="cannot wait for the loop; await instead"):
        loop.run(nests(), 5.0)


def test_closing_cancels_the_rest() -> None:
    loop, ended = EventLoop("test loop"), threading.Event()

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def wait() -> None:
        with pytest.raises((asyncio.CancelledError, Exception)):
            loop.run(hangs(), 30.0)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not loop.run(count(), 5.0):
        time.sleep(0.001)
    loop.close()
    waiter.join(5.0)
    assert ended.is_set() and not waiter.is_alive()
    assert not any(thread.name == "test loop" and thread.is_alive() for thread in threading.enumerate())
    loop.close()
    with pytest.raises(RuntimeError, match="test loop: the loop is closed"):
        loop.run(after(0.0, 1), 5.0)


async def count() -> int:
    """The other coroutines that run."""
    return len(asyncio.all_tasks()) - 1


async def loop_and_thread() -> tuple[int, str]:
    await asyncio.sleep(0)
    return id(asyncio.get_running_loop()), threading.current_thread().name


def test_all_threads_share_one_loop() -> None:
    found = set()
    threads = [
        threading.Thread(target=lambda: found.add(event_loop.start(loop_and_thread()).result(10)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
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
