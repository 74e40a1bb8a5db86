"""Calls that are made again."""

from __future__ import annotations

import asyncio
import gc

import pytest

from selfverify.clients.openai_client import ServerConfig, tried_again
from selfverify.core.errors import ServerError

SETTINGS = ServerConfig("http://127.0.0.1:1", tries=3, wait_s=0.001, longest_wait_s=0.01)


def tried(faults: list[ServerError | None], until: float | None = None) -> tuple[object, int]:
    """What comes of a call whose attempts end so, and how many there were."""
    made = 0

    async def attempt() -> str:
        nonlocal made
        made += 1
        fault = faults[made - 1]
        if fault is not None:
            raise fault
        return "done"

    async def main() -> object:
        try:
            return await tried_again(attempt, SETTINGS, until)
        except ServerError as error:
            return error

    return asyncio.run(main()), made


def passing(wait_s: float | None = None) -> ServerError:
    """A fault that may be over a moment later."""
    return ServerError("no", 503, None, True, wait_s)


def test_what_may_pass_is_tried_again() -> None:
    assert tried([None]) == ("done", 1)
    assert tried([passing(), None]) == ("done", 2)
    assert tried([passing(), passing(), None]) == ("done", 3)
    last = passing()
    assert tried([passing(), passing(), last]) == (last, 3)


def test_what_does_not_pass_is_told_at_once() -> None:
    wrong = ServerError("wrong", 400)
    assert tried([wrong]) == (wrong, 1)
    assert tried([passing(), wrong]) == (wrong, 2)


def test_nobody_waits_longer_than_allowed() -> None:
    late = passing(wait_s=60.0)
    assert tried([late]) == (late, 1)
    first = passing()
    assert tried([first], until=0.0) == (first, 1)


def left_over(faults: int) -> list[object]:
    """What of tenacity only the garbage collector could free after calls with so many faults.

    Other threads leave things of their own behind meanwhile.
    """

    async def main() -> None:
        for _ in range(20):
            todo = [passing() for _ in range(faults)]

            async def attempt(todo: list[ServerError] = todo) -> int:
                if todo:
                    raise todo.pop()
                return 1

            await tried_again(attempt, SETTINGS)

    asyncio.run(main())
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        asyncio.run(main())
        gc.collect()
        return [one for one in gc.garbage if type(one).__module__.startswith("tenacity")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_call_that_succeeds_leaves_nothing_for_the_garbage_collector() -> None:
    """One that failed at first leaves tenacity's objects, so that the test could tell."""
    assert left_over(0) == [] and len(left_over(1)) >= 20


def test_a_call_that_is_cancelled_is_not_made_again() -> None:
    made = 0

    async def attempt() -> None:
        nonlocal made
        made += 1
        await asyncio.sleep(60)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await tried_again(attempt, SETTINGS)

    asyncio.run(main())
    assert made == 1
