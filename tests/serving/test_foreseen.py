"""What is set aside for a request before it is worked on, and what it is charged where nobody counts."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from selfverify.core.requests import RATE
from selfverify.looking.look_settings import LookSettings
from selfverify.policy.policy import Policy
from selfverify.remote.client import OpenAIClient
from selfverify.remote.connection import ServerSettings
from selfverify.remote.prompt_size import prompt_tokens
from selfverify.serving.app import Gateway
from selfverify.serving.backend import Ask
from selfverify.serving.best_of import BestOf
from selfverify.serving.foreseen import foreseen_of_choosing, foreseen_of_verifying
from selfverify.serving.local import Local
from selfverify.serving.looking_gate import LookGate
from selfverify.serving.request_images import Picture
from selfverify.serving.serve_settings import GatewaySettings
from selfverify.serving.server import start
from selfverify.serving.upstream import Upstream
from serving_servers import (
    Body,
    FakeUpstream,
    bearer,
    data_url,
    frozen,
    key,
    png,
    question,
    quick_gateway,
    served,
    tagged,
)

STEP = json.dumps(
    {"thought": "?", "action_name": "crop", "action": {"image_index": 1, "bounding_box": [0, 0, 500, 500]}}
)
IMAGE = {"type": "image_url", "image_url": {"url": data_url(png((112, 112)))}}
SEEN = {"messages": [{"role": "user", "content": [IMAGE, {"type": "text", "text": "What?"}]}]}


class Counts(FakeUpstream):
    """Reads what it is sent: text by `prompt_tokens`, and 16 tokens for an image."""

    async def _chat(self, request: Any, body: Body) -> web.StreamResponse:
        reply = await super()._chat(request, body)
        if not isinstance(reply, web.Response) or reply.status != 200:
            return reply
        found = json.loads(bytes(reply.body))  # type: ignore[arg-type]
        read = prompt_tokens(body) + 16 * json.dumps(body).count("data:image")
        found["usage"] = {"prompt_tokens": read, "completion_tokens": 7 * len(found.get("choices", ()))}
        if not self.counts:
            del found["usage"]
        return web.json_response(found)


def looks(body: Body, number: int) -> str:
    return tagged("9", "0.7") if "question now" in json.dumps(body["messages"][-1]) else STEP


def charged(fake: FakeUpstream, path: str, body: Body, **more: Any) -> tuple[int, int]:
    """The most tokens that were set aside while a request was worked on, and those that it took."""
    settings = GatewaySettings(keys=[key("a", budget_tokens=10**9)], key_usage=Path("x"))
    settings = settings.model_copy(update={"key_usage": None})  # kept while this lives
    held: list[int] = []

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> tuple[int, int]:
        gateway.looking = LookGate(LookSettings(tools=["crop"], max_steps=3))
        budget = gateway.entrance.callers.budgets["a"]
        write = fake.write
        fake.write = lambda body, i: held.append(budget.held) or write(body, i)
        async with session.post(f"{url}/{path}", json=body, headers=bearer("a")) as response:
            assert response.status == 200, await response.text()
            await response.read()
        assert budget.held == 0
        return max(held, default=0), budget.spent

    return served(fake, use, settings, **more)


VERIFY = {"model": "m", "messages": question()["messages"], "answer": ["x" * 80, "y" * 80]}


@pytest.mark.parametrize(
    ("fake", "path", "body"),
    [
        ({}, "chat/completions", question(max_tokens=7)),
        ({"knows_n": False}, "chat/completions", question("x" * 400, max_tokens=7)),
        ({"knows_n": None}, "chat/completions", question("x" * 400, max_tokens=7)),
        ({}, "chat/completions", question("x" * 400, max_tokens=7, best_of={"verifier": "judge"})),
        ({}, "chat/completions", question("x" * 400, max_tokens=7, best_of={"stop": "beta"})),
        ({}, "chat/completions", question("x" * 400, max_tokens=7, best_of={"budget_tokens": 40})),
        ({"knows_n": False}, "chat/completions",
         question("x" * 400, max_tokens=7, tools=[{"type": "function", "function": {"name": "y" * 400}}])),
        ({}, "chat/completions", question("x" * 400, max_tokens=7, n=3) | {"model": "m@plain"}),
        ({}, "verify", VERIFY),
        ({"write": looks}, "chat/completions",
         {"model": "m", "max_tokens": 40, "best_of": {"n": 2}, "look": {}, **SEEN}),
        ({}, "completions", {"model": "m", "prompt": [[1] * 300, [2] * 300], "n": 2, "max_tokens": 7}),
    ],
)  # fmt: skip
def test_what_is_set_aside_is_enough(fake: Body, path: str, body: Body) -> None:
    held, spent = charged(Counts(knows_logprobs=False, knows_streams=False, **fake), path, body)
    assert 0 < spent <= held, (spent, held)


def ask(text: str = "x" * 384, pixels: int = 0, **best_of: Any) -> Ask:
    """A question of 100 tokens and its image, for candidates of 10."""
    pictures = [Picture(b"", "PNG", pixels)] if pixels else []
    return Ask({"model": "m", "max_tokens": 10, **question(text)}, pictures, BestOf(**best_of), 0.0)


def test_hand_worked_figures() -> None:
    """A judge reads 100 + 10 + 64 tokens and writes up to 64."""
    server = Upstream(OpenAIClient(ServerSettings("http://127.0.0.1:9")))

    def most(passes: bool = False, **given: Any) -> int:
        return foreseen_of_choosing(server, ask(**given), passes).most

    assert most(n=4) == 4 * 100 + 40 and most(passes=True, n=4) == 140
    assert most(n=4, verifier="judge") == most(n=4, verifier="judge:other") == 440 + 4 * 238
    assert most(n=4, verifier="soft") == most(n=4, verifier="fused:0.1") == 440 + 8 * 238
    assert most(pixels=784 * 50 + 1, n=1) == 151 + 10
    # A model that was seen to take `n` reads a question once in each draw.
    server.sampler._saw("m", 4, whole=True)
    assert most(n=4) == 140 and most(n=8, stop="beta", start=2, step=3) == 3 * 100 + 80
    assert most(n=8, budget_tokens=20) == 8 * 100 + 80
    server.reader.unable.odd("m", sure=True)
    assert most(n=4, verifier="soft") == 140
    server.sampler._saw("m", 1, whole=True)
    assert most(n=4) == 440
    assert foreseen_of_verifying(ask(), ["x" * 40, "y"]).most == 2 * (100 + 64 + 64) + 11
    assert len(RATE) // 4 < 64


def test_both_limits_of_a_candidate_are_foreseen() -> None:
    """Some servers know only the older one."""
    body = question(max_completion_tokens=1, max_tokens=500, best_of={"n": 2})
    assert charged(Counts(), "chat/completions", body)[0] > 1000


def test_a_budget_is_not_overrun_by_judges() -> None:
    settings = GatewaySettings(keys=[key("a", tokens_per_minute=600)])

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[int]:
        caller = frozen(gateway.entrance.callers.find("a"))
        assert caller.tokens is not None
        caller.tokens.take(100)
        found = []
        for path, body in (
            ("chat/completions", question(max_tokens=7, best_of={"verifier": "judge"})),
            ("verify", VERIFY | {"answer": ["9"] * 8}),
            ("chat/completions", question(max_tokens=7, best_of={"n": 2})),
        ):
            async with session.post(f"{url}/{path}", json=body, headers=bearer("a")) as response:
                found.append(response.status)
        return found

    assert served(Counts(), use, settings) == [429, 429, 200]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [[5] * 400, [[5] * 200, [6] * 200]])
def test_tokens_that_nobody_counts_are_charged(stream: bool, prompt: Any) -> None:
    body = {"model": "m", "prompt": prompt, "stream": stream, "max_tokens": 7}
    assert charged(Counts(counts=False), "completions", body)[1] >= 400


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_short_tokens_that_nobody_counts_are_charged(path: str) -> None:
    """A stream has at least as many tokens as pieces with a text, whatever their length."""

    class Digits(FakeUpstream):
        async def _stream(self, request: Any, texts: list[str], fault: Any) -> web.StreamResponse:
            part: Body = {"delta": {"content": "7"}} if path == "chat/completions" else {"text": "7"}
            event = b"data: " + json.dumps({"choices": [{"index": 0, **part}]}).encode() + b"\n\n"
            body = event * 200 + b'data: {"choices": [{"index": 0, "delta": {}}]}\n\n' * 50
            return web.Response(body=body + b"data: [DONE]\n\n", content_type="text/event-stream")

    body = question(stream=True, prompt="7") | {"model": "m@plain"}
    assert 200 <= charged(Digits(), path, body)[1] < 220


def test_embeddings_that_nobody_counts_are_charged() -> None:
    body = {"model": "m", "input": [[5] * 200, [6] * 200]}
    assert charged(Counts(counts=False), "embeddings", body)[1] == 400


def test_each_reading_that_nobody_counts_is_charged() -> None:
    body = question("x" * 400, max_tokens=7, best_of={"n": 3})
    assert charged(Counts(counts=False, knows_n=False), "chat/completions", body, separate=True)[1] > 300


@pytest.mark.parametrize("counts", [True, False])
def test_each_turn_of_looking_is_charged(counts: bool) -> None:
    """Four turns: the question, with an image of 16 tokens, and then what was said and shown before."""
    fake = Counts(write=looks, counts=counts)
    body = {"model": "m", "max_tokens": 40, "best_of": {"n": 1}, "look": {}, **SEEN}
    _, spent = charged(fake, "chat/completions", body)
    turns = [prompt_tokens(body) for body in fake.seen]
    assert len(turns) == 4 and turns == sorted(turns)
    assert sum(turns) + 4 * 16 <= spent <= sum(turns) + 4 * (16 + 3 * 16 + 60)


def test_what_own_models_judge_is_charged(policy: Policy) -> None:
    settings = GatewaySettings(keys=[key("a", tokens_per_minute=10**6)])

    async def main() -> tuple[int, Body]:
        async with AsyncExitStack() as stack:
            gateway = quick_gateway("http://127.0.0.1:9", settings)
            gateway = Gateway(Local(policy, "tiny"), settings, gateway.keys)
            port = await start(gateway, "127.0.0.1", 0, stack, grace_s=2)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            caller = frozen(gateway.entrance.callers.find("a"))
            body = {**VERIFY, "model": "tiny", "messages": question("x" * 40)["messages"]}
            url = f"http://127.0.0.1:{port}/v1/verify"
            async with session.post(url, json=body, headers=bearer("a")) as response:
                found = await response.json()
                assert response.status == 200, found
            assert caller.tokens is not None
            return round(10**6 - caller.tokens.left), found

    spent, found = asyncio.run(main())
    assert spent > 2 * 10 + 40 and not found["usage_complete"]
