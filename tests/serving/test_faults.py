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

from selfverify.serving.config import GatewayConfig
from selfverify.serving.server import start
from serving_servers import Body, FakeUpstream, open_upstream, question, quick_gateway, tagged

REQUESTS = 400
AT_ONCE = 40
FAULTS = (*[None] * 7, *[500, 429, 400, "garbage", "cut", "half"] * 2, "slow")


class Client:
    """Asks one question and keeps what it is told."""

    def __init__(self, number: int) -> None:
        self.number = number
        dice = random.Random(number)
        self.streams = dice.random() < 0.4
        self.leaves = dice.random() < 0.1
        self.outcome = ""
        self.answers: list[str] = []
        self.error: Body = {}

    async def ask(self, session: aiohttp.ClientSession, url: str) -> None:
        more: Body = {"stream": True} if self.streams else {}
        body = question(f"question {self.number}?", best_of={"n": 4, "content": "answer"}, **more)
        try:
            async with asyncio.timeout(0.05 if self.leaves else 30):
                async with session.post(f"{url}/chat/completions", json=body) as response:
                    text = await response.text()
        except TimeoutError:
            self.outcome = "left" if self.leaves else "lost"
            return
        found = [text]
        if response.content_type == "text/event-stream":
            found = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            if found[-1] == "[DONE]":
                found.pop()
        replies = [json.loads(part) for part in found]
        errors = [reply["error"] for reply in replies if "error" in reply]
        for error in errors:
            self.error = error
            assert error["message"] and error["type"] and error["code"]
        parts = [c.get("delta", c.get("message")) for r in replies for c in r.get("choices", ())]
        said = "".join(part.get("content") or "" for part in parts)
        self.answers = [said] if said else []
        assert len(errors) + len(self.answers) == 1, text
        self.outcome = "error" if errors else "answer"


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
    clients = [Client(number) for number in range(REQUESTS)]

    async def main() -> tuple[str, int]:
        async with AsyncExitStack() as stack:
            settings = GatewayConfig(timeout=4.0)
            gateway = quick_gateway(await open_upstream(fake, stack), settings, timeout_s=1.5)
            port = await start(gateway, "127.0.0.1", 0, stack, grace_s=2)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
            )
            waiting = iter(clients)

            async def worker() -> None:
                for client in waiting:
                    await client.ask(session, f"http://127.0.0.1:{port}/v1")

            async with asyncio.timeout(200):
                await asyncio.gather(*[worker() for _ in range(AT_ONCE)])
                while gateway.in_flight or fake.open:
                    await asyncio.sleep(0.01)
            return gateway.metrics.text().decode(), gateway.in_flight

    metrics, in_flight = asyncio.run(main())
    counts = collections.Counter(client.outcome for client in clients)
    assert set(counts) == {"answer", "error", "left"} and sum(counts.values()) == REQUESTS
    assert counts["answer"] > 200 and counts["error"] > 8
    for client in clients:
        if client.outcome == "answer":
            assert client.answers == [f"to {client.number}"]
        if fates[str(client.number)] == [None] and not client.leaves:
            assert client.outcome == "answer", (client.number, client.error)
    assert in_flight == 0 and fake.open == 0
    told = re.findall(
        r'selfverify_requests_total\{path="/v1/chat/completions",status="(\d+)"\} (\d+)', metrics
    )
    by_status = {status: int(count) for status, count in told}
    total = sum(by_status.values())
    # A client that leaves may do so before the gateway has heard of it.
    assert REQUESTS - counts["left"] <= total <= REQUESTS
    assert total - by_status["499"] >= counts["answer"] + counts["error"]
