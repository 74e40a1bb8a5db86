"""Candidates of a model server, the scores that they give themselves, and those that a judge gives.

`CandidateSampler` draws the candidates, `ScoreReader` reads the score that each has written, and `rate` asks
a model behind a server as judge. Unknown fields of a server's reply are kept as they came: the other
fields of a reply, of its choices and of their messages.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from selfverify.clients.openai_client import REFUSALS, TOP_LOGPROBS, OpenAIClient
from selfverify.clients.replies import (
    OPENING,
    Completion,
    ScoreShares,
    Usage,
    at_score,
    begins_number,
    called,
    calls_of,
    estimated_tokens,
    last_score,
    mended,
    read_tool_calls,
    soft_score,
    text_of,
    usable_choices,
)
from selfverify.core.errors import ServerError
from selfverify.core.score_tokens import decimals_of
from selfverify.core.tags import RATE, parse_score

Deliver = Callable[[Completion], None]
"""Gets each candidate when it is there."""

_OWN_OF_REPLY = {"id", "object", "created", "model", "choices", "usage", "error"}
_OWN_OF_CHOICE = {"index", "message", "delta", "finish_reason", "logprobs"}
_OWN_OF_MESSAGE = {"role", "content", "tool_calls", "function_call"}


def read_choices(reply: Mapping[str, Any], usage: Usage, judge: bool = False) -> list[Completion]:
    """Return the candidates of a whole reply, and count what it cost."""
    found: list[Completion] = []
    for choice in usable_choices(reply):
        grown = Growing(found.append)
        grown.grow(reply, choice)
        grown.end()
    share(found, usage.add(reply.get("usage"), sum(each.tokens for each in found), judge))
    return found


def share(candidates: Sequence[Completion], written: int) -> None:
    """Divide a reply's ``written`` tokens among its candidates, in proportion to their estimated lengths."""
    estimates = [candidate.tokens for candidate in candidates]
    total = max(sum(estimates), 1)
    ends = [(2 * written * sum(estimates[:i]) + total) // (2 * total) for i in range(len(estimates) + 1)]
    for candidate, before, until in zip(candidates, ends, ends[1:], strict=False):
        candidate.tokens = until - before


class Growing:
    """A candidate that grows from the chunks in which it comes; a whole reply is one chunk.

    Args:
        deliver: Gets the candidate once it is finished.
    """

    def __init__(self, deliver: Deliver) -> None:
        self.reply, self.over = Completion(finish=""), False
        self._deliver = deliver
        self._calls: dict[Any, int] = {}

    def grow(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """Append what a chunk says of this candidate in its ``choice``."""
        if self.over:
            return
        reply, delta = self.reply, choice.get("delta") or choice.get("message")
        reply.head |= _others(chunk, _OWN_OF_REPLY)
        reply.about |= _others(choice, _OWN_OF_CHOICE)
        if isinstance(delta, Mapping):
            text = text_of(delta.get("content"))
            reply.text += text
            reply.tokens += bool(text)
            for name, value in _others(delta, _OWN_OF_MESSAGE).items():
                reply.rest[name] = _joined(reply.rest.get(name), value)
            for call in calls_of(delta):
                self._grow_call(call)
        logprobs = choice.get("logprobs")
        content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        if isinstance(content, list):
            reply.logprobs += [entry for entry in content if isinstance(entry, dict)]
        finish = str(choice.get("finish_reason") or "")
        reply.finish = "" if finish.lower() in ("null", "none") else finish  # as some write nothing
        if reply.finish:
            self.end()

    def end(self) -> None:
        """Finish a candidate, unless that was done; without a reason it counts as whole if it has text."""
        if self.over:
            return
        reply, self.over = self.reply, True
        reply.text = mended(reply.text)  # halves of a pair come in two pieces
        for number, call in enumerate(reply.tool_calls):
            # An answer to a call names it; some servers give no ids, others take only nine characters.
            call["id"] = call.get("id") or f"call{number:05d}"
        reply.finish = reply.finish or ("stop" if reply.text or reply.tool_calls else "length")
        reply.tokens = len(reply.logprobs) or max(reply.tokens, estimated_tokens(reply.text), 1)
        self._deliver(reply)

    def _grow_call(self, piece: Mapping[str, Any]) -> None:
        """Append a piece to the call of its index, or without an index to the last one.

        A function's name begins a new call where it comes with another id, or without one behind arguments,
        unless it is repeated before these are whole. An id alone does not: some give each piece its own.
        """
        calls, number = self.reply.tool_calls, piece.get("index")
        told = isinstance(number, int | str)
        place = self._calls.get(number, len(calls)) if told else max(len(calls) - 1, 0)
        if place < len(calls) and (begun := called(piece).get("name")):
            known, name = calls[place], piece.get("id")
            again = begun == called(known).get("name") and not read_tool_calls([known])[0]
            if not again and (name != known.get("id") if name else called(known).get("arguments")):
                place = len(calls)
        if place == len(calls):
            calls.append({})
        if told:
            self._calls[number] = place
        _merge(calls[place], {name: value for name, value in piece.items() if name != "index"})


def _merge(known: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Append a piece of a call: its name and arguments come in pieces, all else whole."""
    for name, value in piece.items():
        old = known.get(name)
        if isinstance(value, Mapping):
            known[name] = inner = dict(old) if isinstance(old, Mapping) else {}
            _merge(inner, value)
        elif name in ("name", "arguments", "input"):
            known[name] = old if name == "name" and value == old else _joined(old, value)
        elif not old or (value is not None and name != "id"):
            known[name] = value


def _joined(old: Any, value: Any) -> Any:
    """Return a field of which another piece has come: texts and lists go on, all else is replaced."""
    texts = isinstance(old, str) and isinstance(value, str)
    if texts or (isinstance(old, list) and isinstance(value, list)):
        return old + value
    return old if value is None else value


def _others(found: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in known and value is not None}


Mode = Literal["n", "stream"]
"""How candidates are asked for: all in one reply (``n``), or all in one stream (``stream``), in which each
arrives as soon as it is finished."""

_ODD_REPLIES = 2
"""The replies in a row with one candidate that are no accident. A refusal counts as so many."""


def _seeded(body: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the request whose first candidate has this number: a ``seed`` is raised by it."""
    return dict(body) if body.get("seed") is None else {**body, "seed": body["seed"] + number}


class CandidateSampler:
    """Draws N candidates: by the server's ``n``, in one stream, or in N requests if it knows no ``n``.

    It remembers the models that give only one candidate per request.
    """

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self._odd = Counter[str]()
        """By model, the replies in a row that ignored ``n``."""

    async def draw(
        self,
        body: Mapping[str, Any],
        n: int,
        deliver: Deliver,
        usage: Usage,
        mode: Mode = "n",
        first: int = 0,
        until: float = math.inf,
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
        got, fault, model = list[Completion](), None, str(body.get("model"))

        def keep(reply: Completion) -> None:
            got.append(reply)
            deliver(reply)

        ask = partial(self._at_once, body, keep, usage, until)
        if n > 1 and self._odd[model] < _ODD_REPLIES:
            if mode == "stream":
                fault = await self._streamed(body, keep, usage, until, first, n)
            if mode == "n" or (fault and not got and fault.code in ("cut_off", "bad_reply")):
                fault = await ask(first, n)
            if fault and not got:
                if fault.status not in REFUSALS:
                    raise fault
                # If one alone is given, several were refused for ``n``.
                if other := await ask(first, 1):
                    raise fault if other.status in REFUSALS else other
                # Some servers refuse only greedy candidates, which would all be the same.
                if body.get("temperature") != 0:
                    self._odd[model] = _ODD_REPLIES
        if len(got) < n and (fault is None or fault.retry or fault.status in REFUSALS):
            singly = [ask(number, 1) for number in range(first + len(got), first + n)]
            fault = next(filter(None, await asyncio.gather(*singly)), None)
        if fault and not got:
            raise fault
        return fault if len(got) < n else None

    async def _at_once(
        self, body: Mapping[str, Any], deliver: Deliver, usage: Usage, until: float, first: int, n: int
    ) -> ServerError | None:
        """Ask for all candidates in one reply. Return the fault, if any."""
        asked = _seeded(body, first) | ({"n": n} if n > 1 else {})
        try:
            reply = await self.client.chat(asked, usage.lost, until)
        except ServerError as error:
            return error
        for found in read_choices(reply, usage)[:n]:
            deliver(found)
        if n > 1:
            self._saw(str(body.get("model")), len(reply["choices"]))
        return None

    async def _streamed(
        self, body: Mapping[str, Any], deliver: Deliver, usage: Usage, until: float, first: int, n: int
    ) -> ServerError | None:
        """Ask for all candidates in one stream, delivering each at its end. Return the fault, if any."""
        growing, counted, begun, fault = dict[int, Growing](), None, False, None
        options = {"n": n, "stream": True, "stream_options": {"include_usage": True}}
        stream = self.client.stream(_seeded(body, first) | options, usage.lost, until)
        try:
            async for chunk in stream:
                begun, counted = True, chunk.get("usage") or counted
                for choice in chunk.get("choices") or ():
                    index = choice["index"] if isinstance(choice.get("index"), int) else 0
                    if choice.get("finish_reason") == "error":
                        growing.pop(index, None)  # it is asked for again
                    elif 0 <= index < n:
                        growing.setdefault(index, Growing(deliver)).grow(chunk, choice)
            for grown in growing.values():
                grown.end()
        except ServerError as error:
            # Some servers just end after the last finish reason.
            if error.code != "cut_off" or not growing or not all(grown.over for grown in growing.values()):
                fault = error
        finally:
            await stream.aclose()
            replies = [grown.reply for grown in growing.values()]
            written = sum(reply.tokens for reply in replies)
            if counted is not None:
                share(replies, usage.add(counted, written))
            elif begun:
                usage.lost(written)
        if growing and (fault is None or len(growing) > 1):
            self._saw(str(body.get("model")), len(growing))
        return fault

    def _saw(self, model: str, candidates: int) -> None:
        """Remember how many candidates came in a reply to a request for several."""
        self._odd[model] = 0 if candidates > 1 else self._odd[model] + 1


_PROMPT = {"model", "messages", "tools", "chat_template", "chat_template_kwargs", "mm_processor_kwargs"}
"""The fields that decide what a model reads; the others say how it writes."""

_CONTINUE = {
    "continue_final_message": True,
    "add_generation_prompt": False,
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": TOP_LOGPROBS,
}

_PROBE = [
    {"role": "user", "content": "What colour is the sky by day?"},
    {"role": "assistant", "content": f"<think>It is blue.</think><answer>blue</answer>{OPENING}"},
]
"""A model that goes on from here writes a number, if it knows no scores of ours perhaps another one. One that
begins a turn of its own writes words."""

_SURE = 0.5
"""The probability of a number above which a model is believed to have gone on."""

_TOKENS = 3
"""Tokens of a score, at most, that say which one it is: a digit, the point, a digit."""

_WEIGHS = 0.001
"""The probability of a beginning of scores below which the server is not asked how they go on."""


_WEIGHS_OF_MANY = 0.1
"""The same among the beginnings 0.0, ..., 0.9 of two decimals: each left out moves a score by .045 of its
share at most."""


class ScoreReader:
    """Reads the score that a model gives its own answer, from the probabilities of the score's tokens.

    Alternatives for every token of a candidate are most of what a server would send. So candidates are drawn
    without them, and a short call continues each distinct one behind its ``<score>``. vLLM and SGLang
    continue the last message with ``continue_final_message``; whether a server does so is found out by
    trying. The models whose last message it does not continue are remembered.
    """

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self._able: dict[str, bool] = {}
        self._refused = Counter[str]()

    async def can_read(self, model: str, usage: Usage, until: float) -> bool:
        """Return whether the server continues messages of this model. The first call finds out.

        Args:
            model: The model's name on the server.
            usage: Counts what finding out costs.
            until: See `OpenAIClient.chat`.
        """
        if model not in self._able:
            written: Sequence[Mapping[str, Any]] = ()
            try:
                written = await self._go_on({"model": model, "messages": _PROBE}, 1, usage, until)
            except ServerError as error:
                if error.status not in REFUSALS:
                    return False  # it failed for another reason, and is asked again the next time
            self._able[model] = begins_number(written) > _SURE
        return self._able[model]

    async def read(
        self, body: Mapping[str, Any], reply: Completion, usage: Usage, until: float
    ) -> float | None:
        """Return the expected score of a candidate that has written one.

        Args:
            body: The request that the candidate answers.
            reply: The candidate.
            usage: Counts what the calls cost.
            until: See `OpenAIClient.chat`.

        Returns:
            None if the server does not say.
        """
        model = str(body["model"])
        head, opened, written = at_score(reply.text)
        decimals = decimals_of(written.partition("<")[0])
        shares = ScoreShares(decimals)
        if not opened:
            return None
        if reply.thoughts:  # what the score depends on cannot be sent back
            self._able[model] = False
            return None
        asked = {name: value for name, value in body.items() if name in _PROMPT}

        async def look(prefix: str, tokens: int) -> None:
            last = {"role": "assistant", "content": head + opened + prefix}
            question = asked | {"messages": [*body["messages"], last]}
            shares.follow(await self._go_on(question, tokens, usage, until), prefix)

        try:
            await look("", _TOKENS + decimals - 1)
            # One beginning was written, "1" or "0."; what follows the other one is not seen yet.
            for prefix in shares.unknown(_WEIGHS if decimals == 1 else _WEIGHS_OF_MANY):
                await look(prefix, 1)
        except ServerError as error:
            if error.status in REFUSALS:  # such as by a template that drops the thoughts of earlier turns
                self._refused[model] += 1
                self._able[model] = self._refused[model] < 2  # the first may be an accident
        return shares.expectation() if shares else None

    async def _go_on(
        self, asked: Mapping[str, Any], tokens: int, usage: Usage, until: float
    ) -> Sequence[Mapping[str, Any]]:
        """Let the server go on from the last message. Returns its tokens as OpenAI's ``logprobs.content``."""
        reply = await self.client.chat({**asked, **_CONTINUE, "max_tokens": tokens}, usage.lost, until)
        [found, *_] = read_choices(reply, usage, judge=True)
        return found.logprobs


logger = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, Any]]
"""A question in OpenAI's form."""

MAX_TOKENS = 64
"""A rating is a few tokens; models that go on are cut off."""

AT_ONCE = 32
"""The most ratings that wait for the server at the same time."""


async def rate(
    client: OpenAIClient, model: str, messages: Messages, answer: str, usage: Usage
) -> float | None:
    """Return the score that a judge gives an answer in a turn of its own; None where it wrote none.

    The score is the expectation over the score's tokens if the server shows their probabilities, and
    otherwise the number that the judge wrote at temperature 0.

    Args:
        client: The server's client.
        model: The judge's name on the server.
        messages: The question.
        answer: The answer, without a score of its own.
        usage: Counts what the call costs.

    Raises:
        ServerError: The server failed.
    """
    turns = [{"role": "assistant", "content": answer}, {"role": "user", "content": RATE}]
    body: dict[str, Any] = {"model": model, "messages": [*messages, *turns]}
    body |= {"max_tokens": MAX_TOKENS, "temperature": 0}
    reply = await client.with_logprobs(model, lambda more: client.chat(body | more, usage.lost))
    [written, *_] = read_choices(reply, usage, judge=True)
    found = soft_score(written.logprobs)
    found = last_score(written.text) if found is None else found
    return parse_score(written.text) if found is None else found


async def rate_all(
    client: OpenAIClient,
    model: str,
    asked: Sequence[tuple[str, Messages, str]],
    usage: Usage,
    strict: bool = False,
    at_once: int = AT_ONCE,
) -> list[float | None]:
    """Return the scores of answers as `rate` does; None also for an answer on which the server failed.

    Args:
        client: The server's client.
        model: The judge's name on the server.
        asked: Of each answer: its name in the log, its question, and itself.
        usage: Counts what the calls cost.
        strict: Whether an answer on which the server failed is an error, as where scores are measured.
        at_once: The most ratings that wait for the server at the same time.

    Raises:
        ServerError: The server failed on all answers, or, with ``strict``, on one.
    """
    room, faults = asyncio.Semaphore(at_once), dict[str, ServerError]()

    async def one(name: str, messages: Messages, answer: str) -> float | None:
        async with room:
            try:
                return await rate(client, model, messages, answer, usage)
            except ServerError as error:
                logger.warning("%s: the judge failed (%d, %s)", name, error.status, error.code)
                faults[name] = error
                return None

    scores = await asyncio.gather(*[one(*each) for each in asked])
    if faults and (strict or len(faults) == len(asked)):
        [(name, fault), *others] = faults.items()
        if not strict:
            raise fault
        more = f" and {len(others)} more" if others else ""
        text = f"the judge failed on {name}{more}: {fault}; the same call goes on"
        raise ServerError(text, fault.status, fault.code, fault.retry)
    return scores
