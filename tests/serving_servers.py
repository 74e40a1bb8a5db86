"""Servers for tests, on the loopback: a model server that can be told to fail, and the gateway before it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
from aiohttp import web
from PIL import Image

from selfverify.clients.candidates import CandidateSampler, Mode
from selfverify.clients.openai_client import OpenAIClient, ServerConfig
from selfverify.clients.replies import Completion, Usage
from selfverify.connectors.server import Keys
from selfverify.core.errors import ServerError
from selfverify.policy.policy import Policy
from selfverify.selection.calibration import Calibration
from selfverify.serving.app import Gateway, Metrics
from selfverify.serving.config import BestOfConfig, GatewayConfig
from selfverify.serving.local import Local
from selfverify.serving.server import start, upstream_of

T = TypeVar("T")
Body = dict[str, Any]
Use = Callable[[aiohttp.ClientSession, str, Gateway], Awaitable[T]]
CHAT = "chat/completions"


def tagged(answer: str, score: str = "0.5") -> str:
    """An answer in the format of this library."""
    return f"<think>.</think><answer>{answer}</answer><score>{score}</score>"


def png(size: tuple[int, int] = (32, 32), mode: str = "RGB") -> bytes:
    """A picture's bytes."""
    buffer = io.BytesIO()
    Image.new(mode, size, 1).save(buffer, "PNG")
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "png") -> str:
    """As requests carry it."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@dataclass
class FakeUpstream:
    """A model server.

    Args:
        write: What candidate ``i`` of a request says.
        fault: What goes wrong with a request: None, a status, ``slow``, ``garbage``, ``cut`` or ``half``.
        knows_n: False ignores ``n``, None refuses it.
        delay_s: Before an answer.
    """

    write: Callable[[Body, int], str] = lambda body, i: tagged(str(i % 2), f"0.{i % 10}")
    fault: Callable[[Body], str | int | None] = lambda body: None
    knows_n: bool | None = True
    knows_logprobs: bool = True
    knows_streams: bool = True
    """False answers whole to who asks for a stream."""
    counts: bool = True
    """False says no usage."""
    finish: str | None = "stop"
    """What it says of the end of whole replies."""
    says: Callable[[Body], Any] = lambda body: None
    """A reply of its own, a response or what becomes JSON; None writes candidates."""
    more: Body = field(default_factory=dict)
    """Further fields of its messages in whole replies."""
    delay_s: float = 0.0
    seen: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    models_fault: str | int | None = None
    """What goes wrong with its list of models: a status or ``slow``."""
    name: str = "m"
    """Its model."""
    listed: int = 0
    """How often it listed its models."""
    open: int = 0
    left: int = 0
    """Requests whose client went away before the answer."""

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**27)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        return app

    async def models(self, request: web.Request) -> web.Response:
        self.listed += 1
        await asyncio.sleep(30 if self.models_fault == "slow" else 0)
        if isinstance(self.models_fault, int):
            return web.json_response({"error": {"message": "told to fail"}}, status=self.models_fault)
        return web.json_response({"object": "list", "data": [{"id": self.name, "object": "model"}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        self.keys.append(request.headers.get("Authorization"))
        self.open += 1
        try:
            return await self._chat(request, body)
        except asyncio.CancelledError:
            self.left += 1
            raise
        finally:
            self.open -= 1

    async def _chat(self, request: web.Request, body: Body) -> web.StreamResponse:
        if (own := self.says(body)) is not None:
            return own if isinstance(own, web.StreamResponse) else web.json_response(own)
        if body["model"] != self.name:
            text = f"The model `{body['model']}` does not exist."
            return web.json_response({"error": {"message": text, "code": "model_not_found"}}, status=404)
        fault = self.fault(body)
        await asyncio.sleep(self.delay_s + (30 if fault == "slow" else 0))
        if isinstance(fault, int):
            return web.json_response({"error": {"message": "told to fail"}}, status=fault)
        if fault == "garbage":
            return web.Response(text='{"choices": [', content_type="application/json")
        n = body.get("n", 1)
        if n > 1 and self.knows_n is None:
            return web.json_response({"error": {"message": "n > 1 is not supported"}}, status=422)
        if body.get("logprobs") and not self.knows_logprobs:
            return web.json_response({"error": {"message": "no logprobs"}}, status=400)
        n = n if self.knows_n else 1
        texts = [self.write(body, i) for i in range(n)]
        if fault == "half":
            texts = texts[: (n + 1) // 2]
        if body.get("stream") and self.knows_streams:
            return await self._stream(request, texts, fault)
        usage = {"prompt_tokens": 10, "completion_tokens": 7 * len(texts)}
        choices = [
            {"index": i, "finish_reason": self.finish}
            | told("message", {"role": "assistant", "content": text, **self.more})
            | ({"logprobs": {"content": token_logprobs(text)}} if body.get("logprobs") else {})
            for i, text in enumerate(texts)
        ]
        counted = {"usage": usage} if self.counts else {}
        reply = web.json_response({"id": "x", "object": "chat.completion", "choices": choices, **counted})
        if fault == "cut":
            whole = bytes(reply.body)  # type: ignore[arg-type]
            part = web.StreamResponse(headers={"Content-Type": "application/json"})
            part.content_length = len(whole)
            await part.prepare(request)
            await part.write(whole[: len(whole) // 2])
            request.transport.close()
            return part
        return reply

    async def _stream(self, request: web.Request, texts: list[str], fault: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def send(data: Body) -> None:
            await response.write(b"data: " + json.dumps(data).encode() + b"\n\n")

        for i, text in enumerate(texts):
            if fault == "cut" and i >= max(1, len(texts) // 2):
                request.transport.close()
                return response
            for piece in (text[:9], text[9:]):
                part = told("delta", {"content": piece})
                await send({"choices": [{"index": i, **part, "finish_reason": None}]})
            last: Body = {"index": i, "delta": {}, "finish_reason": "stop"}
            if (await request.json()).get("logprobs"):
                last["logprobs"] = {"content": token_logprobs(text)}
            await send({"choices": [last]})
        if self.counts:
            await send({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 7 * len(texts)}})
        await response.write(b"data: [DONE]\n\n")
        return response


def told(name: str, message: Body) -> Body:
    """A message as a choice has it; for tests of servers that say it otherwise."""
    return {name: message}


def token_logprobs(text: str) -> list[Body]:
    """One token per character, but for the score's tag; at a score's first token 1 and 0 are as likely."""
    head, opened, score = text.partition("<score>")
    tokens = [*head, *([opened] if opened else []), *score]
    entries: list[Body] = [{"token": token, "logprob": -0.1, "top_logprobs": []} for token in tokens]
    if opened:
        options = [{"token": token, "logprob": -0.7} for token in "01"]
        entries[len(head) + 1]["top_logprobs"] = options
    return entries


class Loop:
    """An event loop in a thread, for servers beside a test that blocks."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.stack = AsyncExitStack()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        self.run(self.stack.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    def upstream(self, fake: FakeUpstream) -> str:
        """Its address."""
        return self.run(open_upstream(fake, self.stack))

    def gateway(self, gateway: Gateway) -> str:
        """Its address, with ``/v1``."""
        port = self.run(start(gateway, "127.0.0.1", 0, self.stack, grace_s=5))
        return f"http://127.0.0.1:{port}/v1"

    def before(
        self, fake: FakeUpstream, settings: GatewayConfig | None = None, **more: Any
    ) -> tuple[str, Gateway]:
        """A gateway before ``fake``, and its address."""
        gateway = quick_gateway(self.upstream(fake), settings, **more)
        return self.gateway(gateway), gateway


def quick_gateway(
    url: str,
    settings: GatewayConfig | None = None,
    *,
    keys: list[str] | None = None,
    calibration: Calibration | None = None,
    keep_alive_s: float = 5.0,
    **server: Any,
) -> Gateway:
    """A gateway that does not wait long between tries."""
    metrics, asked = Metrics(), settings or GatewayConfig()
    patience = {"tries": 2, "wait_s": 0.01, "timeout_s": 10.0} | server
    backend = upstream_of(ServerConfig(url, **patience), metrics)
    gateway = Gateway(backend, asked, Keys(keys or []), calibration, metrics)
    gateway.keep_alive_s = keep_alive_s
    return gateway


async def open_upstream(fake: FakeUpstream, stack: AsyncExitStack) -> str:
    """Its address."""
    runner = web.AppRunner(fake.application(), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]


def question(text: str = "7+2?", **more: Any) -> Body:
    """A request."""
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def with_client(
    fake: FakeUpstream,
    use: Callable[[OpenAIClient], Awaitable[T]],
    heard: Callable[[str], object] = lambda outcome: None,
    **settings: Any,
) -> T:
    """What ``use`` returns for a client of ``fake``, which tells ``heard`` the outcome of each try."""

    async def main() -> T:
        async with AsyncExitStack() as stack:
            url = await open_upstream(fake, stack)
            server = ServerConfig(url, **{"wait_s": 0.01, "timeout_s": 5.0} | settings)
            return await use(await stack.enter_async_context(OpenAIClient(server, heard)))

    return asyncio.run(main())


def draw(fake: FakeUpstream, n: int, mode: Mode = "n", **more: Any) -> tuple[list[Completion], Usage, Any]:
    """The candidates that are drawn from ``fake``, what they cost, and why some are missing."""
    got, usage = list[Completion](), Usage()

    async def use(client: OpenAIClient) -> ServerError | None:
        return await CandidateSampler(client).draw(question(**more), n, got.append, usage, mode)

    return got, usage, with_client(fake, use)


async def post(session: aiohttp.ClientSession, url: str, body: Any, **more: Any) -> tuple[int, Body]:
    """Status and JSON of a request."""
    async with session.post(url, json=body, **more) as response:
        return response.status, await response.json()


async def used(gateway: Gateway, use: Use[T], stack: AsyncExitStack) -> T:
    """``use`` with a session, the gateway's address and the gateway."""
    port = await start(gateway, "127.0.0.1", 0, stack, grace_s=2)
    session = await stack.enter_async_context(aiohttp.ClientSession())
    async with asyncio.timeout(100):
        return await use(session, f"http://127.0.0.1:{port}/v1", gateway)


def served(fake: FakeUpstream, use: Use[T], settings: GatewayConfig | None = None, **more: Any) -> T:
    """See `used`; the gateway stands before ``fake``."""

    async def main() -> T:
        async with AsyncExitStack() as stack:
            return await used(quick_gateway(await open_upstream(fake, stack), settings, **more), use, stack)

    return asyncio.run(main())


def ask(
    fake: FakeUpstream, body: Body, settings: GatewayConfig | None = None, path: str = CHAT, **more: Any
) -> tuple[int, Body]:
    """Status and JSON of one request to a gateway before ``fake``."""
    return served(fake, lambda session, url, _: post(session, f"{url}/{path}", body), settings, **more)


def served_locally(policy: Policy, use: Use[T], n: int = 4, **more: Any) -> T:
    """See `used`; the gateway answers with the policy, called ``tiny``."""

    async def main() -> T:
        async with AsyncExitStack() as stack:
            metrics = Metrics()
            backend = Local(policy, "tiny", on_batch=metrics.batch.observe, **more)
            return await used(
                Gateway(backend, GatewayConfig(best_of=BestOfConfig(n=n)), metrics=metrics), use, stack
            )

    return asyncio.run(main())
