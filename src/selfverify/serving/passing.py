"""Requests that an upstream answers without us: completions of a text, and embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from selfverify.core.errors import ServerError
from selfverify.remote.in_turn import in_turn
from selfverify.remote.usage import MOST_TOKENS, Usage
from selfverify.serving.addresses import refuse_any_address
from selfverify.serving.api_errors import ApiError, invalid_value
from selfverify.serving.backend import Backend, Events
from selfverify.serving.callers import GRANT
from selfverify.serving.entrance import ROOM, set_aside
from selfverify.serving.foreseen import foreseen_of_passing
from selfverify.serving.intake import FEW
from selfverify.serving.protocol import split_model
from selfverify.serving.request_record import RECORD, RequestRecord
from selfverify.serving.serve_settings import GatewaySettings
from selfverify.serving.served_models import ServedModels
from selfverify.serving.streaming import EventStream

T = TypeVar("T")
Streamed = Callable[[web.Request, Callable[[EventStream], Awaitable[None]]], Awaitable[web.StreamResponse]]
"""Responds with a stream that a function fills."""


class PassedRequest(BaseModel):
    """The fields that the gateway reads of a request that an upstream answers."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(min_length=1, max_length=512)
    stream: bool | None = False
    n: int | None = Field(None, ge=1)
    best_of: int | None = Field(None, ge=1)
    """OpenAI's own: the texts that are written, of which the likeliest are returned."""
    max_tokens: int | None = Field(None, ge=0, le=MOST_TOKENS)
    prompt: Any = None
    prompt_embeds: Any = None
    """vLLM's own: further prompts."""

    @property
    def prompts(self) -> int:
        """How many prompts there are: a list of numbers is one, and any other list has one in each place."""
        return max(_prompts_in(self.prompt) + _prompts_in(self.prompt_embeds), 1)

    @property
    def texts(self) -> int:
        """How many texts are written for the prompts."""
        return self.prompts * max(self.n or 1, self.best_of or 1)


class Passing:
    """Passes requests to an upstream, and its answers back byte for byte.

    Args:
        backend: Where the upstream is.
        settings: How requests are treated.
        served: The models that may be asked for.
        streamed: Responds with a stream.
        count: Counts what a request has cost.
    """

    def __init__(
        self,
        backend: Backend,
        settings: GatewaySettings,
        served: ServedModels,
        streamed: Streamed,
        count: Callable[[Usage], None],
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.served = served
        self.streamed = streamed
        self.count = count

    def add_to(self, app: web.Application) -> None:
        """Add the paths."""
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/embeddings", self.embeddings)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/completions``."""
        return await self._pass(request, "completions", may_stream=True)

    async def embeddings(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/embeddings``, which have no streams."""
        return await self._pass(request, "embeddings", may_stream=False)

    async def _pass(self, request: web.Request, path: str, may_stream: bool) -> web.StreamResponse:
        deadline = asyncio.get_running_loop().time() + self.settings.timeout
        raw, asked = await request[ROOM].read_as(request, PassedRequest)
        is_short, usage = request[ROOM].held <= FEW, Usage()
        make = partial(self._body, raw, asked, path)
        body = make() if is_short else await in_turn(make)
        request[RECORD].asks(str(body["model"]), usage)
        texts = asked.texts if may_stream else 0  # embeddings write nothing
        request[GRANT].ask(texts)
        await set_aside(request, partial(foreseen_of_passing, raw, texts, asked.max_tokens))
        if asked.stream and may_stream:
            return await self.copy(request, self.backend.stream(body, usage, deadline, path), usage, deadline)
        found = await self.reply(request, self.backend.post(path, body, usage, deadline), usage, deadline)
        return web.Response(body=found.raw, content_type="application/json", headers=found.headers)

    async def copy(
        self, request: web.Request, events: Events, usage: Usage, until: float
    ) -> web.StreamResponse:
        """Respond with a server's own events as they come, and count what they have cost."""
        try:
            return await self.streamed(
                request, lambda stream: _copy_events(stream, events, until, request[RECORD])
            )
        finally:
            self.count(usage)

    async def reply(self, request: web.Request, asking: Awaitable[T], usage: Usage, until: float) -> T:
        """Return what a server replies, and count what it has cost.

        Raises:
            ServerError: It failed, or did not reply in time.
        """
        try:
            async with asyncio.timeout_at(until):
                found = await asking
            request[RECORD].answered = True
            return found
        except TimeoutError:
            raise ServerError("there was no answer within the time allowed", 504, "timeout") from None
        finally:
            self.count(usage)

    def _body(self, raw: dict[str, Any], asked: PassedRequest, path: str) -> dict[str, Any]:
        """Return the request as the upstream gets it: all of it, with the model's own name.

        Raises:
            ApiError: A model that runs here would have to answer, or the request holds what is not passed on.
        """
        model, suffix = split_model(asked.model)
        self.served.check(model)
        self.served.check_fields(raw)
        if not self.backend.passes_on():
            text = (
                f"/v1/{path} is answered by servers only (selfverify serve --upstream); "
                f"{model!r} runs in the gateway: ask it at /v1/chat/completions"
            )
            raise ApiError(404, text, "unsupported_endpoint", "model")
        if suffix and "plain" not in suffix:
            text = f"nothing is chosen at /v1/{path}; ask for {model!r} without a suffix"
            raise invalid_value("model", text)
        most = self.settings.most_samples
        for name, count in (("n", asked.n), ("best_of", asked.best_of)):
            if count is not None and count > most:
                raise invalid_value(name, f"at most {most} candidates may be asked for")
        if path == "completions" and asked.texts > most:
            text = f"{asked.prompts} prompts make {asked.texts} candidates; at most {most} may be asked for"
            raise invalid_value("prompt", text)
        refuse_any_address(raw)
        return raw | {"model": model}


def _prompts_in(given: Any) -> int:
    if not isinstance(given, list):
        return int(given is not None)
    return 1 if all(isinstance(item, int | float) for item in given) else len(given)


async def _copy_events(stream: EventStream, events: Events, deadline: float, record: RequestRecord) -> None:
    """Send a server's own events as they come.

    Raises:
        ServerError: They did not end in time.
    """
    try:
        async with asyncio.timeout_at(deadline), aclosing(events):
            async for event, chunk in events:
                await stream.copy(event)
                record.answered = True
                record.saw(chunk)
    except TimeoutError:
        raise ServerError("the answer was not complete within the time allowed", 504, "timeout") from None
