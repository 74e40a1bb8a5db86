"""What of a request is taken in."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from selfverify.serving.app import Gateway
from selfverify.serving.serve_settings import GatewaySettings
from selfverify.serving.server import start
from serving_servers import (
    FakeUpstream,
    open_upstream,
    quick_gateway,
)

JSON = {"Content-Type": "application/json"}


async def opened(stack: AsyncExitStack, fake: FakeUpstream, settings: GatewaySettings) -> tuple[Gateway, int]:
    """A gateway and its port."""
    gateway = quick_gateway(await open_upstream(fake, stack), settings)
    return gateway, await start(gateway, "127.0.0.1", 0, stack, grace_s=30)


async def post_slowly(
    port: int, begun: bytes, length: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request whose body is said to have ``length`` bytes, of which ``begun`` are sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + begun)
    await writer.drain()
    return reader, writer


def test_infinity_is_no_json() -> None:
    async def main() -> tuple[int, Any]:
        async with AsyncExitStack() as stack:
            fake = FakeUpstream()
            _, port = await opened(stack, fake, GatewaySettings())
            session = await stack.enter_async_context(aiohttp.ClientSession())
            data = b'{"model": "m", "messages": [{"role": "user", "content": "?"}], "top_k": Infinity}'
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            async with session.post(url, data=data, headers=JSON) as response:
                assert not fake.seen
                return response.status, (await response.json())["error"]["code"]

    assert asyncio.run(main()) == (400, "invalid_json")


def test_a_slow_body_keeps_to_the_timeout() -> None:
    async def main() -> bytes:
        async with AsyncExitStack() as stack:
            _, port = await opened(stack, FakeUpstream(), GatewaySettings(timeout=0.2))
            reader, writer = await post_slowly(port, b'{"model"', 1000)
            async with asyncio.timeout(20):
                line = await reader.readline()
            writer.close()
            return line

    assert b"408" in asyncio.run(main())
