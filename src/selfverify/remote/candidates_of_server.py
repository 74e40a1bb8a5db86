"""Draw N candidates from a server: by its ``n``, in one stream, or in N requests if it knows no ``n``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal

from selfverify.core.errors import ServerError
from selfverify.remote.client import REFUSALS, OpenAIClient
from selfverify.remote.growing import Growing, read_choices, share
from selfverify.remote.server_replies import Completion
from selfverify.remote.usage import Usage, estimated_tokens

Mode = Literal["n", "separate", "stream"]
"""How candidates are asked for: all in one reply (``n``), each in a reply of its own (``separate``), or all
in one stream (``stream``), in which each arrives as soon as it is finished."""

_SURE = 2
"""The replies in a row with one candidate that are no accident. A refusal counts as so many."""

Deliver = Callable[[Completion], None]
"""Gets each candidate when it is there."""


class CandidateSampler:
    """Draws candidates, and remembers the models that give only one candidate per request."""

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self._odd = Counter[str]()
        """By model, the replies in a row that ignored ``n``."""

    def asks_one_by_one(self, model: str) -> bool:
        """Whether a model was seen to give only one candidate per request."""
        return self._odd[model] >= _SURE

    async def draw(
        self,
        body: Mapping[str, Any],
        n: int,
        deliver: Deliver,
        usage: Usage,
        mode: Mode = "n",
        first: int = 0,
        until: float | None = None,
    ) -> ServerError | None:
        """Draw up to ``n`` candidates and deliver each of them once.

        Args:
            body: The request, without ``n`` and ``stream``.
            n: The number of candidates.
            deliver: Called with each candidate as soon as it is there.
            usage: Counts what the calls cost.
            mode: See `Mode`.
            until: See `OpenAIClient.chat`.
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
        if n > 1 and mode != "separate" and not self.asks_one_by_one(model):
            ways = (self._streamed, self._at_once) if mode == "stream" else (self._at_once,)
            for draw in ways:
                fault = await draw(_seeded(body, first), n, keep, usage, until)
                if got or fault is None or fault.code not in ("cut_off", "bad_reply"):
                    break
            refused = fault is not None and fault.status in REFUSALS
            go_on = fault is None or refused or (bool(got) and fault.retry)
            if fault is not None and refused and not got:
                # If it was ``n`` that the server refused, one request without it shows.
                other = await self._separately(body, 1, keep, usage, first, until)
                if other:
                    raise fault if other.status in REFUSALS else other
                # Some servers refuse only greedy candidates, which would all be the same.
                if body.get("temperature") != 0:
                    self._odd[model] = _SURE
        if go_on and len(got) < n:
            fault = await self._separately(body, n - len(got), keep, usage, first + len(got), until)
        if fault and not got:
            raise fault
        return fault if len(got) < n else None

    async def _at_once(
        self, body: dict[str, Any], n: int, deliver: Deliver, usage: Usage, until: float | None
    ) -> ServerError | None:
        """Ask for all candidates in one reply. Return the fault, if any."""
        try:
            reply = await self.client.chat(body | {"n": n}, usage.lost, until)
        except ServerError as error:
            return error
        for found in read_choices(reply, usage, most=_most(body))[:n]:
            deliver(found)
        self._saw(str(body.get("model")), len(reply["choices"]), whole=not reply["dropped"])
        return None

    async def _separately(
        self,
        body: Mapping[str, Any],
        n: int,
        deliver: Deliver,
        usage: Usage,
        first: int,
        until: float | None,
    ) -> ServerError | None:
        """Ask for each candidate in a request of its own, all at once. Return the first fault, if any."""

        async def one(place: int) -> ServerError | None:
            try:
                reply = await self.client.chat(_seeded(body, place), usage.lost, until)
            except ServerError as error:
                return error
            for found in read_choices(reply, usage)[:1]:
                deliver(found)
            return None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(first + i)) for i in range(n)]
        return next(filter(None, (task.result() for task in tasks)), None)

    async def _streamed(
        self, body: dict[str, Any], n: int, deliver: Deliver, usage: Usage, until: float | None
    ) -> ServerError | None:
        """Ask for all candidates in one stream, delivering each at its end. Return the fault, if any."""
        growing: dict[int, Growing] = {}
        finished: set[int] = set()
        counted: Any = None
        begun = False
        fault: ServerError | None = None
        options = {"n": n, "stream": True, "stream_options": {"include_usage": True}}
        stream = self.client.stream(body | options, usage.lost, until)
        try:
            async for chunk in stream:
                begun = True
                counted = chunk.get("usage") or counted
                for choice in chunk.get("choices") or []:
                    index = choice.get("index", 0) if isinstance(choice, dict) else None
                    if not isinstance(index, int) or not 0 <= index < n or index in finished:
                        continue
                    grown = growing.setdefault(index, Growing())
                    grown.grow(chunk, choice)
                    if choice.get("finish_reason"):
                        reply = grown.reply
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
            begun_ones = [grown.reply for grown in growing.values()]
            written = sum(reply.tokens for reply in begun_ones)
            if counted is not None:
                share(begun_ones, usage.add(counted, written), _most(body))
            elif begun:
                usage.lost(written)
        self._saw(str(body.get("model")), len(growing), whole=fault is None and set(growing) == {0})
        return fault

    def _saw(self, model: str, candidates: int, whole: bool) -> None:
        """Remember how many came where several were asked for; ``whole``: none of them was left out."""
        if candidates > 1:
            self._odd.pop(model, None)
        elif whole:
            self._odd[model] += 1


def _seeded(body: Mapping[str, Any], place: int) -> dict[str, Any]:
    seed = body.get("seed")
    return dict(body) if seed is None else {**body, "seed": seed + place}


def _most(body: Mapping[str, Any]) -> int | None:
    """Return the most tokens that a candidate may have by the request."""
    return body.get("max_completion_tokens") or body.get("max_tokens")
