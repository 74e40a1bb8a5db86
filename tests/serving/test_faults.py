"""Hundreds of requests to a gateway before a server that fails in every way: each is accounted for."""

from __future__ import annotations

import asyncio
import collections
import json
import random
import re
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
import requests

from selfverify.serving.app import request_id
from selfverify.serving.config import GatewayConfig
from selfverify.serving.server import start
from serving_servers import CHAT, Body, FakeUpstream, Loop, open_upstream, question, quick_gateway, tagged

REQUESTS = 400
AT_ONCE = 40
FAULTS = (*[None] * 7, *[500, 429, 400, "garbage", "cut", "half"] * 2, "slow")


async def asked(number: int, session: aiohttp.ClientSession, url: str) -> tuple[str, str]:
    """How a client fares, ``left``, ``lost``, ``error`` or ``answer``, and the answer."""
    dice = random.Random(number)
    more: Body = {"stream": True} if dice.random() < 0.4 else {}
    leaves = dice.random() < 0.1
    body = question(f"question {number}?", best_of={"n": 4, "content": "answer"}, **more)
    try:
        async with asyncio.timeout(0.05 if leaves else 30):
            async with session.post(f"{url}/chat/completions", json=body) as response:
                text = await response.text()
    except TimeoutError:
        return ("left" if leaves else "lost"), ""
    found = [text]
    if response.content_type == "text/event-stream":
        found = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    replies = [json.loads(part) for part in found]
    errors = [reply["error"] for reply in replies if "error" in reply]
    assert all(error["message"] and error["type"] and error["code"] for error in errors)
    parts = [c.get("delta", c.get("message")) for r in replies for c in r.get("choices", ())]
    said = "".join(part.get("content") or "" for part in parts)
    assert len(errors) + bool(said) == 1, text
    return ("error" if errors else "answer"), said


def test_hundreds_of_requests() -> None:
    tries: collections.Counter[str] = collections.Counter()
    fates: dict[str, list[Any]] = collections.defaultdict(list)

    def number_of(body: Body) -> str:
        found = re.match(r"question (\d+)\?", body["messages"][0]["content"])
        assert found
        return found[1]

    def fault(body: Body) -> Any:
        number = number_of(body)
        tries[number] += 1
        fate = random.Random(f"{number}/{tries[number]}").choice(FAULTS)
        fates[number].append(fate)
        return fate

    fake = FakeUpstream(fault=fault, write=lambda body, i: tagged(f"to {number_of(body)}", "0.5"))
    fared: dict[int, tuple[str, str]] = {}

    async def main() -> tuple[str, int]:
        async with AsyncExitStack() as stack:
            settings = GatewayConfig(timeout=4.0)
            gateway = quick_gateway(await open_upstream(fake, stack), settings, timeout_s=1.5)
            port = await start(gateway, "127.0.0.1", 0, stack, grace_s=2)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            )
            waiting = iter(range(REQUESTS))

            async def worker() -> None:
                for number in waiting:
                    fared[number] = await asked(number, session, f"http://127.0.0.1:{port}/v1")

            async with asyncio.timeout(200):
                await asyncio.gather(*[worker() for _ in range(AT_ONCE)])
                while gateway.in_flight or fake.open:
                    await asyncio.sleep(0.01)
            return gateway.metrics.text().decode(), gateway.in_flight

    metrics, in_flight = asyncio.run(main())
    counts = collections.Counter(outcome for outcome, _ in fared.values())
    assert set(counts) == {"answer", "error", "left"} and sum(counts.values()) == REQUESTS
    assert counts["answer"] > 200 and counts["error"] > 8
    for number, (outcome, answer) in fared.items():
        assert outcome != "answer" or answer == f"to {number}"
        assert fates[str(number)] != [None] or outcome in ("answer", "left"), number
    assert in_flight == 0 and fake.open == 0
    told = re.findall(
        r'selfverify_requests_total\{path="/v1/chat/completions",status="(\d+)"\} (\d+)', metrics
    )
    by_status = {status: int(count) for status, count in told}
    total = sum(by_status.values())
    # A client that leaves may do so before the gateway has heard of it.
    assert REQUESTS - counts["left"] <= total <= REQUESTS
    assert total - by_status["499"] >= counts["answer"] + counts["error"]


# --- ids of requests, and headers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    ["abc", "A.b:c_d-9", "x" * 128, None, "", "a b", "x" * 129, "é", "a\n", "a\r\nSet-Cookie: b", "<b>"],
)
def test_an_id_is_taken_or_made(given: str | None) -> None:
    taken = given in ("abc", "A.b:c_d-9", "x" * 128)
    assert request_id(given) == given if taken else re.fullmatch(r"req-[0-9a-f]{24}", request_id(given))


def test_a_clients_id_is_returned(servers: Loop) -> None:
    """With every kind of answer, errors included."""
    url, _ = servers.before(FakeUpstream())
    bodies: list[tuple[Body, int]] = [
        (question(), 200),
        (question(stream=True), 200),
        (question() | {"model": "m@plain"}, 200),
        (question(stream=True) | {"model": "m@plain"}, 200),
        (question(n=-1), 400),
    ]
    for i, (body, status) in enumerate(bodies):
        given = {"x-request-id": f"mine-{i}"}
        reply = requests.post(f"{url}/{CHAT}", json=body, headers=given, timeout=10)
        assert (reply.status_code, reply.headers["x-request-id"]) == (status, f"mine-{i}")
    reply = requests.get(f"{url}/nowhere", headers={"x-request-id": "not mine"}, timeout=10)
    assert reply.headers["x-request-id"].startswith("req-")
