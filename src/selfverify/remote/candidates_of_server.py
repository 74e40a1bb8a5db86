"""Draw N candidates from a server: by its ``n``, in one stream, or in N requests if it knows no ``n``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from selfverify.core.errors import ServerError
from selfverify.remote.client import REFUSALS, OpenAIClient
from selfverify.remote.server_replies import Completion
from selfverify.remote.usage import Usage, estimated_tokens

Mode = Literal["n", "separate", "stream"]
"""How candidates are asked for: all in one reply (``n``), each in a reply of its own (``separate``), or all
in one stream (``stream``), in which each arrives as soon as it is finished."""

Deliver = Callable[[Completion], None]
"""Gets each candidate when it is there."""


class ServerSampler:
    """Draws candidates, and remembers the models that give only one candidate per request."""

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self.one_by_one: set[str] = set()
        """Models whose server ignored or refused ``n``."""

    async def draw(
        self,
        body: Mapping[str, Any],
        n: int,
        deliver: Deliver,
        usage: Usage,
        mode: Mode = "n",
        first: int = 0,
    ) -> ServerError | None:
        """Draw up to ``n`` candidates and deliver each of them once.

        Args:
            body: The request, without ``n`` and ``stream``.
            n: The number of candidates.
            deliver: Called with each candidate as soon as it is there.
            usage: Counts what the calls cost.
            mode: See `Mode`.
            first: The number of candidates drawn before. A ``seed`` in the body is raised by it, since the
                same seed would give the same candidates again.

        Returns:
            Why candidates are missing; None where none are.

        Raises:
            ServerError: There is no candidate at all.
        """
        got: list[Completion] = []

        def keep(reply: Completion) -> None:
            got.append(reply)
            deliver(reply)

        model, fault, go_on = str(body.get("model")), None, True
        if n > 1 and mode != "separate" and model not in self.one_by_one:
            ways = (self._streamed, self._at_once) if mode == "stream" else (self._at_once,)
            for draw in ways:
                fault = await draw(_seeded(body, first), n, keep, usage)
                if got or fault is None or fault.code not in ("cut_off", "bad_reply"):
                    break
            refused = fault is not None and fault.status in REFUSALS
            go_on = fault is None or refused or (bool(got) and fault.retry)
            if fault is not None and refused and not got:
                # If it was ``n`` that the server refused, one request without it shows.
                if await self._separately(body, 1, keep, usage, first):
                    raise fault
                # Some servers refuse only greedy candidates, which would all be the same.
                if body.get("temperature") != 0:
                    self.one_by_one.add(model)
        if go_on and len(got) < n:
            fault = await self._separately(body, n - len(got), keep, usage, first + len(got))
        if fault and not got:
            raise fault
        return fault if len(got) < n else None

    async def _at_once(
        self, body: dict[str, Any], n: int, deliver: Deliver, usage: Usage
    ) -> ServerError | None:
        """Ask for all candidates in one reply. Return the fault, if any."""
        try:
            reply = await self.client.chat(body | {"n": n}, usage.lost)
        except ServerError as error:
            return error
        for found in read_choices(reply, usage, most=_most(body))[:n]:
            deliver(found)
        if n > 1 and len(reply["choices"]) == 1 and not reply["dropped"]:
            self.one_by_one.add(str(body.get("model")))
        return None

    async def _separately(
        self, body: Mapping[str, Any], n: int, deliver: Deliver, usage: Usage, first: int
    ) -> ServerError | None:
        """Ask for each candidate in a request of its own, all at once. Return the first fault, if any."""

        async def one(place: int) -> ServerError | None:
            try:
                reply = await self.client.chat(_seeded(body, place), usage.lost)
            except ServerError as error:
                return error
            for found in read_choices(reply, usage)[:1]:
                deliver(found)
            return None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(first + i)) for i in range(n)]
        return next(filter(None, (task.result() for task in tasks)), None)

    async def _streamed(
        self, body: dict[str, Any], n: int, deliver: Deliver, usage: Usage
    ) -> ServerError | None:
        """Ask for all candidates in one stream, delivering each at its end. Return the fault, if any."""
        growing: dict[int, Completion] = {}
        finished: set[int] = set()
        counted: Any = None
        begun = False
        fault: ServerError | None = None
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
                    reply = growing.setdefault(index, Completion(finish="error"))
                    _grow(reply, choice)
                    if choice.get("finish_reason"):
                        reply.finish = str(choice["finish_reason"])
                        finished.add(index)
                        reply.tokens = max(reply.tokens, estimated_tokens(reply.text))
                        deliver(reply)
        except ServerError as error:
            # Some servers just end after the last finish reason.
            if error.code != "cut_off" or not finished or finished != set(growing):
                fault = error
        finally:
            await stream.aclose()
            written = sum(reply.tokens for reply in growing.values())
            if counted is not None:
                share(list(growing.values()), usage.add(counted, written), _most(body))
            elif begun:
                usage.lost(written)
        if fault is None and n > 1 and set(growing) == {0}:
            self.one_by_one.add(str(body.get("model")))
        return fault


def _seeded(body: Mapping[str, Any], place: int) -> dict[str, Any]:
    seed = body.get("seed")
    return dict(body) if seed is None else {**body, "seed": seed + place}


def _most(body: Mapping[str, Any]) -> int | None:
    """Return the most tokens that a candidate may have by the request."""
    return body.get("max_completion_tokens") or body.get("max_tokens")


def read_choices(
    reply: Mapping[str, Any], usage: Usage, judge: bool = False, most: int | None = None
) -> list[Completion]:
    """Return the candidates of a whole reply, none longer than ``most`` tokens, and count what it cost."""
    found = []
    for choice in reply["choices"]:
        candidate = Completion(finish=str(choice.get("finish_reason") or "stop"))
        _grow(candidate, {"delta": choice["message"], "logprobs": choice.get("logprobs")})
        candidate.tokens = len(candidate.logprobs) or estimated_tokens(candidate.text) or 1
        found.append(candidate)
    share(found, usage.add(reply.get("usage"), sum(candidate.tokens for candidate in found), judge), most)
    return found


def share(candidates: Sequence[Completion], written: int, most: int | None = None) -> None:
    """Divide a reply's ``written`` tokens among its candidates, in proportion to their estimated lengths.

    A candidate whose share is more than ``most`` gets ``most``, and the others share the rest. Where all
    would have more, the server counts otherwise than it cuts, and ``most`` says nothing.
    """
    rest, capped = list(candidates), most is not None and written <= most * len(candidates)
    while capped and most is not None:
        total = sum(candidate.tokens for candidate in rest)
        full = [candidate.tokens * written > most * total for candidate in rest]
        for candidate, is_full in zip(rest, full, strict=True):
            candidate.tokens = most if is_full else candidate.tokens
        rest = [candidate for candidate, is_full in zip(rest, full, strict=True) if not is_full]
        written, capped = written - most * sum(full), any(full)
    estimates = [candidate.tokens for candidate in rest]
    before, total = 0, max(sum(estimates), 1)
    for i, candidate in enumerate(rest):
        until = (2 * written * sum(estimates[: i + 1]) + total) // (2 * total)
        candidate.tokens, before = until - before, until


def _grow(reply: Completion, choice: Mapping[str, Any]) -> None:
    """Append what a chunk says of one choice."""
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
