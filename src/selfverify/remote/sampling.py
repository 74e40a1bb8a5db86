"""N candidates from a server: by its ``n``, as one stream, or in N requests where it knows no ``n``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from selfverify.errors import ServerError
from selfverify.remote.client import OpenAIClient, gather_or_cancel
from selfverify.remote.replies import Reply
from selfverify.remote.usage import Usage, estimated_tokens

Mode = Literal["n", "separate", "stream"]
"""How candidates are asked for: all in one reply, each in its own, or all in one stream, so that each is
there when it is finished."""

_REFUSES_N = (400, 422, 501)
"""Statuses with which a server may refuse ``n`` above 1, or ``stream`` together with it."""


class ServerSampler:
    """Draws candidates, and remembers which models are given one at a time."""

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self.one_by_one: set[str] = set()
        """Models whose server ignored or refused ``n``."""

    async def draw(
        self,
        body: Mapping[str, Any],
        n: int,
        deliver: Callable[[Reply], None],
        usage: Usage,
        mode: Mode = "n",
        first: int = 0,
    ) -> ServerError | None:
        """Draw up to ``n`` candidates, each delivered once, when it is there.

        Args:
            body: The request, without ``n`` and ``stream``.
            n: How many.
            deliver: Gets each.
            usage: Counts.
            mode: See `Mode`.
            first: How many were drawn before; a ``seed`` in the body is raised by it, since the same seed
                would give the same candidates again.

        Returns:
            What happened to the missing ones, if there are any.

        Raises:
            ServerError: There is not a single one.
        """
        delivered = 0
        fault: ServerError | None = None

        def count(reply: Reply) -> None:
            nonlocal delivered
            delivered += 1
            deliver(reply)

        model = str(body.get("model"))
        if n > 1 and mode != "separate" and model not in self.one_by_one:
            try:
                draw = self._streamed if mode == "stream" else self._at_once
                try:
                    await draw(_seeded(body, first), n, count, usage)
                except ServerError as error:
                    if mode != "stream" or delivered or error.code not in ("cut_off", "bad_reply"):
                        raise
                    await self._at_once(_seeded(body, first), n, count, usage)
            except ServerError as error:
                fault = error
                if error.status not in _REFUSES_N and not (delivered and error.retry):
                    if delivered:
                        return error
                    raise
        refused = fault is not None and fault.status in _REFUSES_N
        while delivered < n:
            before = delivered
            try:
                # If it was ``n`` that a server refused, one request without it shows.
                some = 1 if refused and not before else n - before
                later = await self._separately(body, some, count, usage, first + before)
            except ServerError as error:
                if delivered:
                    return error
                raise (fault if refused and fault else error) from None
            if refused and not before:
                if body.get("temperature") != 0:  # where several would be the same, they may be refused
                    self.one_by_one.add(model)
                continue
            fault = later
            break
        return fault if delivered < n else None

    async def _at_once(
        self, body: dict[str, Any], n: int, deliver: Callable[[Reply], None], usage: Usage
    ) -> None:
        reply = await self.client.chat(body | {"n": n}, usage.lost)
        choices = reply["choices"]
        for found in read_choices(reply, usage)[:n]:
            deliver(found)
        if n > 1 and len(choices) == 1 and not reply["dropped"]:
            self.one_by_one.add(str(body.get("model")))

    async def _separately(
        self, body: Mapping[str, Any], n: int, deliver: Callable[[Reply], None], usage: Usage, first: int
    ) -> ServerError | None:
        """One request each, all at once; the first fault if some failed, raised if all did."""
        faults: list[ServerError] = []

        async def one(place: int) -> None:
            try:
                reply = await self.client.chat(_seeded(body, place), usage.lost)
            except ServerError as error:
                faults.append(error)
                return
            for found in read_choices(reply, usage)[:1]:
                deliver(found)

        tasks = [asyncio.ensure_future(one(first + i)) for i in range(n)]
        await gather_or_cancel(*tasks)
        for task in tasks:
            task.result()  # what is no ServerError is a fault of ours
        if len(faults) == n:
            raise faults[0]
        return faults[0] if faults else None

    async def _streamed(
        self, body: dict[str, Any], n: int, deliver: Callable[[Reply], None], usage: Usage
    ) -> None:
        growing: dict[int, Reply] = {}
        finished: set[int] = set()
        counted: Any = None
        begun = whole = False
        options = {"n": n, "stream": True, "stream_options": {"include_usage": True}}
        stream = self.client.stream(body | options, usage.lost)
        try:
            async for chunk in stream:
                begun = True
                counted = chunk.get("usage") or counted
                for choice in chunk.get("choices") or []:
                    index = choice.get("index", 0) if isinstance(choice, dict) else None
                    if not isinstance(index, int) or not 0 <= index < n or index in finished:
                        continue
                    reply = growing.setdefault(index, Reply("", finish="error"))
                    _grow(reply, choice)
                    if choice.get("finish_reason"):
                        reply.finish = str(choice["finish_reason"])
                        finished.add(index)
                        reply.tokens = max(reply.tokens, estimated_tokens(reply.text))
                        deliver(reply)
            whole = True
        except ServerError as error:
            # Some servers just end after the last finish reason.
            whole = error.code == "cut_off" and bool(finished) and finished == set(growing)
            if not whole:
                raise
        finally:
            await stream.aclose()
            written = sum(reply.tokens for reply in growing.values())
            if counted is not None:
                share(list(growing.values()), usage.add(counted, written))
            elif begun:
                usage.lost(written)
        if whole and n > 1 and set(growing) == {0}:
            self.one_by_one.add(str(body.get("model")))


def _seeded(body: Mapping[str, Any], place: int) -> dict[str, Any]:
    seed = body.get("seed")
    return dict(body) if seed is None else {**body, "seed": seed + place}


def read_choices(reply: Mapping[str, Any], usage: Usage, judge: bool = False) -> list[Reply]:
    """The candidates of a whole reply; counts it."""
    found = []
    for choice in reply["choices"]:
        candidate = Reply("", finish=str(choice.get("finish_reason") or "stop"))
        _grow(candidate, {"delta": choice["message"], "logprobs": choice.get("logprobs")})
        candidate.tokens = len(candidate.logprobs) or estimated_tokens(candidate.text) or 1
        found.append(candidate)
    share(found, usage.add(reply.get("usage"), sum(candidate.tokens for candidate in found), judge))
    return found


def share(candidates: Sequence[Reply], written: int) -> None:
    """A server counts the whole reply; each candidate gets its share by what is known of its length."""
    estimates = [candidate.tokens for candidate in candidates]
    before, total = 0, max(sum(estimates), 1)
    for i, candidate in enumerate(candidates):
        until = round(written * sum(estimates[: i + 1]) / total)
        candidate.tokens, before = until - before, until


def _grow(reply: Reply, choice: Mapping[str, Any]) -> None:
    """Put a chunk's part of one choice behind what is there of it."""
    delta = choice.get("delta")
    if not isinstance(delta, Mapping):
        return
    text = delta.get("content")
    if isinstance(text, str) and text:
        reply.text += text
        reply.tokens += 1
    for name, value in delta.items():
        if name not in ("role", "content", "tool_calls") and value is not None:
            known = reply.rest.get(name)
            both = isinstance(known, str) and isinstance(value, str)
            reply.rest[name] = f"{known}{value}" if both else value
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, Mapping):
            _grow_call(reply.tool_calls, call)
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if isinstance(content, list):
        reply.logprobs += [entry for entry in content if isinstance(entry, dict)]
        reply.tokens = max(reply.tokens, len(reply.logprobs))


def _grow_call(calls: list[dict[str, Any]], part: Mapping[str, Any]) -> None:
    index = part.get("index", len(calls))
    function = part.get("function")
    function = function if isinstance(function, Mapping) else {}
    if not isinstance(index, int) or not 0 <= index < len(calls):
        calls.append({"id": part.get("id"), "type": "function", "function": {"name": "", "arguments": ""}})
        index = -1
    known = calls[index]["function"]
    for name in ("name", "arguments"):
        if isinstance(function.get(name), str):
            known[name] += function[name]
