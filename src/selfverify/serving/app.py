"""The gateway as a web application: routes, who may ask, errors, metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from selfverify.errors import ConfigError, ServerError
from selfverify.remote.usage import Usage
from selfverify.selection.calibration import Calibration
from selfverify.serving.completions import candidate_json, chunks, completion
from selfverify.serving.errors import ApiError, error_response, http_error, refused
from selfverify.serving.images import ImageLimits, Picture, take_images
from selfverify.serving.incoming import (
    read_as,
    refuse_addresses,
    remote_as_data,
    with_instruction,
    without_images,
)
from selfverify.serving.metrics import Metrics
from selfverify.serving.page import PAGE_PATHS, Example, add_page
from selfverify.serving.protocol import BestOf, ChatRequest, VerifyRequest, best_of, split_model
from selfverify.serving.remote_images import RemoteImages
from selfverify.serving.security import Keys, RateLimit
from selfverify.serving.selecting import Ask, Backend, Outcome, select
from selfverify.serving.streaming import REQUEST_ID, EventStream
from selfverify.serving.upstream import Upstream, with_pictures

logger = logging.getLogger("selfverify.serving")

OPEN_PATHS = PAGE_PATHS | {"/health"}
"""Need no key."""
_ABOUT = web.RequestKey("about", str)
_OURS = {"model", "n", "stream", "stream_options", "best_of"}
"""Fields that the gateway sees to itself."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a gateway behaves.

    Args:
        defaults: How answers are chosen where a request does not say.
        timeout_s: For a request, at most.
        keys: Who may ask; empty is everybody.
        per_minute: Requests of one key, or without keys of one address.
        most_bytes: Of a request.
        most_in_flight: Requests at once; more are told to come back.
        most_samples: Candidates that a request may ask for.
        images: What images are accepted.
        remote_images: Fetch images by address.
        calibration: Turns confidences into probabilities, for the settings that it was fitted for.
        log_prompts: Write questions and answers into the log.
        keep_alive_s: Between signs of life in a stream.
    """

    defaults: BestOf = field(default_factory=BestOf)
    timeout_s: float = 120.0
    keys: Keys = field(default_factory=lambda: Keys([]))
    per_minute: float | None = None
    most_bytes: int = 64 * 2**20
    most_in_flight: int = 1024
    most_samples: int = 64
    images: ImageLimits = field(default_factory=ImageLimits)
    remote_images: bool = False
    calibration: Calibration | None = None
    log_prompts: bool = False
    keep_alive_s: float = 5.0


class Gateway:
    """Answers requests with what a backend writes.

    Args:
        backend: Writes.
        settings: How to behave.
        metrics: To count in.
        example: Example problems for the page.
    """

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        metrics: Metrics | None = None,
        example: Example | None = None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.metrics = metrics or Metrics()
        self.example = example
        self.rate = RateLimit(settings.per_minute)
        self.remote: RemoteImages | None = None
        self.in_flight = 0

    def application(self) -> web.Application:
        """For aiohttp's runners, which have to be given ``handler_cancellation=True``."""
        app = web.Application(middlewares=[self._guard], client_max_size=self.settings.most_bytes)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/verify", self.verify)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/v1/models/{model:.+}", self.model)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.show_metrics)
        settings = self.settings
        add_page(
            app,
            settings.defaults,
            settings.most_samples,
            settings.images,
            bool(settings.keys),
            self.example,
        )
        app.cleanup_ctx.append(self._resources)
        return app

    async def _resources(self, app: web.Application) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if self.settings.remote_images and self.remote is None:
                self.remote = await stack.enter_async_context(RemoteImages(self.settings.images.bytes))
            yield

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Everything that is the same for all paths."""
        begun, status = time.perf_counter(), 499
        request[REQUEST_ID] = f"req-{secrets.token_hex(12)}"
        known = request.match_info.route.resource
        path = known.canonical if known is not None else "other"
        self.in_flight += 1
        self.metrics.in_flight.set(self.in_flight)
        try:
            try:
                self._admit(request)
                response = await handler(request)
            except ApiError as error:
                response = error_response(error)
            except ServerError as error:
                response = error_response(refused(error))
            except ConfigError as error:
                response = error_response(ApiError(400, str(error), "invalid_value"))
            except web.HTTPException as error:
                response = error_response(http_error(error))
            except ConnectionResetError:  # the client left while it was written to
                self.metrics.cancelled.inc()
                raise
            except Exception:
                response = error_response(self._failed(request))
            status = response.status
            if not response.prepared:
                response.headers["x-request-id"] = request[REQUEST_ID]
            return response
        except asyncio.CancelledError:
            self.metrics.cancelled.inc()
            raise
        finally:
            self.in_flight -= 1
            self.metrics.in_flight.set(self.in_flight)
            seconds = time.perf_counter() - begun
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            logger.info(
                "%s %s %s %d %.0f ms%s",
                request[REQUEST_ID], request.method, path, status, seconds * 1e3, request.get(_ABOUT, ""),
            )  # fmt: skip

    def _failed(self, request: web.Request) -> ApiError:
        """What a client hears of the exception that is being handled; the log hears all of it."""
        logger.exception("request %s failed", request[REQUEST_ID])
        text = f"the gateway failed; its log says why under {request[REQUEST_ID]}"
        return ApiError(500, text, "internal_error")

    def _admit(self, request: web.Request) -> None:
        """Raise `ApiError` if the caller may not ask now."""
        settings = self.settings
        if request.path in OPEN_PATHS:
            return
        caller = request.remote or "unknown"
        if settings.keys:
            name = settings.keys.find(request.headers.get("Authorization"))
            if name is None:
                text = "a valid key is needed: Authorization: Bearer KEY"
                raise ApiError(401, text, "invalid_api_key")
            caller = f"key {name}"
        if not request.path.startswith("/v1/"):
            return
        wait = self.rate.wait_s(caller)
        if wait > 0:
            text = f"more than {settings.per_minute:g} requests a minute; ask again in {wait:.1f} s"
            raise ApiError(429, text, "rate_limit_exceeded", retry_after=wait)
        if self.in_flight > settings.most_in_flight:
            text = f"{settings.most_in_flight} requests are being worked on already; ask again in a moment"
            raise ApiError(503, text, "overloaded", retry_after=1.0)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/chat/completions``."""
        deadline = asyncio.get_running_loop().time()
        raw, asked = await read_as(request, ChatRequest)
        model, settings = best_of(asked, self.settings.defaults)
        most, param = self.settings.most_samples, "best_of.n" if settings else "n"
        if (settings.n if settings else asked.n) > most:
            raise ApiError(
                400, f"{param}: at most {most} candidates may be asked for", "invalid_value", param
            )
        deadline += min(self.settings.timeout_s, (settings and settings.timeout_s) or self.settings.timeout_s)
        ask = await self._ask(request, raw, asked, model, settings, deadline)
        head = {
            "id": f"chatcmpl-{request[REQUEST_ID][4:]}",
            "created": int(time.time()),
            "model": asked.model,
        }
        wanted = asked.n
        if settings is None and asked.stream and isinstance(self.backend, Upstream):
            return await self._pass_on(request, ask, asked, self.backend)
        if not asked.stream:
            outcome = await self._select(request, ask, wanted)
            return answered(completion(head, ask, outcome), outcome, ask.usage)
        return await self._stream(request, head, ask, wanted, asked.include_usage)

    async def _take(
        self, messages: list[dict[str, Any]], deadline: float
    ) -> tuple[list[Picture], list[dict[str, Any]]]:
        """The images, checked, and the messages as the backend gets them."""
        try:
            async with asyncio.timeout_at(deadline):
                pictures = await take_images(messages, self.settings.images, self.remote)
        except TimeoutError:
            raise ServerError("the images were not there within the time allowed", 504, "timeout") from None
        if self.backend.name != "local":  # which refuses parts that it does not know
            refuse_addresses(messages)
            messages = with_pictures(messages, remote_as_data(messages, pictures)) if pictures else messages
        return pictures, messages

    async def _ask(
        self,
        request: web.Request,
        raw: Mapping[str, Any],
        asked: ChatRequest,
        model: str,
        settings: BestOf | None,
        deadline: float,
    ) -> Ask:
        """The request as the backend gets it: the model's own name, checked images, the asked-for format."""
        body = {name: value for name, value in raw.items() if name not in _OURS and value is not None}
        for name in body.keys() & ChatRequest.model_fields.keys():  # as they were understood: "5" is 5
            body[name] = getattr(asked, name)
        body["model"] = model
        pictures, messages = await self._take(asked.messages, deadline)
        if settings is None:
            plain = {"n": asked.n, "strategy": "first", "verifier": "none", "instruction": False}
            settings = BestOf(**plain, content="raw")
        elif settings.instruction:
            messages = with_instruction(messages)
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if self.backend.name == "local":
            body.setdefault("seed", secrets.randbits(40))
        body["messages"] = messages
        ask = Ask(model, body, pictures, settings, deadline, asked.stream, request[REQUEST_ID])
        self.backend.check(ask)
        if self.settings.log_prompts:
            logger.info(
                "%s asks %s", request[REQUEST_ID], json.dumps(without_images(messages), ensure_ascii=False)
            )
        return ask

    async def _select(self, request: web.Request, ask: Ask, wanted: int, on_candidate: Any = None) -> Outcome:
        outcome = await select(self.backend, ask, wanted, self.settings.calibration, on_candidate)
        count = self.metrics
        count.candidates.inc(len(outcome.candidates))
        count.stopped.labels(outcome.stopped).inc()
        count.abstained.inc(sum(chosen.abstained for chosen in outcome.selected))
        for kind in ("prompt_tokens", "candidate_tokens", "verification_tokens"):
            count.tokens.labels(kind.removesuffix("_tokens")).inc(getattr(ask.usage, kind))
        request[_ABOUT] = (
            f" {len(outcome.candidates)} candidates ({outcome.stopped}), {ask.usage.candidate_tokens} tokens"
        )
        if self.settings.log_prompts:
            texts = json.dumps([reply.text for reply in outcome.replies], ensure_ascii=False)
            logger.info("%s gets %s", request[REQUEST_ID], texts)
        return outcome

    async def _stream(
        self, request: web.Request, head: dict[str, Any], ask: Ask, wanted: int, include_usage: bool
    ) -> web.StreamResponse:
        stream = EventStream(request)

        def tell(place: int, candidate: Any) -> None:
            found = candidate_json(place, candidate) | {"of": ask.best_of.n}
            if ask.best_of.progress == "events":
                stream.put_event(found, "candidate")
            else:
                score = "none" if candidate.score is None else f"{candidate.score:.3f}"
                stream.put_comment(f"candidate {place + 1} of {ask.best_of.n}, score {score}")

        working = asyncio.ensure_future(self._select(request, ask, wanted, tell))
        try:
            await stream.follow(working, self.settings.keep_alive_s)
            outcome = working.result()
        except (ServerError, ApiError, ConfigError) as error:
            if not stream.begun:
                raise
            found = error if isinstance(error, ApiError) else None
            found = found or (refused(error) if isinstance(error, ServerError) else ApiError(400, str(error)))
            await stream.event(found.body)
            return await stream.end()
        except Exception as error:
            if not stream.begun or isinstance(error, ConnectionError):
                raise
            await stream.event(self._failed(request).body)  # a second response would not be understood
            return await stream.end()
        finally:
            working.cancel()  # the client has left, or there is nothing more to do
        for chunk in chunks(head, ask, outcome, include_usage):
            await stream.event(chunk)
        await stream.done()
        return await stream.end()

    async def _pass_on(
        self, request: web.Request, ask: Ask, asked: ChatRequest, backend: Upstream
    ) -> web.StreamResponse:
        """A stream without selection: the server's own chunks, as they come."""
        body = ask.body | {"stream": True} | ({"n": asked.n} if asked.n > 1 else {})
        if asked.include_usage:
            body["stream_options"] = {"include_usage": True}
        stream = EventStream(request)
        try:
            async with (
                asyncio.timeout_at(ask.deadline),
                aclosing(backend.client.stream(body)) as found,
            ):
                async for chunk in found:
                    await stream.event(chunk)
        except (ServerError, TimeoutError) as error:
            late = ServerError("the answer was not complete within the time allowed", 504, "timeout")
            fault = error if isinstance(error, ServerError) else late
            if not stream.begun:
                raise fault from None
            await stream.event(refused(fault).body)
            return await stream.end()
        await stream.done()
        return await stream.end()

    async def verify(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/verify``: scores of given answers."""
        deadline = asyncio.get_running_loop().time() + self.settings.timeout_s
        _, asked = await read_as(request, VerifyRequest)
        answers = asked.answers
        model, _ = split_model(asked.model)
        pictures, messages = await self._take(asked.messages, deadline)
        messages = with_instruction(messages)  # the prompt that the model knows
        settings = BestOf(n=1, verifier=asked.verifier)
        ask = Ask(
            model,
            {"model": model, "messages": messages},
            pictures,
            settings,
            deadline,
            id=request[REQUEST_ID],
        )
        self.backend.check(ask)
        try:
            async with asyncio.timeout_at(deadline):
                scores = await self.backend.verify(ask, answers)
        except TimeoutError:
            raise ServerError("there were no scores within the time allowed", 504, "timeout") from None
        results = [{"index": i, "score": score} for i, score in enumerate(scores)]
        found = {"object": "verification", "model": asked.model, "results": results, "score": scores[0]}
        counted = {"usage": ask.usage.as_openai(0), "usage_complete": ask.usage.complete}
        return web.json_response(found | counted)

    async def models(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/models``: the backend's, each also by the name that turns selection off."""
        found = await self.backend.models()
        plain = [{**model, "id": f"{model['id']}@plain"} for model in found]
        return web.json_response({"object": "list", "data": [*found, *plain]})

    async def model(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/models/NAME``."""
        wanted = request.match_info["model"]
        name, _ = split_model(wanted)
        for model in await self.backend.models():
            if model["id"] == name:
                return web.json_response({**model, "id": wanted})
        raise ApiError(404, f"the model {name!r} does not exist", "model_not_found", "model")

    async def health(self, request: web.Request) -> web.StreamResponse:
        """``GET /health``: this process lives. It says nothing about an upstream; metrics do."""
        return web.json_response({"status": "ok", "backend": self.backend.name, "in_flight": self.in_flight})

    async def show_metrics(self, request: web.Request) -> web.StreamResponse:
        """``GET /metrics``."""
        text = self.metrics.text()
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


def answered(body: dict[str, Any], outcome: Outcome, usage: Usage) -> web.Response:
    """A completion with its figures in headers too."""
    score = outcome.selected[0].choice.score
    headers = {"x-best-of-samples": str(len(outcome.candidates)), "x-best-of-stopped": outcome.stopped}
    if score is not None:
        headers["x-best-of-score"] = f"{score:.4f}"
    headers["x-best-of-calls"] = str(usage.calls)
    return web.json_response(body, headers=headers)
