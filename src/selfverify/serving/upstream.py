"""The backend that asks a model server, which may be any that speaks OpenAI's protocol."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from selfverify.clients.candidates import CandidateSampler, Mode, ScoreReader, rate, rate_all
from selfverify.clients.openai_client import OpenAIClient
from selfverify.clients.replies import Completion, Usage, soft_score, without_score
from selfverify.core.errors import ConfigError, SelfVerifyError, ServerError
from selfverify.serving.backend import NO_JUDGE, AnswerRequest, Backend, Draws, Events
from selfverify.serving.schemas import ApiError, invalid_value

if TYPE_CHECKING:  # a gateway before a server needs no model here
    from selfverify.visual.task import VisualToolTask

Scoring = Callable[[], Coroutine[Any, Any, float | None]]
"""Returns a candidate's score; None where there is none."""

LOOKING = 64
"""Requests that look at the same time, each in a thread that mostly waits; others wait for their turn."""
_QUICK = 0.1
"""The share of a request's time in which candidates of a quick model are there."""


class Upstream(Backend):
    """Draws candidates from a server.

    Args:
        client: The client of the server.
    """

    is_server = True
    default_verifier = "inline"

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self.sampler = CandidateSampler(client)
        self.reader = ScoreReader(client)
        self._looking = ThreadPoolExecutor(LOOKING, "looking")
        self.without_haste = set[str]()
        """Models that were quick: their candidates need no stream to be there in time."""

    async def __aenter__(self) -> Self:
        await self.client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._looking.shutdown(wait=False, cancel_futures=True)
        await self.client.__aexit__(*error)

    def check_verifier(self, verifier: str) -> None:
        if verifier not in ("inline", "soft", "none") and verifier.partition(":")[0] != "judge":
            known = "inline, soft, judge, judge:MODEL, none"
            raise ConfigError(f"there is no verifier {verifier!r} for servers; there are {known}")

    def check(self, ask: AnswerRequest) -> None:
        if ask.look is not None and judge_of(ask.best_of.verifier or "", ask.model) is not None:
            text = "candidates that look again have the scores that they write: inline or none"
            raise invalid_value("best_of.verifier", text)

    async def pass_on(self, body: Mapping[str, Any], usage: Usage, until: float) -> Events:
        """Pass a request on as it is. Where the server does not count, a chunk with text is a token."""
        if not body.get("stream"):
            reply = await self.client.chat(body, usage.lost, until)
            usage.add(reply.get("usage"), 0)
            yield reply
            return
        counted, begun, pieces = None, False, 0
        try:
            async with aclosing(self.client.stream(body, usage.lost, until)) as chunks:
                async for chunk in chunks:
                    counted, begun = chunk.get("usage") or counted, True
                    pieces += bool(chunk.get("choices"))
                    yield chunk
        finally:
            if begun:
                usage.add(counted, pieces)

    async def draw(self, ask: AnswerRequest, n: int, first: int, drawing: Draws) -> None:
        """Draw candidates and score them. A judge judges each distinct answer once, as soon as it is there.

        ``soft`` reads the score of each distinct candidate in a call of its own where the server continues
        messages, and else from alternatives for all tokens.
        """
        judge = judge_of(drawing.verifier, ask.model)
        if ask.look is not None:
            return await self._look(ask, ask.look, n, first, drawing)
        soft, reader, until = drawing.verifier == "soft", self.reader, ask.deadline
        reads = soft and await reader.can_read(ask.model, ask.usage, until)

        async def scored(reply: Completion, key: str, score: Scoring) -> None:
            if key not in drawing.scoring:
                drawing.scoring[key] = asyncio.ensure_future(score())
            try:
                found = await drawing.scoring[key]
            except ServerError:
                found = None  # an answer without a score is better than no answer
            reply.score = reply.score if found is None else found
            drawing.ready(reply)

        def deliver(reply: Completion) -> None:
            score: Scoring | None = None
            written = drawing.arrived(reply)
            key = reply.key or reply.text
            if reads and written is not None:
                reply.score, key = written, reply.text  # counts if time ends before the reading
                score = partial(reader.read, ask.body, reply, ask.usage, until)
            elif judge is None:
                reply.score = own_score(reply, drawing.verifier, written)
            elif reply.answer is not None:
                text = without_score(reply.text) or reply.text
                score = partial(rate, self.client, judge, ask.body["messages"], text, ask.usage)
            if score is None:
                drawing.ready(reply)
            else:
                judging.create_task(scored(reply, key, score))

        async def sample(more: dict[str, Any]) -> ServerError | None:
            # In a stream each candidate counts as soon as it is there, so that those that are there at the
            # deadline are not lost; a reply to all is cheaper, and enough where the model is quick.
            hasty = ask.streams or ask.best_of.timeout_s is not None or ask.model not in self.without_haste
            mode: Mode = "stream" if hasty else "n"
            return await self.sampler.draw(ask.body | more, n, deliver, ask.usage, mode, first, until)

        now = asyncio.get_running_loop().time
        begun, is_quick, fault = now(), False, None
        async with asyncio.TaskGroup() as judging:
            try:
                if soft and not (reads and drawing.fusion is None):
                    fault = await self.client.with_logprobs(ask.model, sample, alternatives=not reads)
                else:
                    fault = await sample({})
                is_quick = fault is None and now() - begun < _QUICK * (ask.deadline - begun)
            except ServerError as error:
                fault = error
            finally:
                (self.without_haste.add if is_quick else self.without_haste.discard)(ask.model)
        if fault is not None:
            raise fault

    async def _look(
        self, ask: AnswerRequest, look: VisualToolTask, n: int, first: int, drawing: Draws
    ) -> None:
        """Draw candidates that look at the images again: conversations side by side, in one thread."""
        from selfverify.serving.visual import AT_ONCE, look_at_server  # it needs torch

        loop, over, usage, left = asyncio.get_running_loop(), threading.Event(), ask.usage, n
        faults = list[Exception]()

        def arrived(reply: Completion | Exception) -> None:
            nonlocal left
            left -= 1
            if isinstance(reply, Exception):
                faults.append(reply)
            elif not over.is_set():
                reply.score = own_score(reply, drawing.verifier, drawing.arrived(reply))
                drawing.ready(reply)

        def deliver(reply: Completion | Exception) -> None:
            loop.call_soon_threadsafe(arrived, reply)

        def hold() -> None:
            server = replace(self.client.settings, timeout_s=max(ask.deadline - loop.time(), 0.1))
            look_at_server(look, ask, server, range(first, first + n), over.is_set, deliver, usage)

        held = loop.run_in_executor(self._looking, hold)
        # Where the client has gone, no one asks for its exception.
        held.add_done_callback(lambda of: None if of.cancelled() else of.exception())
        try:
            await held
        except asyncio.CancelledError:
            for _ in range(min(left, AT_ONCE)):
                usage.lost()  # the turns that are still going on
            raise
        except (ApiError, SelfVerifyError) as error:
            faults.append(error)
        finally:
            over.set()  # at the deadline, or where the client has left
            held.cancel()  # where it still waits for a thread
            ask.usage = deepcopy(usage)  # what still comes in counts no more
        if faults:
            raise faults[0]

    async def verify(self, ask: AnswerRequest, answers: Sequence[str]) -> list[float | None]:
        """Return the scores of given answers.

        Raises:
            ServerError: The judge failed on all answers.
        """
        name = ask.best_of.verifier or "judge"
        judge = judge_of(name, ask.model)
        if judge is None:
            raise invalid_value("verifier", NO_JUDGE.format(name))
        asked = [(f"answer {i}", ask.body["messages"], text) for i, text in enumerate(answers)]
        return await rate_all(self.client, judge, asked, ask.usage)

    async def fault(self) -> str | None:
        return await self.client.fault()

    async def models(self) -> list[dict[str, Any]]:
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
