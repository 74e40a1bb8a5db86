"""A model server behind the gateway: anything that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.errors import ServerError
from selfverify.remote.client import OpenAIClient, gather_or_cancel
from selfverify.remote.judge import ServerRating
from selfverify.remote.logprobs import LogprobsWhereGiven
from selfverify.remote.replies import Reply, read_reply, soft_score
from selfverify.remote.sampling import Mode, ServerSampler
from selfverify.selection.answers import Kind
from selfverify.serving.errors import ApiError
from selfverify.serving.selecting import Ask, Drawing

VERIFIERS = "inline, soft, judge, judge:MODEL, none"


class Upstream:
    """Draws candidates from a server.

    Args:
        client: Of the server.
        separate: Ask for every candidate in a request of its own, for servers whose ``n`` goes wrong.
    """

    name = "upstream"
    default_verifier = "inline"
    strict = False

    def __init__(self, client: OpenAIClient, separate: bool = False) -> None:
        self.client = client
        self.separate = separate
        self.sampler = ServerSampler(client)
        self.rating = ServerRating(client)
        self._logprobs = LogprobsWhereGiven()

    def check(self, ask: Ask) -> None:
        """See `Backend`."""
        judge_of(ask.best_of.verifier or self.default_verifier, ask.model)

    async def draw(self, ask: Ask, n: int, first: int, drawing: Drawing) -> ServerError | None:
        """See `Backend`. With a judge, each distinct answer is judged once, as soon as it is there."""
        judge = judge_of(drawing.verifier, ask.model)
        asked: dict[str, asyncio.Task[float | None]] = {}
        known = {
            drawing.candidate(reply).key or reply.text: reply.scores[drawing.verifier]
            for reply in drawing.replies
            if judge is not None and drawing.verifier in reply.scores
        }
        followers: list[asyncio.Task[Any]] = []

        def deliver(reply: Reply) -> None:
            score(reply, ask.best_of.answers)
            drawing.arrived(reply)
            if judge is None or drawing.candidate(reply).answer is None:
                drawing.ready(reply)
                return
            candidate = drawing.candidate(reply)
            key = candidate.key or reply.text
            if key in known:
                reply.scores[drawing.verifier] = known[key]
                drawing.ready(reply)
                return
            if key not in asked:
                text = read_reply(reply, ask.best_of.answers).visible or reply.text
                asked[key] = asyncio.ensure_future(self._rate(ask, judge, text))
            followers.append(asyncio.ensure_future(follow(reply, asked[key])))

        async def follow(reply: Reply, rating: asyncio.Task[float | None]) -> None:
            score = await rating
            if score is not None:
                reply.scores[drawing.verifier] = score
            drawing.ready(reply)

        try:
            fault = await self._sample(ask, n, first, drawing.verifier, deliver)
            await gather_or_cancel(*followers)
        finally:
            for task in [*followers, *asked.values()]:
                task.cancel()
        for task in followers:
            task.result()
        return fault

    async def _sample(self, ask: Ask, n: int, first: int, verifier: str, deliver: Any) -> ServerError | None:
        mode: Mode = "separate" if self.separate else "stream" if ask.streams else "n"

        async def draw(more: dict[str, Any]) -> ServerError | None:
            return await self.sampler.draw(ask.body | more, n, deliver, ask.usage, mode, first)

        return await (self._logprobs.ask(ask.model, draw) if verifier == "soft" else draw({}))

    async def verify(self, ask: Ask, answers: Sequence[str]) -> list[float | None]:
        """See `Backend`: a judge is asked, whatever the verifier. Where it failed there is no score.

        Raises:
            ServerError: It failed on all of them.
        """
        judge = judge_of(ask.best_of.verifier or "judge", ask.model) or ask.model
        tasks = [asyncio.ensure_future(self._rated(ask, judge, text)) for text in answers]
        await gather_or_cancel(*tasks)
        if all(isinstance(task.exception(), ServerError) for task in tasks):
            tasks[0].result()
        return [None if isinstance(task.exception(), ServerError) else task.result() for task in tasks]

    async def _rated(self, ask: Ask, judge: str, text: str) -> float | None:
        return await self.rating.rate(judge, ask.body["messages"], text, ask.usage)

    async def _rate(self, ask: Ask, judge: str, text: str) -> float | None:
        try:
            return await self._rated(ask, judge, text)
        except ServerError:
            return None  # an answer without a score is better than no answer

    async def models(self) -> list[dict[str, Any]]:
        """See `Backend`."""
        return await self.client.models()


def score(reply: Reply, kind: Kind) -> None:
    """What the reply itself says: its written score, and the expectation over that where it can be had.

    An answer whose own score is malformed has none. Where there are no probabilities, ``soft`` is ``inline``.
    """
    written = read_reply(reply, kind).score
    if written is not None:
        reply.scores["inline"] = written
        soft = soft_score(reply.logprobs)
        reply.scores["soft"] = written if soft is None else soft


def judge_of(verifier: str, model: str) -> str | None:
    """The judge's model; None where the verifier is no judge.

    Raises:
        ApiError: There is no such verifier.
    """
    kind, _, rest = verifier.partition(":")
    if kind == "judge":
        return rest or model
    if verifier in ("inline", "soft", "none"):
        return None
    text = f"best_of.verifier: there is no verifier {verifier!r} for servers; there are {VERIFIERS}"
    raise ApiError(400, text, "invalid_value", "best_of.verifier")


def with_pictures(messages: Sequence[Mapping[str, Any]], urls: Sequence[str]) -> list[dict[str, Any]]:
    """The messages with their images, in order, at these addresses."""
    left = iter(urls)

    def part(found: Any) -> Any:
        if isinstance(found, Mapping) and found.get("type") == "image_url":
            inner = found["image_url"]
            rest = dict(inner) if isinstance(inner, Mapping) else {}
            return {**found, "image_url": rest | {"url": next(left)}}
        return found

    return [
        {**message, "content": [part(found) for found in message["content"]]}
        if isinstance(message.get("content"), list)
        else dict(message)
        for message in messages
    ]
