"""The backend that asks a model server, which may be any that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self

from selfverify.core.errors import ConfigError, ServerError
from selfverify.remote.candidates_of_server import Mode, ServerSampler
from selfverify.remote.client import OpenAIClient
from selfverify.remote.judge import rate, rate_all
from selfverify.remote.lacking import Lacking
from selfverify.remote.score_reading import ScoreReader
from selfverify.remote.score_shares import soft_score
from selfverify.remote.server_replies import Completion, without_score
from selfverify.remote.usage import Usage
from selfverify.serving.backend import Ask, Backend, Drawing, Events
from selfverify.serving.incoming import refuse_addresses, with_pictures
from selfverify.serving.request_images import Picture

VERIFIERS = "inline, soft, judge, judge:MODEL, none"

_QUICK = 0.1
"""The share of a request's time in which candidates of a quick model are there."""


class Upstream(Backend):
    """Draws candidates from a server.

    Args:
        client: The client of the server.
        separate: Ask for every candidate in a request of its own, for servers whose ``n`` goes wrong.
    """

    name = "upstream"
    default_verifier = "inline"
    strict = False

    def __init__(self, client: OpenAIClient, separate: bool = False) -> None:
        self.client = client
        self.separate = separate
        self.sampler = ServerSampler(client)
        self.reader = ScoreReader(client)
        self.without_haste = Lacking(after=1)
        """Models that were quick: their candidates need no stream to be there in time."""

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.client.__aexit__(*error)

    def check_verifier(self, verifier: str) -> None:
        """See `Backend`."""
        if verifier not in ("inline", "soft", "none") and verifier.partition(":")[0] != "judge":
            raise ConfigError(f"there is no verifier {verifier!r} for servers; there are {VERIFIERS}")

    def own_messages(
        self, messages: list[dict[str, Any]], pictures: Sequence[Picture]
    ) -> list[dict[str, Any]]:
        """See `Backend`: images become data URLs, and nothing else may have an address."""
        refuse_addresses(messages)
        return with_pictures(messages, pictures) if pictures else messages

    def passes_on(self) -> bool:
        """See `Backend`."""
        return True

    async def reply_to(self, body: Mapping[str, Any], usage: Usage, until: float) -> bytes:
        """See `Backend`."""
        raw, reply = await self.client.chat_as_it_comes(body, usage.lost, until)
        usage.add(reply.get("usage"), 0)
        return raw

    async def stream(self, body: Mapping[str, Any], usage: Usage, until: float) -> Events:
        """See `Backend`."""
        counted, begun = None, False
        try:
            async with aclosing(self.client.stream_as_it_comes(body, usage.lost, until)) as events:
                async for raw, chunk in events:
                    counted, begun = chunk.get("usage") or counted, True
                    yield raw, chunk
        finally:
            if begun:
                usage.add(counted, 0)

    async def draw(self, ask: Ask, n: int, first: int, drawing: Drawing) -> ServerError | None:
        """See `Backend`. A judge judges each distinct answer once, as soon as it is there.

        ``soft`` reads the score of each distinct candidate in a call of its own where the server continues
        messages, and else from alternatives for all tokens.
        """
        judge = judge_of(drawing.verifier, ask.model)
        soft, reader, until = drawing.verifier == "soft", self.reader, ask.deadline
        reads = soft and await reader.can_read(ask.model, ask.usage, until)
        readings: dict[str, asyncio.Task[float | None]] = {}
        known = {reply.key or reply.text: reply.score for reply in drawing.candidates}
        ratings: dict[str, asyncio.Task[float | None]] = {}

        async def judged(reply: Completion, key: str) -> None:
            if key not in ratings:
                text = without_score(reply.text) or reply.text
                ratings[key] = judging.create_task(self._rating(ask, str(judge), text))
            reply.score = await ratings[key]
            drawing.ready(reply)

        async def soften(reply: Completion) -> None:
            text = reply.text
            if text not in readings:
                readings[text] = judging.create_task(reader.read(ask.body, reply, ask.usage, until))
            read = await readings[text]
            reply.score = reply.score if read is None else read
            drawing.ready(reply)

        def deliver(reply: Completion) -> None:
            written, key = drawing.arrived(reply), reply.key or reply.text
            if reads and written is not None:
                reply.score = written  # counts if time ends before the reading
                judging.create_task(soften(reply))
                return
            if judge is None:
                reply.score = own_score(reply, drawing.verifier, written)
            elif reply.answer is not None:
                reply.score = known.get(key)
                if reply.score is None:
                    judging.create_task(judged(reply, key))
                    return
            drawing.ready(reply)

        async def sample(more: dict[str, Any]) -> ServerError | None:
            body = ask.body | more
            return await self.sampler.draw(body, n, deliver, ask.usage, self._mode(ask), first, ask.deadline)

        now = asyncio.get_running_loop().time
        begun, is_quick = now(), False
        async with asyncio.TaskGroup() as judging:
            try:
                if soft and not reads:
                    fault = await self.client.with_logprobs(ask.model, sample)
                else:
                    fault = await sample({})
                is_quick = fault is None and now() - begun < _QUICK * (ask.deadline - begun)
                return fault
            except ServerError as error:
                return error
            finally:
                (self.without_haste.odd if is_quick else self.without_haste.has)(ask.model)

    def _mode(self, ask: Ask) -> Mode:
        """Return how to ask. In a stream each candidate counts as soon as it is there, so that those that are
        there at the deadline are not lost; a reply to all is cheaper, and enough where the model is quick."""
        if self.separate:
            return "separate"
        needed = ask.streams or ask.best_of.timeout_s is not None or ask.model not in self.without_haste
        return "stream" if needed else "n"

    async def _rating(self, ask: Ask, judge: str, text: str) -> float | None:
        try:
            return await rate(self.client, judge, ask.body["messages"], text, ask.usage)
        except ServerError:
            return None  # an answer without a score is better than no answer

    async def verify(self, ask: Ask, answers: Sequence[str]) -> list[float | None]:
        """See `Backend`: a judge is asked, whatever the verifier.

        Raises:
            ServerError: The judge failed on all answers.
        """
        judge = judge_of(ask.best_of.verifier or "judge", ask.model) or ask.model
        asked = [(f"answer {i}", ask.body["messages"], text) for i, text in enumerate(answers)]
        return await rate_all(self.client, judge, asked, ask.usage)

    async def models(self) -> list[dict[str, Any]]:
        """See `Backend`."""
        return await self.client.models()


def own_score(reply: Completion, verifier: str, written: float | None) -> float | None:
    """Return the score that a reply itself holds: the ``written`` one, or for ``soft`` its expectation.

    A malformed score is none. Without probabilities, ``soft`` is ``inline``.
    """
    if written is None or verifier == "none":
        return None
    soft = soft_score(reply.logprobs) if verifier == "soft" else None
    return written if soft is None else soft


def judge_of(verifier: str, model: str) -> str | None:
    """Return the judge's model; None if the verifier is no judge."""
    kind, _, judge = verifier.partition(":")
    return (judge or model) if kind == "judge" else None
