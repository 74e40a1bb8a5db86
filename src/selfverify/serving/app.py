"""The gateway as a web application: its routes, and what each of them answers.

`Gateway.guard` says who may ask, what errors become, and what is logged of a request; `Metrics` has the
counters that ``/metrics`` shows.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import secrets
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from selfverify.clients.replies import Usage
from selfverify.connectors.server import Keys
from selfverify.selection.calibration import Calibration
from selfverify.serving.backend import AnswerRequest, Backend, Selection, Tell, check_choosing, select
from selfverify.serving.completions import REQUEST_ID, EventStream, chunks, completion, piece_of, progress
from selfverify.serving.config import BestOfConfig, GatewayConfig
from selfverify.serving.page import PAGE_PATHS, Example, add_page
from selfverify.serving.schemas import (
    ApiError,
    ChatRequest,
    Picture,
    VerifyRequest,
    api_error,
    best_of,
    invalid_value,
    is_formatted,
    json_response,
    read_as,
    refuse_unknown,
    split_model,
    take_images,
    unsupported,
    wants_instruction,
    with_instruction,
    with_places,
)

if TYPE_CHECKING:
    from selfverify.serving.visual import VisualGate
    from selfverify.visual.task import VisualToolTask


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_CANDIDATES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """One gateway's counters. Labels take few values: never a key, a prompt or a client's name."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace="selfverify", registry=self.registry)
        histogram = partial(Histogram, namespace="selfverify", registry=self.registry)
        self.requests = counter("requests", "Requests by path and status.", ["path", "status"])
        self.seconds = histogram(
            "request_seconds", "From the first byte to the last.", ["path"], buckets=_SECONDS
        )
        self.candidates = counter("candidates", "Candidates that arrived.")
        self.tokens = counter("tokens", "Tokens by kind.", ["kind"])
        self.upstream = counter("upstream_tries", "Calls to the model server by outcome.", ["outcome"])
        self.batch = histogram(
            "batch_candidates", "Candidates sampled together by the own model.", buckets=_CANDIDATES
        )

    def text(self) -> bytes:
        """Return the counters in Prometheus's format."""
        return generate_latest(self.registry)


logger = logging.getLogger("selfverify.serving")

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
"""The ids that are taken from clients."""

OPEN_PATHS = PAGE_PATHS | {"/health"}
"""The paths that need no key."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def name_of(host: str) -> str:
    """Return the name in a ``Host`` header, without its port."""
    name, _, port = host.rpartition(":")
    name = name if name and port.isdigit() and ("]" in name or ":" not in name) else host
    return name.strip("[]").rstrip(".").lower()


@lru_cache(maxsize=64)
def is_loopback(name: str) -> bool:
    """Whether a name or an address is one of this machine's own."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def told(request: web.Request, error: Exception) -> ApiError:
    """Return the error that a client is told. The details of a fault of our own go to the log only."""
    known = api_error(error)
    if known is not None:
        return known
    # Its own text may quote the request.
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    places = " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    logger.error("request %s failed: %s %s", request[REQUEST_ID], type(error).__name__, places)
    text = f"the gateway failed; its log says why under {request[REQUEST_ID]}"
    return ApiError(500, text, "internal_error")


def request_id(given: str | None) -> str:
    """Return the client's id of a request if it is well formed, else a new one."""
    return given if given and _ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"


_OURS = {"model", "n", "stream", "stream_options", "best_of", "look"}
"""The fields of a request that the gateway handles itself."""


@dataclass(eq=False)
class Gateway:
    """Answers requests with what a backend writes.

    Args:
        backend: Writes and scores candidates. It has to be entered: `selfverify.serving.server.start` does.
        settings: How requests are treated.
        keys: The key of those who may ask; without one, everybody may.
        calibration: Turns confidences into probabilities, for requests that it was fitted for.
        metrics: The counters.
        example: Makes example problems for the page.
        looking: The limits of requests with a field ``look``; None refuses them.
    """

    backend: Backend
    settings: GatewayConfig
    keys: Keys = field(default_factory=lambda: Keys([]))
    calibration: Calibration | None = None
    metrics: Metrics = field(default_factory=Metrics)
    example: Example | None = None
    looking: VisualGate | None = None
    keep_alive_s: float = field(default=5.0, init=False)
    """Seconds between signs of life in a stream."""
    stall_s: float = field(default=10.0, init=False)
    """Seconds for which a stream waits for a client that does not read."""
    in_flight: int = field(default=0, init=False)
    """How many requests are being worked on."""
    on_loopback: bool = field(default=False, init=False)
    """Whether only programs on this machine reach the port, among them browsers with foreign pages."""
    _asked_at: float = field(default=-1.0, init=False)
    _fault: str | None = field(default=None, init=False)

    def application(self) -> web.Application:
        """Return the application. Its runner needs ``handler_cancellation=True``."""
        app = web.Application(middlewares=[self.guard], client_max_size=self.settings.most_bytes)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/verify", self.verify)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.show_metrics)
        begin = {
            "best_of": self.in_force,
            "most": self.settings.most_samples,
            "needs_key": bool(self.keys),
            "looks": self.looking is not None,
            "image_bytes": self.settings.most_bytes * 3 // 4,  # of base64
            "image_pixels": self.settings.most_pixels,
        }
        add_page(app, begin, self.example)
        app.on_response_prepare.append(self._sign)
        return app

    @property
    def in_force(self) -> dict[str, Any]:
        """The fields of ``best_of`` where a request does not set them."""
        default = self.backend.default_verifier
        return self.settings.best_of.model_dump() | {"verifier": self.settings.best_of.verifier or default}

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through to its handler, if its caller may ask."""
        request[REQUEST_ID] = request_id(request.headers.get("x-request-id"))
        begun, response = time.perf_counter(), None
        self.in_flight += 1
        try:
            self._admit(request)
            response = await handler(request)
        except ConnectionResetError:  # the client left while it was written to
            raise
        except Exception as error:
            response = told(request, error).response
        finally:
            status = 499 if response is None else response.status  # 499 where the client has left
            self.in_flight -= 1
            known = request.match_info.route.resource
            path = known.canonical if known is not None else "other"  # none that a client wrote
            seconds = time.perf_counter() - begun
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            own_id, method = request[REQUEST_ID], request.method
            logger.info("%s %s %s %d %.0f ms", own_id, method, path, status, seconds * 1e3)
        return response

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        """Put what every response says into its headers."""
        if REQUEST_ID in request:  # aiohttp answers by itself what it cannot read
            response.headers["x-request-id"] = request[REQUEST_ID]

    def _admit(self, request: web.Request) -> None:
        """Raise `ApiError` if the caller may not ask now."""
        settings = self.settings
        name = name_of(request.headers.get("Host", "localhost"))
        if self.on_loopback and not self.keys and not is_loopback(name):  # a page whose name points here
            text = f"the name {name!r} is not served here without a key; set api_key_file"
            raise ApiError(403, text, "host_refused")
        if request.path in OPEN_PATHS:
            return
        if not self.keys.admit(request.headers.get("Authorization")):
            text = "a valid key is needed: Authorization: Bearer KEY"
            raise ApiError(401, text, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        if not request.path.startswith("/v1/"):
            return
        if self.in_flight > settings.max_in_flight:
            text = f"{settings.max_in_flight} requests are being worked on already; ask again in a moment"
            raise ApiError(503, text, "overloaded", headers={"Retry-After": "1"})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/chat/completions``."""
        begun = asyncio.get_running_loop().time()
        raw, asked = await read_as(request, ChatRequest, self.settings.timeout)
        ask, passes_on = await self._ask(request, asked, begun)
        if passes_on:
            return await self._pass_on(request, raw, ask)
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": asked.model}
        if asked.stream:
            return await self._streamed(request, lambda stream: self._answer(stream, head, ask, asked))
        outcome = await self._select(ask, asked.n)
        return json_response(completion(head, ask, outcome))

    async def _ask(
        self, request: web.Request, asked: ChatRequest, begun: float
    ) -> tuple[AnswerRequest, bool]:
        """Return the request as the backend gets it, and whether a server answers it by itself.

        It is checked, and has the model's own name.
        """
        model, chosen = best_of(asked, self.settings.best_of)
        settings = chosen or BestOfConfig(
            n=asked.n, strategy="first", verifier="none", instruction=False, content="raw"
        )
        most, param = self.settings.most_samples, "best_of.n" if chosen else "n"
        if settings.n > most:
            raise invalid_value(param, f"at most {most} candidates may be asked for")
        deadline = begun + min(self.settings.timeout, settings.timeout_s or self.settings.timeout)
        is_server, others = self.backend.is_server, asked.model_extra or {}
        passes_on = is_server and chosen is None and asked.look is None
        if not passes_on:
            refuse_unknown(others, not is_server)
            if asked.stream_options is not None and any((asked.stream_options.model_extra or {}).values()):
                raise unsupported("stream_options", "there is include_usage alone where an answer is chosen")
        body = {name: getattr(asked, name) for name in asked.model_fields_set - _OURS} | others
        pictures, messages = await self._take(asked.messages, looks=asked.look is not None)
        instruct = wants_instruction(settings, body)
        body |= {"model": model, "messages": with_instruction(messages) if instruct else messages}
        if is_formatted(body) and not instruct:  # what looks like a tag in it is none
            settings = settings.model_copy(update={"content": "raw"})
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        ask = AnswerRequest(body, pictures, settings, deadline, asked.stream, request[REQUEST_ID])
        if asked.look is not None:
            ask.look = self._look(asked.look, ask)
        self.backend.check(ask)
        check_choosing(self.backend, ask.best_of, self.calibration)
        return ask, passes_on

    async def _pass_on(
        self, request: web.Request, raw: Mapping[str, Any], ask: AnswerRequest
    ) -> web.StreamResponse:
        """Answer without selection: with all that the server says."""
        body = {name: value for name, value in raw.items() if name != "best_of"} | {"model": ask.model}

        async def copy(stream: EventStream) -> None:
            async with asyncio.timeout_at(ask.deadline):
                async for chunk in events:
                    await stream.event(chunk)

        try:
            async with aclosing(self.backend.pass_on(body, ask.usage, ask.deadline)) as events:
                if ask.streams:
                    return await self._streamed(request, copy)
                async with asyncio.timeout_at(ask.deadline):
                    return json_response(await anext(events))
        finally:
            self._count(ask.usage)

    def _look(self, given: dict[str, Any], ask: AnswerRequest) -> VisualToolTask:
        """Return how the model looks at the images again."""
        if self.looking is None:
            raise unsupported("look", "nothing is looked at again here; the gateway was started without it")
        if not ask.pictures:
            raise invalid_value("look", "the messages have no image that could be looked at")
        return self.looking.look(given, ask.body, ask.best_of.answers)

    async def _take(
        self, messages: list[dict[str, Any]], looks: bool = False
    ) -> tuple[list[Picture], list[dict[str, Any]]]:
        """Return the checked images, if anybody here looks at them, and the messages for the backend."""
        if self.backend.is_server:
            return await take_images(messages, self.settings.most_pixels) if looks else [], messages
        return await take_images(messages, self.settings.most_pixels), with_places(messages)

    async def _select(self, ask: AnswerRequest, wanted: int, tell: Tell | None = None) -> Selection:
        outcome = await select(self.backend, ask, wanted, self.calibration, tell)
        self.metrics.candidates.inc(len(outcome.candidates))
        self._count(ask.usage)
        return outcome

    def _count(self, usage: Usage) -> None:
        for kind in ("prompt", "candidate", "verification"):
            self.metrics.tokens.labels(kind).inc(getattr(usage, f"{kind}_tokens"))

    async def _streamed(
        self, request: web.Request, write: Callable[[EventStream], Awaitable[None]]
    ) -> web.StreamResponse:
        """Return a stream that ``write`` fills. An error after its beginning is its last event."""
        stream = EventStream(request, self.stall_s)
        try:
            await write(stream)
            await stream.done()
        except Exception as error:
            if not stream.begun or isinstance(error, ConnectionError):
                raise
            await stream.event(told(request, error).body)  # a second response would not be understood
        return await stream.end()

    async def _answer(
        self, stream: EventStream, head: dict[str, Any], ask: AnswerRequest, asked: ChatRequest
    ) -> None:
        """Report candidates as they come, then send the chosen answers. One without selection is sent as it
        is written, if the backend shows it."""
        sent = 0

        def write(text: str) -> None:
            nonlocal sent
            begun = [] if sent else [{"role": "assistant", "content": ""}]
            for delta in (*begun, {"content": text}):
                stream.put_event(piece_of(head, delta, asked.include_usage))
            sent += len(text)

        chosen = ask.best_of
        if chosen.n == 1 and (chosen.verifier, chosen.content, chosen.abstain_below) == ("none", "raw", None):
            ask.write = write

        loop = asyncio.get_running_loop()

        def looked(conversation: int, step: Mapping[str, Any]) -> None:
            # Clients take a field `error` of an event, which a step has, for the end.
            event = {"conversation": conversation, "of": ask.best_of.n, "look": step}
            loop.call_soon_threadsafe(stream.put_event, event, "look")

        if ask.look is not None and ask.best_of.progress == "events":
            ask.looked = looked

        working = asyncio.ensure_future(self._select(ask, asked.n, partial(progress, stream, ask.best_of)))
        try:
            await stream.follow(working, self.keep_alive_s)
            outcome = working.result()
        finally:
            working.cancel()  # the client has left, or there is nothing more to do
        for chunk in chunks(completion(head, ask, outcome), asked.include_usage, sent):
            await stream.event(chunk)

    async def verify(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/verify``: scores of given answers."""
        deadline = asyncio.get_running_loop().time() + self.settings.timeout
        _, asked = await read_as(request, VerifyRequest, self.settings.timeout)
        model, _ = split_model(asked.model)
        pictures, messages = await self._take(asked.messages)
        body = {"model": model, "messages": with_instruction(messages)}  # the prompt that the model knows
        settings = BestOfConfig(n=1, verifier=asked.verifier)
        ask = AnswerRequest(body, pictures, settings, deadline, id=request[REQUEST_ID])
        self.backend.check(ask)
        check_choosing(self.backend, ask.best_of, self.calibration, "verifier")
        async with asyncio.timeout_at(deadline):
            scores = await self.backend.verify(ask, asked.answer)
        results = [{"index": i, "score": score} for i, score in enumerate(scores)]
        found = {"object": "verification", "model": asked.model, "results": results, "score": scores[0]}
        counted = {"usage": ask.usage.as_openai(0), "usage_complete": ask.usage.complete}
        return json_response(found | counted)

    async def models(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/models``: the backend's models, each also by the name that turns selection off.

        ``best_of`` says what holds where a request does not."""
        found = await self.backend.models()
        plain = [{**model, "id": f"{model['id']}@plain"} for model in found]
        chosen = [{**model, "best_of": self.in_force} for model in found]
        return json_response({"object": "list", "data": [*chosen, *plain]})

    async def health(self, request: web.Request) -> web.StreamResponse:
        """``GET /health``: 200, or 503 where the server behind this one does not answer.

        Everybody may ask, so that server is asked at most once a second.
        """
        now = asyncio.get_running_loop().time()
        if now - self._asked_at >= 1.0:
            self._asked_at, self._fault = now, await self.backend.fault()
        kind = "upstream" if self.backend.is_server else "local"
        told = {"backend": kind, "in_flight": self.in_flight}
        if self._fault is None:
            return json_response({"status": "ok"} | told)
        return json_response({"status": "unready", "fault": self._fault} | told, status=503)

    async def show_metrics(self, request: web.Request) -> web.StreamResponse:
        """``GET /metrics``: the counters in Prometheus's format."""
        text = self.metrics.text()
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
