"""What servers share: ports, being told to stop, and bearer keys."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web

from selfverify.connectors.server import Keys, address_of, open_port, read_keys, stop_asked
from selfverify.core.errors import ConfigError


def test_a_free_port_is_found_and_a_taken_one_is_named() -> None:
    async def use() -> None:
        async with AsyncExitStack() as stack:
            port = await open_port(web.AppRunner(web.Application()), stack, "127.0.0.1", 0)
            assert port > 0
            with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port} cannot be opened"):
                await open_port(web.AppRunner(web.Application()), stack, "127.0.0.1", port)
        async with AsyncExitStack() as stack:  # closing the stack has freed it
            assert await open_port(web.AppRunner(web.Application()), stack, "127.0.0.1", port) == port

    asyncio.run(use())


@pytest.mark.skipif(sys.platform == "win32", reason="asyncio hears of no signals there")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_hears_that_it_is_to_stop(number: signal.Signals) -> None:
    async def use() -> bool:
        stop = stop_asked()
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        async with asyncio.timeout(20):
            return await stop.wait()

    assert asyncio.run(use())


def test_addresses() -> None:
    assert address_of("127.0.0.1", 1) == "http://127.0.0.1:1" and address_of("::1", 2) == "http://[::1]:2"


def test_keys() -> None:
    keys = Keys(["one", "two"])
    assert all(map(keys.admit, ("Bearer one", "Bearer two", "bearer  two ")))
    for wrong in (None, "", "two", "Bearer", "Bearer ", "Bearer three", "Basic two", "Bearer tw\udcff"):
        assert not keys.admit(wrong)
    assert not Keys([]) and Keys([]).admit(None)


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\none\n\n two \n")
    assert read_keys(path) == ["one", "two"]
    path.write_text("# none\n")
    for wrong in (path, tmp_path / "missing"):
        with pytest.raises(ConfigError):
            read_keys(wrong)
