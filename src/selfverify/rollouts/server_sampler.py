"""The sampler of a model behind an OpenAI-compatible server.

`ServerMessages` keeps what the model was asked, has said and was shown, as OpenAI's messages.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Any

from selfverify.clients.candidates import CandidateSampler, ScoreReader
from selfverify.clients.openai_client import REFUSALS, OpenAIClient, ServerConfig, server_url
from selfverify.clients.replies import Completion, Usage, soft_score
from selfverify.core import event_loop
from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.core.images import image_part
from selfverify.core.problem import BETWEEN, Problem, content_parts, openai_messages
from selfverify.core.trajectory import OBSERVATION, TOKENS, Finish, SampleIndex, Segment
from selfverify.policy.decoding import derived_seed
from selfverify.rollouts.sampler import ContextFull, Encoded, SampledTurn
from selfverify.rollouts.script_sampler import TextSampler
from selfverify.tasks.tool_calls import read_calls, read_json


class ServerMessages:
    """The messages so far, with calls and results of tools as servers know them.

    Args:
        problem: The problem of the conversation; the model is offered its tools.

    Raises:
        DataError: The problem has more or fewer places than images.
    """

    def __init__(self, problem: Problem) -> None:
        self.messages = openai_messages(problem)
        self.tools = problem.tools
        self._named: list[str] = []
        """The ids of the calls in the last message."""
        self._before = [*self.messages], self._named
        """Both as they were before something was shown last."""

    def copy(self) -> ServerMessages:
        """Return the same messages, to which others are added."""
        found = copy(self)
        found.messages = [*self.messages]
        return found

    def undo(self) -> None:
        """Go back to before something was shown last."""
        messages, self._named = self._before
        self.messages = [*messages]

    def body(self) -> dict[str, Any]:
        """The fields of a request that say what the model reads."""
        # An empty list of tools is refused by some servers.
        return {"messages": [*self.messages], **({"tools": self.tools} if self.tools else {})}

    def hear(self, reply: Observation) -> None:
        """Add what the episode shows, images between texts as it shows them.

        Behind calls, images follow in a message of the user: those of tools hold text.
        """
        self._before = [*self.messages], self._named
        parts = content_parts(reply.content)
        words = "\n".join(part["text"] for part in parts if part["type"] == "text")
        for name in self._named:
            self.messages.append({"role": "tool", "tool_call_id": name, "content": words})
        left = iter(reply.images)
        told: list[dict[str, Any]] = []
        for part in parts:
            if part["type"] == "image":
                told.append(image_part(next(left)))
            elif not self._named and told and told[-1]["type"] == "text":
                told[-1]["text"] += "\n" + part["text"]
            elif not self._named:
                told.append({"type": "text", "text": part["text"]})
        if told or not self._named:
            self._told(told or [{"type": "text", "text": ""}])
        self._named = []

    def _told(self, parts: list[dict[str, Any]]) -> None:
        """Go on with the user's message: many chat templates refuse two in a row.

        Servers put nothing between two texts of a message, or one line break.
        """
        if self.messages[-1]["role"] == "user":
            *before, last = content_parts(self.messages.pop()["content"])
            if last["type"] == "text" and parts[0]["type"] == "text":
                last["text"] += BETWEEN + parts.pop(0)["text"]
            parts = [*before, last, *parts]
        alone = len(parts) == 1 and parts[0]["type"] == "text"  # which templates without parts read, too
        self.messages.append({"role": "user", "content": parts[0]["text"] if alone else parts})

    def said(self, text: str, calls: Sequence[Any], finish: Finish) -> PolicyTurn:
        """Add what the model says.

        Args:
            text: Its words.
            calls: OpenAI's ``tool_calls`` of its message, which are its text's end to us.
            finish: How it ended.
        """
        if not calls:
            self.messages.append({"role": "assistant", "content": text})
            return PolicyTurn(text, [], finish, 0)
        self.messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        self._named = [str(call.get("id", "")) for call in calls if isinstance(call, Mapping)]
        read = _read(calls)
        shown = read.get("tool_calls", calls)
        written = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in shown)
        return PolicyTurn("\n".join(part for part in (text, written) if part), [], finish, 0, message=read)

    def recall(self, text: str, turn: int) -> None:
        """Take a turn as the model's own that somebody else has said."""
        read = read_calls(PolicyTurn(text, [], Finish.STOP, turn), self.tools)
        words, tag, _ = text.partition("<tool_call>")
        if not read.calls or not tag:
            self.messages.append({"role": "assistant", "content": text})
            return
        self._named = [f"turn-{turn}-call-{number}" for number in range(len(read.calls))]
        calls = [
            {
                "id": name,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for name, call in zip(self._named, read.calls, strict=True)
        ]
        self.messages.append({"role": "assistant", "content": words.strip(), "tool_calls": calls})


def _read(calls: Sequence[Any]) -> dict[str, Any]:
    """A server's ``tool_calls`` as `PolicyTurn.message` has them: their arguments are JSON in a text."""
    found = []
    try:
        for call in calls:
            name, arguments = call["function"]["name"], call["function"].get("arguments")
            if arguments is None or isinstance(arguments, str):
                arguments = read_json((arguments or "").strip() or "{}")
            found.append({"name": name, "arguments": arguments})
    except ValueError as error:
        return {"error": f"its arguments are no JSON: {error}"[:300]}
    except (AttributeError, KeyError, TypeError):
        return {"error": f"it names no function: {call!r}"[:300]}
    return {"tool_calls": found}


_FULL = re.compile(r"context.?(length|size|window)", re.IGNORECASE)
"""Codes by which servers refuse a conversation that is longer than their model reads: OpenAI's code is
``context_length_exceeded``, llama.cpp's ``exceed_context_size_error``."""

_LARGEST_SEED = 2**31 - 1
"""Of requests: some servers hold seeds in 32 bits."""


class ServerSampler(TextSampler):
    """Asks a server for all that the model says, in as few requests as the server allows.

    Conversations of a group that are alike so far are asked for together. A server that refuses to go on with
    a conversation ends it: at its model's context as a policy does, else without a verdict. A request that
    fails otherwise, or the first one of a conversation that is refused, is an outage: conversations in which
    something was said go on, and no other one begins.

    Args:
        server: Where the server is.
        fields: The requests' fields but messages, tools and seed: model, temperature, ``max_tokens``.
        at_once: The most requests that wait for the server at the same time. So many groups are begun, where
            the rollout's limits do not say how many conversations.
        logprobs: Whether log-probabilities are asked for.
        read_scores: Whether expected scores are read from probabilities, where the server shows any.
        thinks: Whether an answer begins with a tag ``think``. Where the server has taken the thoughts out of
            the message they are put back: the task reads them.
        seeded: Whether requests have seeds; some servers ignore them.
        usage: Counts what the calls cost.
        cancelled: Whether the conversations are wanted no more; asked before each request.

    Raises:
        ConfigError: The address is none.
    """

    def __init__(
        self,
        server: ServerConfig,
        fields: Mapping[str, Any],
        *,
        at_once: int = 32,
        logprobs: bool = False,
        read_scores: bool = False,
        thinks: bool = False,
        seeded: bool = True,
        usage: Usage | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        server_url(server.url)
        super().__init__({})
        self.server, self.fields, self.at_once = replace(server, connections=at_once), fields, at_once
        self.logprobs, self.read_scores, self.thinks, self.seeded = logprobs, read_scores, thinks, seeded
        self.usage, self.cancelled = usage or Usage(), cancelled
        self._faults: dict[str, ServerError] = {}
        """By problem why the server has failed."""
        self._messages: dict[SampleIndex, ServerMessages] = {}
        self._last: dict[SampleIndex, tuple[list[dict[str, Any]], Completion]] = {}
        """The last turns, each with the messages that it answers."""

    @property
    def outage(self) -> ServerError | None:
        """The error that names the problems on which the server has failed; None while it works."""
        if not self._faults:
            return None
        error = next(iter(self._faults.values()))
        first, *others = sorted(self._faults, key=lambda name: (len(name), name))
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        text = f"the server failed on {', '.join([first, *others[:3]])}{more}: {error.message}"
        return replace(error, message=text)

    @contextmanager
    def session(
        self, problems: Sequence[Problem], seeds: Sequence[int], group_size: int, limits: RolloutLimits
    ) -> Iterator[None]:
        self._problems, self._seeds = problems, seeds
        self._room = asyncio.Semaphore(self.server.connections)
        self._asked: list[Future[Any]] = []
        self._client = OpenAIClient(self.server)
        event_loop.start(self._client.__aenter__()).result()
        try:
            self._candidates, reader = CandidateSampler(self._client), ScoreReader(self._client)
            model = str(self.fields.get("model"))
            reads = self.read_scores and reader.can_read(model, self.usage, math.inf)
            # Alternatives for every token are most of what a server would send; a reader does without.
            self._reader = reader if reads and event_loop.start(reads).result() else None
            yield
        finally:
            for future in self._asked:
                future.cancel()
            event_loop.start(self._client.__aexit__()).result()
            self._messages.clear()
            self._last.clear()

    def open(self, indices: Sequence[SampleIndex]) -> None:
        """Begin conversations with their problems' messages.

        Raises:
            DataError: A problem has more or fewer places than images.
        """
        for b, group in groupby(indices, key=lambda index: index[0]):
            opened = ServerMessages(self._problems[b])  # a problem's images are encoded once for its group
            self._messages |= {index: opened.copy() for index in group}

    def observe(
        self, shown: Mapping[SampleIndex, Observation | None]
    ) -> Mapping[SampleIndex, Encoded | DataError | None]:
        for index, observation in shown.items():
            if observation is not None:
                self._messages[index].hear(observation)
        return super().observe(shown)

    def undo(self, indices: Sequence[SampleIndex]) -> None:
        for index in indices:
            self._messages[index].undo()

    def say(
        self, turns: Mapping[SampleIndex, int]
    ) -> Mapping[tuple[SampleIndex, ...], Future[Mapping[SampleIndex, SampledTurn]]]:
        found: dict[tuple[SampleIndex, ...], Future[Mapping[SampleIndex, SampledTurn]]] = {}
        for indices, asked in self._alike(turns):
            future = event_loop.start(self._say(indices, turns[indices[0]], asked))
            self._asked.append(future)
            found[tuple(indices)] = future
        return found

    def _alike(self, turns: Mapping[SampleIndex, int]) -> list[tuple[list[SampleIndex], dict[str, Any]]]:
        """Conversations that stand side by side in their group and are alike so far, with what is asked."""
        found: list[tuple[list[SampleIndex], dict[str, Any]]] = []
        for index in sorted(turns):
            asked = self._messages[index].body()
            if found:
                indices, before = found[-1]
                b, g = indices[-1]
                # Servers raise a request's seed by each candidate's number.
                if index == (b, g + 1) and turns[index] == turns[b, g] and asked == before:
                    indices.append(index)
                    continue
            found.append(([index], asked))
        return found

    async def _say(
        self, indices: Sequence[SampleIndex], turn: int, asked: dict[str, Any]
    ) -> Mapping[SampleIndex, SampledTurn]:
        async with self._room:
            if self.outage is not None and not turn:
                raise self.outage
            try:
                if self.cancelled():
                    raise ServerError("the caller has cancelled this conversation", 504, "timeout")
                replies = await self._draw(indices, turn, asked)
            except ServerError as error:
                if turn and error.status in REFUSALS:
                    if _FULL.search(f"{error.code} {error.message}"):
                        raise ContextFull("the context of the server's model") from error
                    raise DataError(f"the server refuses to go on: {error}") from error
                self._faults.setdefault(self._problems[indices[0][0]].id, error)
                raise
        return {index: self._sampled(index, reply) for index, reply in zip(indices, replies, strict=True)}

    async def _draw(
        self, indices: Sequence[SampleIndex], turn: int, asked: dict[str, Any]
    ) -> list[Completion]:
        (b, first), count = indices[0], len(indices)
        body = {**self.fields, **asked}
        if self.seeded:
            own = derived_seed(self._seeds[b], turn) if turn else self._seeds[b]
            body["seed"] = (own + first) % _LARGEST_SEED

        async def draw(more: dict[str, Any]) -> list[Completion]:
            found: list[Completion] = []
            fault = await self._candidates.draw(body | more, count, found.append, self.usage)
            if len(found) < count:
                raise fault or ServerError(
                    f"the server gave {len(found)} of {count} answers", 502, "bad_reply", retry=True
                )
            return found

        if not self.logprobs:
            return await draw({})
        alternatives = self.read_scores and self._reader is None
        found = await self._client.with_logprobs(str(body.get("model")), draw, alternatives)
        _refuse_chosen(found)
        return found

    def _sampled(self, index: SampleIndex, reply: Completion) -> SampledTurn:
        """Keep what the model says, without log-probabilities where the tokens' texts are not the turn's."""
        talk, text = self._messages[index], reply.text
        if self.thinks and reply.thoughts and "<think" not in text:
            text = f"<think>{reply.thoughts}</think>{text}"
        self._last[index] = [*talk.messages], reply
        said = talk.said(text, reply.tool_calls, finish_of(reply))
        pieces = [str(entry.get("token", "")) for entry in reply.logprobs]
        values = [entry.get("logprob") for entry in reply.logprobs]
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        if len(numbers) < len(values) or not "".join(pieces).startswith(said.text):
            pieces, numbers = [], []
        segment = Segment(OBSERVATION, [], numbers, said.text, finish=said.finish)
        segment.values = {TOKENS: float(reply.tokens)}
        return SampledTurn(said, segment, [*accumulate(map(len, pieces))])

    def close(self, indices: Sequence[SampleIndex]) -> Mapping[SampleIndex, Future[float | None]]:
        found = {}
        for index in indices:
            self._messages.pop(index, None)
            last = self._last.pop(index, None)
            if self.read_scores and last is not None:
                found[index] = event_loop.start(self._soft(*last))
                self._asked.append(found[index])
        return found

    async def _soft(self, asked: list[dict[str, Any]], reply: Completion) -> float | None:
        """The expected score behind the last words; None where the server does not say."""
        found = soft_score(reply.logprobs)
        if found is None and self._reader is not None:
            body = {"model": self.fields.get("model"), "messages": asked}
            found = await self._reader.read(body, reply, self.usage, math.inf)
        return found


def finish_of(reply: Completion) -> Finish:
    """How a server's reply has ended. What a fault has broken off says nothing about the model."""
    if reply.ending == "broken_off":
        return Finish.ERROR
    return Finish.STOP if reply.ending == "whole" else Finish.LENGTH


def _refuse_chosen(found: Sequence[Completion]) -> None:
    """Refuse answers that a gateway has chosen: figures of single answers would be those of best-of-N."""
    for reply in found:
        about = reply.head.get("best_of")
        if isinstance(about, Mapping) and about.get("samples_used", 0) > len(found):
            raise ConfigError(
                "the server chooses among several answers, and single ones are measured: name the model "
                "NAME@plain"
            )


def stored(error: ServerError) -> ServerError:
    """The error of a rollout whose finished groups were stored (``on_group``)."""
    text = f"{error.message}; what is finished is stored, and the same call goes on"
    return replace(error, message=text)
