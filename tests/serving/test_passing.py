"""What an upstream answers without us: completions of a text, and embeddings."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from selfverify.policy.policy import Policy
from selfverify.serving.app import Gateway
from selfverify.serving.counters import Metrics
from selfverify.serving.local import Local
from selfverify.serving.serve_settings import GatewaySettings
from selfverify.serving.server import start
from serving_servers import Body, FakeUpstream, Loop, bearer, frozen, key, post, served

ODD = b'{ "data":[{"embedding":"AAAAPw==","z":1.0e2}],"usage":{"prompt_tokens":3} }'
EVENTS = (b'data: {"choices": [{"index":0,"text":"1"}],  "z":1.0e2}', b'event: x\ndata: {"choices": []}')


class Says(FakeUpstream):
    """Says these bytes at every path, with headers of OpenAI's and of its own."""

    def __init__(self, said: bytes) -> None:
        super().__init__()
        self.said = said

    async def _chat(self, request: Any, body: Body) -> web.StreamResponse:
        kind = "text/event-stream" if self.said.startswith(b"data") else "application/json"
        headers = {"openai-processing-ms": "7", "Set-Cookie": "a=b", "Content-Type": kind}
        headers["openai-organization"] = "the-operator"
        return web.Response(body=self.said, headers=headers)


def asked(fake: FakeUpstream, path: str, body: Body, **more: Any) -> tuple[int, Body]:
    return served(fake, lambda session, url, _: post(session, f"{url}/{path}", body), **more)


def text(**more: Any) -> Body:
    return {"model": "m", "prompt": "7+2=", **more}


def test_each_prompt_counts_as_a_request() -> None:
    settings = GatewaySettings(keys=[key("a", requests_per_minute=20)])

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[str]:
        frozen(gateway.entrance.callers.find("a"))
        left = []
        for prompt in ([5] * 1000, ["x", "y"], [[5] * 9, [6] * 9, [7]]):
            body = text(prompt=prompt, n=2)
            async with session.post(f"{url}/completions", json=body, headers=bearer("a")) as response:
                assert response.status == 200
                left.append(response.headers["x-ratelimit-remaining-requests"])
        return left

    assert served(FakeUpstream(), use, settings) == ["18", "14", "8"]


@pytest.mark.parametrize("path", ["completions", "embeddings"])
def test_every_byte_arrives(path: str) -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        body = {"model": "m@plain", "prompt": "x", "top_k": 3, "best_of": 2}
        async with session.post(f"{url}/{path}", json=body) as response:
            assert (response.status, await response.read()) == (200, ODD)
            assert response.headers["openai-processing-ms"] == "7"
            assert "Set-Cookie" not in response.headers and response.headers["x-request-id"]
            assert "openai-organization" not in response.headers
        assert 'tokens_total{kind="prompt"} 3.0' in gateway.metrics.text().decode()

    fake = Says(ODD)
    served(fake, use)
    assert fake.seen == [{"model": "m", "prompt": "x", "top_k": 3, "best_of": 2}]


def test_every_event_arrives() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        async with session.post(f"{url}/completions", json=text(stream=True)) as response:
            assert response.content_type == "text/event-stream"
            assert await response.read() == b"\n\n".join([*EVENTS, b"data: [DONE]", b""])

    served(Says(b"\n\n".join([*EVENTS, b"data: [DONE]", b""])), use)


def test_a_server_without_streams_is_streamed() -> None:
    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[str]:
        async with session.post(f"{url}/completions", json=text(stream=True)) as response:
            return [line for line in (await response.text()).splitlines() if line]

    first, last = served(FakeUpstream(knows_streams=False), use)
    assert "<answer>0</answer>" in json.loads(first[6:])["choices"][0]["text"] and last == "data: [DONE]"


def test_python(servers: Loop) -> None:
    """OpenAI's own client."""
    address, _ = servers.before(FakeUpstream(write=lambda body, i: "9"))
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        assert client.completions.create(model="m", prompt="7+2=").choices[0].text == "9"
        stream = client.completions.create(model="m", prompt="7+2=", stream=True)
        assert "".join(chunk.choices[0].text or "" for chunk in stream if chunk.choices) == "9"
        assert client.embeddings.create(model="m", input="x").data[0].embedding == [0.5, -1.0]
        with pytest.raises(openai.NotFoundError) as unknown:
            client.embeddings.create(model="other", input="x")
        assert unknown.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "status", "param", "words"),
    [
        ({"prompt": "x"}, 400, "model", "model"),
        ({"model": "m@bo8", "prompt": "x"}, 400, "model", "nothing is chosen"),
        (text(n=65), 400, "n", "at most 64"),
        (text(best_of=65), 400, "best_of", "at most 64"),
        (text(prompt=["x"] * 65), 400, "prompt", "at most 64"),
        (text(prompt=["x"] * 33, n=2), 400, "prompt", "33 prompts make 66 candidates"),
        (text(prompt=[1, *["x"] * 64]), 400, "prompt", "at most 64"),
        (text(prompt=[[1]] * 22, best_of=3), 400, "prompt", "at most 64"),
        (text(prompt=None, prompt_embeds=["AA=="] * 65), 400, "prompt", "at most 64"),
        (text(messages=[{"content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1"}}]}]),
         400, "messages.0.content.0.image_url", "chat/completions"),
        (text(audio_url="http://10.0.0.1"), 400, "audio_url", "chat/completions"),
    ],
)  # fmt: skip
def test_what_is_refused(body: Body, status: int, param: str, words: str) -> None:
    fake = FakeUpstream()
    got, reply = asked(fake, "completions", body)
    assert (got, reply["error"]["param"]) == (status, param) and words in reply["error"]["message"]
    assert not fake.seen


@pytest.mark.parametrize(
    ("fault", "status", "calls"),
    [(400, 400, 1), (401, 502, 1), (429, 429, 2), (503, 503, 2), ("garbage", 502, 2), ("cut", 502, 2)],
)
def test_faults_are_told(fault: str | int, status: int, calls: int) -> None:
    fake = FakeUpstream(fault=lambda body: fault)
    got, reply = asked(fake, "completions", text())
    assert (got, len(fake.seen)) == (status, calls) and reply["error"]["message"]


def test_an_answer_that_is_too_large() -> None:
    got, reply = asked(Says(b'{"data": [' + b"0," * 60 + b"0]}"), "embeddings", text(), most_values=50)
    assert got == 502 and "more than 50 values" in reply["error"]["message"]


def test_the_time_is_over() -> None:
    slow = FakeUpstream(fault=lambda body: "slow")
    for stream in (False, True):
        got, reply = asked(slow, "completions", text(stream=stream), settings=GatewaySettings(timeout=0.3))
        assert (got, reply["error"]["code"]) == (504, "timeout")


def test_a_client_that_leaves_ends_the_call() -> None:
    fake = FakeUpstream(fault=lambda body: "slow")

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        for stream in (False, True):
            asking = asyncio.ensure_future(post(session, f"{url}/completions", text(stream=stream)))
            while not fake.open:
                await asyncio.sleep(0.01)
            asking.cancel()
            while fake.open or gateway.in_flight:
                await asyncio.sleep(0.01)
        assert fake.left == 2

    served(fake, use, timeout_s=100.0)


def test_an_own_model_says_where_it_answers(policy: Policy) -> None:
    async def main() -> list[tuple[int, Body]]:
        async with AsyncExitStack() as stack:
            gateway = Gateway(Local(policy, "tiny"), GatewaySettings(), metrics=Metrics())
            port = await start(gateway, "127.0.0.1", 0, stack, grace_s=2)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            url, body = f"http://127.0.0.1:{port}/v1", text() | {"model": "tiny"}
            return [await post(session, f"{url}/{path}", body) for path in ("completions", "embeddings")]

    for status, reply in asyncio.run(main()):
        error = reply["error"]
        assert (status, error["code"], error["param"]) == (404, "unsupported_endpoint", "model")
        assert "/v1/chat/completions" in error["message"]
