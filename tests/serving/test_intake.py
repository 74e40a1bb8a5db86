"""How much of a request is taken in: bytes, values and time."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from selfverify.serving import intake
from selfverify.serving.app import Gateway
from selfverify.serving.serve_settings import GatewaySettings
from selfverify.serving.server import start
from serving_servers import (
    Body,
    FakeUpstream,
    data_url,
    open_upstream,
    png,
    post,
    question,
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


def test_requests_of_many_values_are_parsed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the event loop: twelve at once would stop it for as long as all of them take."""
    threads: list[str] = []
    real = intake.from_json
    monkeypatch.setattr(
        intake,
        "from_json",
        lambda raw, **more: (threads.append(threading.current_thread().name), real(raw, **more))[1],
    )

    async def main() -> None:
        async with AsyncExitStack() as stack:
            _, port = await opened(stack, FakeUpstream(), GatewaySettings())
            session = await stack.enter_async_context(aiohttp.ClientSession())
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            for parts in (1, 2000):
                content = [{"type": "text", "text": "?"}] * parts
                body = question() | {"messages": [{"role": "user", "content": content}]}
                status, _ = await post(session, url, body)
                assert status == 200

    asyncio.run(main())
    assert threads[0] == "MainThread" and "large" in threads[-1] and len(threads) == 2


def test_many_small_values_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser would hold the interpreter for seconds."""
    parsed: list[int] = []
    real = intake.from_json
    monkeypatch.setattr(
        intake, "from_json", lambda raw, **more: (parsed.append(len(raw)), real(raw, **more))[1]
    )

    async def main() -> list[tuple[int, Body]]:
        async with AsyncExitStack() as stack:
            _, port = await opened(stack, FakeUpstream(), GatewaySettings())
            session = await stack.enter_async_context(aiohttp.ClientSession())
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            many = json.dumps(question(x=[[]] * 30_000)).encode()
            deep = b"[" * 300 + b"]" * 300
            text = json.dumps(question("[,{" * 60_000)).encode()
            found = []
            for data in (many, deep, text):
                async with session.post(url, data=data, headers=JSON) as response:
                    found.append((response.status, await response.json()))
            return found

    many, deep, text = asyncio.run(main())
    assert many[0] == 413 and "20,000 values" in many[1]["error"]["message"]
    assert (deep[0], deep[1]["error"]["code"]) == (400, "invalid_json")
    assert text[0] == 200 and len(parsed) == 2


def test_a_request_has_not_thousands_of_fields() -> None:
    async def main() -> tuple[int, Body]:
        async with AsyncExitStack() as stack:
            _, port = await opened(stack, FakeUpstream(), GatewaySettings())
            session = await stack.enter_async_context(aiohttp.ClientSession())
            body = question(**{f"field{i}": 1 for i in range(300)})
            return await post(session, f"http://127.0.0.1:{port}/v1/chat/completions", body)

    status, reply = asyncio.run(main())
    assert status == 413 and "302 fields" in reply["error"]["message"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ("x" * 700_000, 413),
        ("x" * 400_000, 200),
        ([{"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 900_000}}], 200),
        ([{"type": "image_url", "image_url": {"url": data_url(png() + b"x" * 900_000)}}], 200),
        ([{"type": "text", "text": "data:application/pdf;base64," + "A\n" * 450_000}], 413),
    ],
)
def test_a_large_text_is_never_parsed(content: Any, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser holds the interpreter as long as it reads. Images are taken out before."""
    parsed: list[int] = []
    real = intake.from_json
    monkeypatch.setattr(
        intake, "from_json", lambda raw, **more: (parsed.append(len(raw)), real(raw, **more))[1]
    )
    fake = FakeUpstream()

    async def main() -> tuple[int, Body]:
        async with AsyncExitStack() as stack:
            _, port = await opened(stack, fake, GatewaySettings(max_text_mb=0.5))
            session = await stack.enter_async_context(aiohttp.ClientSession())
            body = question() | {"messages": [{"role": "user", "content": content}], "model": "m@plain"}
            return await post(session, f"http://127.0.0.1:{port}/v1/chat/completions", body)

    found, reply = asyncio.run(main())
    assert found == status and all(size <= 2**19 for size in parsed)
    if status == 200:
        assert fake.seen[0]["messages"][0]["content"] == content
    else:
        assert not parsed and "524,288 bytes besides images" in reply["error"]["message"]


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


def test_a_slow_body_does_not_delay_the_end() -> None:
    """The gateway would wait 30 s for it."""

    async def main() -> bytes:
        async with asyncio.timeout(20), AsyncExitStack() as stack:
            gateway, port = await opened(stack, FakeUpstream(), GatewaySettings())
            reader, writer = await post_slowly(port, b'{"model"', 1000)
            while not gateway.in_flight:
                await asyncio.sleep(0.01)
            await stack.aclose()
            line = await reader.readline()
            writer.close()
            return line

    assert b"503" in asyncio.run(main())


def test_all_bodies_together_are_bounded() -> None:
    """What is there counts, and is free again when its request has ended."""

    async def main() -> tuple[int, int, int]:
        async with AsyncExitStack() as stack:
            settings = GatewaySettings(max_body_mb=0.002, max_bodies_mb=0.002)
            gateway, port = await opened(stack, FakeUpstream(), settings)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            _, writer = await post_slowly(port, b"[" * 1990, 2000)
            while gateway.entrance.intake.held < 1990:
                await asyncio.sleep(0.01)
            refused, _ = await post(session, url, question("x" * 1000))
            writer.close()
            while gateway.in_flight:
                await asyncio.sleep(0.01)
            taken, _ = await post(session, url, question("x" * 1000))
            return refused, taken, gateway.entrance.intake.held

    assert asyncio.run(main()) == (503, 200, 0)
