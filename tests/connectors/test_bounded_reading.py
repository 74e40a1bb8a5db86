"""What a server sends is read up to a bound, and not a byte beyond."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import aiohttp
import pytest

from selfverify.connectors.openenv import read_at_most


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
    """Also where another module of ours would import aiohttp or openai first."""
    code = (
        "import sys; sys.modules |= dict.fromkeys(('aiohttp', 'openai'))\n"
        "from importlib import import_module\n"
        "from selfverify.core.errors import ConfigError\n"
        "for name in ('clients.openai_client', 'connectors.openenv', 'connectors.server'):\n"
        "    try: import_module(f'selfverify.{name}')\n"
        "    except ConfigError as error: print(error)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.count("pip install 'selfverify[serve]'") == 3
