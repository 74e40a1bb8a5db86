"""Calls that are made again, and replies that are read up to a bound."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import aiohttp
import pytest

from selfverify.clients.openai_client import ServerConfig, read_at_most, tried_again
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


async def read(parts: list[bytes], most: int, ends: bool = True) -> bytes | None:
    """What is read of a stream of these parts."""
    protocol = aiohttp.base_protocol.BaseProtocol(asyncio.get_running_loop())
    stream = aiohttp.StreamReader(protocol, 2**16, loop=asyncio.get_running_loop())
    for part in parts:
        stream.feed_data(part)
    if ends:
        stream.feed_eof()
    async with asyncio.timeout(5):
        return await read_at_most(stream, most)


@pytest.mark.parametrize("most", [6, 5, 4, 0])
@pytest.mark.parametrize("parts", [[b"abcde"], [b"ab", b"cde"], [b"a", b"b", b"c", b"d", b"e"]])
def test_all_or_nothing(parts: list[bytes], most: int) -> None:
    assert asyncio.run(read(parts, most)) == (b"abcde" if most >= 5 else None)


def test_what_is_too_much_is_not_waited_for() -> None:
    """The stream never ends."""
    assert asyncio.run(read([b"abcde"], 4, ends=False)) is None


def test_without_the_extra_it_is_named() -> None:
    """Also where another module of ours would import aiohttp first."""
    code = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "from importlib import import_module\n"
        "from selfverify.core.errors import ConfigError\n"
        "for name in ('clients.openai_client', 'connectors.openenv', 'connectors.server'):\n"
        "    try: import_module(f'selfverify.{name}')\n"
        "    except ConfigError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.count("pip install 'selfverify[serve]'") == 3
