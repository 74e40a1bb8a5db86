"""``POST /v1/responses``: OpenAI's Responses API on top of what chat completions do here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web
from pydantic import ValidationError

from selfverify.core.errors import ServerError
from selfverify.remote.growing import Growing
from selfverify.remote.usage import Usage
from selfverify.serving.api_errors import ApiError, invalid
from selfverify.serving.backend import Ask, Backend, Tell
from selfverify.serving.completions import completion, figures, progress
from selfverify.serving.entrance import ROOM, told
from selfverify.serving.field_names import KNOWN
from selfverify.serving.json_text import json_response
from selfverify.serving.protocol import ChatRequest
from selfverify.serving.request_record import RECORD
from selfverify.serving.responses_input import AsChat, ResponsesRequest, as_chat
from selfverify.serving.responses_output import ResponseWriter, more_of
from selfverify.serving.selecting import Selection
from selfverify.serving.streaming import EventStream

_KNOWN = KNOWN | ResponsesRequest.model_fields.keys()
"""The fields of both interfaces: a request has some of either."""


class _Prepare(Protocol):
    """Checks a chat completion request; returns it as the backend gets it, and whether one is chosen."""

    async def __call__(
        self,
        request: web.Request,
        raw: Mapping[str, Any],
        asked: ChatRequest,
        begun: float,
        known: AbstractSet[str],
    ) -> tuple[Ask, bool]: ...


class _Select(Protocol):
    """Draws candidates and chooses."""

    async def __call__(
        self, request: web.Request, ask: Ask, wanted: int, tell: Tell | None = None
    ) -> Selection: ...


@dataclass(frozen=True, slots=True)
class Responding:
    """Answers requests of the Responses API, and keeps none of them.

    Args:
        backend: Writes the answers.
        prepare: Checks a request of chat completions.
        select: Draws candidates and chooses.
        count: Counts what a request without selection has cost.
        keep_alive_s: Seconds between signs of life in a stream.
        stall_s: Seconds for which a stream waits for a client that does not read.
    """

    backend: Backend
    prepare: _Prepare
    select: _Select
    count: Callable[[Usage], None]
    keep_alive_s: float
    stall_s: float

    def add_to(self, app: web.Application) -> None:
        """Add the paths."""
        app.router.add_post("/v1/responses", self.respond)
        app.router.add_route("*", "/v1/responses/{response:.+}", self.kept)

    async def kept(self, request: web.Request) -> web.StreamResponse:
        """Every path below ``/v1/responses``: they are about what would have been kept."""
        raise ApiError(404, "responses are not kept here, so there is none to get or change", "not_found")

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """``POST /v1/responses``."""
        begun = asyncio.get_running_loop().time()
        _, asked = await request[ROOM].read_as(request, ResponsesRequest)
        chat = as_chat(asked)
        try:
            read = ChatRequest.model_validate(chat.body)
            ask, is_chosen = await self.prepare(request, chat.body, read, begun, _KNOWN)
        except ValidationError as error:
            raise chat.told(invalid(error)) from None
        except ApiError as error:
            raise chat.told(error) from None
        if asked.stream:
            return await self._streamed(request, asked, chat, ask, is_chosen)
        try:
            outcome = await self.select(request, ask, 1)
        except ApiError as error:
            raise chat.told(error) from None
        found = await self._written(ResponseWriter(asked), ask, outcome, is_chosen)
        return json_response(found, headers=figures(ask, outcome) if is_chosen else {})

    async def _streamed(
        self, request: web.Request, asked: ResponsesRequest, chat: AsChat, ask: Ask, is_chosen: bool
    ) -> web.StreamResponse:
        """Return the events. An error after their beginning is the last one."""
        stream, record = EventStream(request, self.stall_s), request[RECORD]

        def tell(event: dict[str, Any]) -> None:
            stream.put_event(event, event["type"])
            if event["type"].endswith(".delta"):
                record.speaks()

        writer = ResponseWriter(asked, tell)
        passes = not is_chosen and self.backend.passes_on() and ask.look is None
        write = (
            self._pass(request, stream, writer, ask)
            if passes
            else self._choose(request, stream, writer, ask, is_chosen)
        )
        working = asyncio.ensure_future(write)
        try:
            await stream.follow(working, self.keep_alive_s)
            working.result()
        except Exception as error:
            known = chat.told(error) if isinstance(error, ApiError) else error
            if not stream.begun or isinstance(error, ConnectionError):
                raise known from None
            writer.fail(told(request, known))
            await stream.flush()
        finally:
            working.cancel()  # the client has left, or there is nothing more to do
        return await stream.end()

    async def _choose(
        self, request: web.Request, stream: EventStream, writer: ResponseWriter, ask: Ask, is_chosen: bool
    ) -> None:
        """Report candidates as they come, then write the chosen answer; one without selection at once, as far
        as the backend shows it."""
        sent = 0

        def write(piece: str) -> None:
            nonlocal sent
            sent += len(piece)
            writer.write("output_text", piece)

        def tell(place: int, candidate: Any) -> None:
            if is_chosen:
                progress(stream, ask.best_of, place, candidate)

        if not is_chosen:
            ask.write = write
        outcome = await self.select(request, ask, 1, tell)
        await self._written(writer, ask, outcome, is_chosen, sent, stream)

    async def _written(
        self,
        writer: ResponseWriter,
        ask: Ask,
        outcome: Selection,
        is_chosen: bool,
        sent: int = 0,
        stream: EventStream | None = None,
    ) -> dict[str, Any]:
        """Write an answer, no faster than its ``stream`` is read."""
        head = {"id": writer.response["id"], "created": int(time.time()), "model": ask.model}
        whole = completion(head, ask, outcome)
        choice = whole["choices"][0]
        for _ in writer.say(choice, sent):
            if stream is not None:
                await stream.room()
        return writer.end(choice["finish_reason"], ask.usage, more_of(whole, is_chosen))

    async def _pass(
        self, request: web.Request, stream: EventStream, writer: ResponseWriter, ask: Ask
    ) -> None:
        """Write what a server streams, as it comes, but no faster than it is read.

        Raises:
            ServerError: It failed, or was not complete in time.
        """
        body = {**ask.body, "stream": True, "stream_options": {"include_usage": True}}
        growing = Growing()
        reply = growing.reply
        try:
            events = self.backend.stream(body, ask.usage, ask.deadline)
            async with asyncio.timeout_at(ask.deadline), aclosing(events):
                async for _, chunk in events:
                    request[RECORD].answered = True
                    for choice in chunk.get("choices") or ():
                        if isinstance(choice, Mapping) and choice.get("index", 0) == 0:
                            _grow(writer, growing, chunk, choice)
                    await stream.room()
        except TimeoutError:
            text = "the answer was not complete within the time allowed"
            raise ServerError(text, 504, "timeout") from None
        finally:
            self.count(ask.usage)
        message = {
            "content": reply.text,
            "refusal": reply.rest.get("refusal"),
            "tool_calls": reply.tool_calls,
        }
        written = {"message": message, "finish_reason": reply.finish, "logprobs": {"content": reply.logprobs}}
        for _ in writer.say(written, len(reply.text)):
            await stream.room()
        writer.end(reply.finish, ask.usage, {})


def _grow(
    writer: ResponseWriter, growing: Growing, chunk: Mapping[str, Any], choice: Mapping[str, Any]
) -> None:
    """Write what a chunk says."""
    reply, delta = growing.reply, choice.get("delta")
    before = len(reply.text)
    growing.grow(chunk, choice)
    if isinstance(delta, Mapping):
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str):
            writer.write("reasoning_text", reasoning)
    if len(reply.text) > before:
        writer.write("output_text", reply.text[before:])
    if choice.get("finish_reason"):
        reply.finish = str(choice["finish_reason"])
