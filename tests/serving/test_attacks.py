"""What a stranger may try on a gateway, and what servers do that answer oddly."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from selfverify.serving import upstream
from selfverify.serving.app import Gateway
from selfverify.serving.config import GatewayConfig, ListeningConfig
from selfverify.serving.server import YOUNG_OBJECTS, run_gateway
from serving_servers import (
    CHAT,
    Body,
    FakeUpstream,
    ask,
    open_upstream,
    post,
    question,
    quick_gateway,
    served,
    tagged,
    used,
)
from tables import read_tables, yaml_cases


def test_at_the_deadline_what_was_finished_is_chosen_from() -> None:
    """Also where nobody watches a stream: seven of eight are there, the last one hangs."""

    class Hangs(FakeUpstream):
        async def _stream(self, request: web.Request, texts: list[str], fault: Any) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for i, text in enumerate(texts[:-1]):
                choice = {"index": i, "delta": {"content": text}, "finish_reason": "stop"}
                await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            await asyncio.sleep(60)
            return response

    for best_of, settings in [({"timeout_s": 1.0}, GatewayConfig()), ({}, GatewayConfig(timeout=1.0))]:
        status, reply = ask(Hangs(), question(best_of={"n": 8} | best_of), settings)
        assert status == 200 and reply["best_of"]["stopped"] == "deadline"
        assert (reply["best_of"]["samples_used"], reply["best_of"]["samples_missing"]) == (7, 1)


def test_a_quick_model_is_asked_for_one_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is quick: after a slow reply the next one is a stream."""
    fake = FakeUpstream()

    async def use(session: aiohttp.ClientSession, url: str, _: Gateway) -> None:
        for share in (1.0, 0.0, 1.0, 1.0):
            monkeypatch.setattr(upstream, "_QUICK", share)
            status, reply = await post(session, f"{url}/{CHAT}", question(best_of={"n": 4}))
            assert status == 200 and reply["best_of"]["samples_used"] == 4

    served(fake, use)
    assert [body.get("stream", False) for body in fake.seen] == [True, False, True, False]


class Endless(FakeUpstream):
    """Streams words, up to 60 MB, and counts what is taken of them."""

    taken = 0

    async def _stream(self, request: web.Request, texts: list[str], fault: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(1000):
            choice = {"index": 0, "delta": {"content": "word " * 12_000}}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            self.taken += 60_000
        await response.write(b"data: [DONE]\n\n")
        return response


def test_a_client_that_does_not_read_stops_the_server() -> None:
    """What it does not read is not queued for it: the server's own stream waits."""
    fake = Endless()
    assert unread(fake, {"model": "m@plain", "stream": True}) == 1
    assert 0 < fake.taken < 30_000_000


def test_a_client_that_does_not_read_loses_its_slot() -> None:
    fake = FakeUpstream(write=lambda body, i: "x" * 30_000_000)
    assert unread(fake, {"model": "m@plain", "stream": True}) == 1


def unread(fake: FakeUpstream, fields: Body) -> float:
    """How many requests were given up, of one whose reader stalls."""

    async def use(_: aiohttp.ClientSession, url: str, gateway: Gateway) -> float:
        gateway.stall_s = 0.2
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port, limit=1024)
        data = json.dumps(question() | fields).encode()
        head = f"POST /v1/{CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
        await writer.drain()
        await reader.readline()
        writer.transport.pause_reading()
        while gateway.in_flight:
            await asyncio.sleep(0.02)
        writer.close()
        return gateway.metrics.requests.labels(f"/v1/{CHAT}", "499")._value.get()

    return served(fake, use)


def test_nothing_of_a_request_is_in_the_log(caplog: pytest.LogCaptureFixture, picture: str) -> None:
    """Nor of an answer: not from aiohttp, which quotes what it cannot read, nor from faults of our own."""
    caplog.set_level(logging.DEBUG)
    parts = [{"type": "image_url", "image_url": {"url": picture}}, {"type": "text", "text": "my-secret"}]

    def broken(*args: Any) -> None:
        raise ValueError("my-secret")

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        body = question() | {"messages": [{"role": "user", "content": parts}]}
        assert (await post(session, f"{url}/{CHAT}", body))[0] == 200
        gateway.backend.check = broken  # type: ignore[assignment]
        assert (await post(session, f"{url}/{CHAT}", body))[0] == 500
        for line in (
            b"POST /v1/x HTTP/1.1\r\nAuthorization: Bearer my-secret\r\nmy-secret\r\n\r\n",
            b"my-secret my-secret my-secret\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: my-secret\r\nContent-Length: my-secret\r\n\r\n",
            b"POST /v1/verify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nmy-secret\r\n",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", URL(url).port)
            writer.write(line)
            assert b" 400 " in await reader.readline()
            writer.close()

    served(FakeUpstream(write=lambda body, i: tagged("my-secret")), use)
    told = [record.getMessage() + str(record.exc_info) for record in caplog.records]
    assert any("failed: ValueError" in line for line in told) and "/v1/chat/completions 200" in caplog.text
    assert not [line for line in told if "my-secret" in line or "base64" in line]
    assert "my-secret" not in caplog.text


def test_collections_leave_out_what_was_there_before() -> None:
    """Modules and weights: going through them stops all requests."""
    frozen: list[int] = []

    def on_ready(port: int) -> None:
        frozen.append(gc.get_freeze_count())
        os.kill(os.getpid(), signal.SIGTERM)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            gateway = quick_gateway(await open_upstream(FakeUpstream(), stack))
            await run_gateway(gateway, ListeningConfig(port=0), on_ready)

    usual = gc.get_threshold()
    try:
        asyncio.run(main())
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
    finally:
        gc.unfreeze()
        gc.set_threshold(*usual)
    assert frozen[0] > 1000


def test_requests_leave_nothing_for_the_garbage_collector() -> None:
    """Looking for it would stop all requests: what a request makes is freed when it is over."""

    async def use(session: aiohttp.ClientSession, url: str, _: Gateway) -> int:
        async def ask_some(n: int) -> None:
            for _ in range(n):
                assert (await post(session, f"{url}/{CHAT}", question(best_of={"n": 4})))[0] == 200

        await ask_some(5)
        gc.collect()
        gc.disable()
        try:
            left = []
            # Other threads of this process may leave something once; what requests leave comes each time.
            for _ in range(3):
                await ask_some(20)
                left.append(gc.collect())
            return min(left)
        finally:
            gc.enable()

    assert served(FakeUpstream(), use) < 40  # before there were 32 for each request


@yaml_cases
def test_a_page_cannot_lend_the_loopback_its_name(host: str, keys: list[str] | None, status: int) -> None:
    async def use(session: aiohttp.ClientSession, url: str, _: Gateway) -> list[int]:
        found = []
        for path in ("/", "/v1/models"):
            headers = {"Host": host, "Authorization": "Bearer k"}
            async with session.get(str(URL(url).with_path(path)), headers=headers) as response:
                found.append(response.status)
        return found

    assert served(FakeUpstream(), use, keys=keys) == [status] * 2


def test_a_server_cannot_make_up_labels_nor_show_its_address() -> None:
    def refuse(body: Body) -> web.Response:
        return web.json_response({"error": {"message": "no", "code": "made-up"}}, status=400)

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> tuple[str, Body]:
        _, reply = await post(session, f"{url}/{CHAT}", question())
        return gateway.metrics.text().decode(), reply

    metrics, _ = served(FakeUpstream(says=refuse), use)
    assert "made-up" not in metrics and 'outcome="refused"' in metrics

    async def gone() -> Body:
        async with AsyncExitStack() as stack:
            _, reply = await used(quick_gateway("http://127.0.0.1:9"), use, stack)
            return reply

    reply = asyncio.run(gone())
    assert reply["error"]["code"] == "unreachable" and "127.0.0.1" not in reply["error"]["message"]


def test_fields_of_the_standard_and_of_servers_pass() -> None:
    tables = read_tables(Path(__file__).with_suffix(".yaml"))
    own: Body = dict.fromkeys(tables["of_servers"].split(), 1) | tables["of_the_standard"]
    fake = FakeUpstream()
    assert ask(fake, question(**own, frequency_penalty=None))[0] == 200
    assert {name: fake.seen[0][name] for name in own} == own and "frequency_penalty" not in fake.seen[0]
