"""Calls that are made again: how often, how long is waited, what is counted."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from selfverify.clients.openai_client import OpenAIClient, ServerConfig
from selfverify.core.errors import ServerError
from serving_servers import Body, FakeUpstream, open_upstream, question

FAULTS: dict[str, Any] = {"passing": 503, "wrong": 400, "garbage": "garbage", "cut": "cut", "done": None}


class Busy(FakeUpstream):
    """Refuses its first requests with these ``Retry-After``; the answers that follow are whole."""

    def __init__(self, *waits: str) -> None:
        super().__init__()
        self.waits = waits

    async def _chat(self, request: web.Request, body: Body) -> web.StreamResponse:
        if len(self.seen) > len(self.waits):
            return await super()._chat(request, body)
        wait = {"Retry-After": self.waits[len(self.seen) - 1]}
        return web.json_response({"error": {"message": "busy"}}, status=429, headers=wait)


def tried(
    fake: FakeUpstream, within_s: float | None = None, **settings: Any
) -> tuple[str, int, int, list[str], float]:
    """How a call ends, how often the server was asked, how many tries are lost, the outcomes, seconds."""

    async def main() -> tuple[str, int, int, list[str], float]:
        async with AsyncExitStack() as stack:
            url = await open_upstream(fake, stack)
            server = ServerConfig(url, **{"wait_s": 0.001, "longest_wait_s": 0.5} | settings)
            outcomes, lost = list[str](), list[int]()
            client = await stack.enter_async_context(OpenAIClient(server, outcomes.append))
            now = asyncio.get_running_loop().time
            until = {} if within_s is None else {"until": now() + within_s}
            begun, ended = time.monotonic(), "done"
            try:
                await client.chat(question(), lambda: lost.append(1), **until)
            except ServerError as error:
                ended = str(error)
            return ended, len(fake.seen), len(lost), outcomes, time.monotonic() - begun

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("faults", "asked", "lost", "ends"),
    [
        (["done"], 1, 0, "done"),
        (["passing", "done"], 2, 0, "done"),
        (["garbage", "cut", "done"], 3, 2, "done"),
        (["passing", "passing", "passing", "done"], 3, 0, "refused (503)"),
        (["wrong", "done"], 1, 0, "refused (400)"),
        (["passing", "wrong", "done"], 2, 0, "refused (400)"),
    ],
)
def test_what_may_pass_is_tried_again(faults: list[str], asked: int, lost: int, ends: str) -> None:
    """What a server may have answered is counted: its reply cannot be read, or broke off."""
    left = [FAULTS[name] for name in faults]
    ended, *counted, outcomes, _ = tried(FakeUpstream(fault=lambda body: left.pop(0)))
    assert ends in ended and counted == [asked, lost]
    names = {"passing": "refused", "wrong": "refused", "garbage": "bad_reply", "cut": "cut_off", "done": "ok"}
    assert outcomes == [names[name] for name in faults[:asked]]


def test_a_wait_that_the_server_asks_for_is_kept_if_there_is_time() -> None:
    """Until the deadline, or without one for the longest wait; the first second would be too early."""
    ended, asked, _, _, seconds = tried(Busy("0.4"), within_s=30.0)
    assert (ended, asked) == ("done", 2) and seconds >= 0.4
    assert tried(Busy("0.4", "0.4"))[:2] == ("done", 3)


@pytest.mark.parametrize(("within_s", "most"), [(None, "0.5"), (0.3, "0.3")])
def test_a_wait_that_is_too_long_is_told_at_once(within_s: float | None, most: str) -> None:
    ended, asked, _, _, seconds = tried(Busy("40"), within_s, tries=9)
    assert "busy; it wants to be asked again in 40 s" in ended and asked == 1 and seconds < 20
    if within_s is None:
        assert f"at most {most} s are waited" in ended


def test_no_try_begins_behind_the_deadline() -> None:
    ended, asked, *_ = tried(FakeUpstream(fault=lambda body: 503), within_s=-1.0)
    assert "refused (503)" in ended and asked == 1


def test_a_call_that_is_cancelled_is_not_made_again() -> None:
    fake, lost = FakeUpstream(fault=lambda body: "slow"), list[int]()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            server = ServerConfig(await open_upstream(fake, stack), wait_s=0.001)
            client = await stack.enter_async_context(OpenAIClient(server))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await client.chat(question(), lambda: lost.append(1))

    asyncio.run(main())
    assert len(fake.seen) == len(lost) == 1
