"""The replies to clients: chat completions, their chunks and server-sent events.

An own model has written trajectories, which become completions here (`completion_of`). `OwnStream` has its
text in pieces while it writes, and `likeliest` the likeliest tokens in each place (``top_logprobs``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import torch
from aiohttp import web

from selfverify.clients.replies import Completion
from selfverify.core.trajectory import Trajectory
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.selection.rules import Candidate
from selfverify.serving.backend import AnswerRequest, Selected, Selection, reply_of, visible
from selfverify.serving.config import BestOfConfig
from selfverify.serving.schemas import json_bytes

REQUEST_ID = web.RequestKey("request_id", str)

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """A response of events. It begins with the first one, so that an early error can still set the status.

    Args:
        request: The request.
        stall_s: The seconds for which a client may stop reading.
    """

    def __init__(self, request: web.Request, stall_s: float) -> None:
        self._request = request
        self._stall_s = stall_s
        self._response = web.StreamResponse(headers=_HEADERS)
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    @property
    def begun(self) -> bool:
        """Whether an event was written."""
        return self._response.prepared

    def put_comment(self, text: str) -> None:
        """Queue a comment, which clients skip, for `follow` to write."""
        self._queue.put_nowait(f": {text}\n\n".encode())

    def put_event(self, data: dict[str, Any], name: str = "") -> None:
        """Queue an event for `follow` to write."""
        self._queue.put_nowait(_event(data, name))

    async def follow(self, task: asyncio.Task[Any], keep_alive_s: float) -> None:
        """Write what is queued until ``task`` is done, and a sign of life in every idle ``keep_alive_s``.

        Raises:
            ConnectionResetError: The client has left.
        """
        task.add_done_callback(lambda _: self._queue.put_nowait(None))
        while True:
            try:
                async with asyncio.timeout(keep_alive_s):
                    part = await self._queue.get()
            except TimeoutError:
                part = b": working\n\n"
            if part is None:
                return
            await self._write(part)

    async def event(self, data: dict[str, Any]) -> None:
        """Write an event."""
        await self._write(_event(data))

    async def done(self) -> None:
        """Write OpenAI's last event."""
        await self._write(b"data: [DONE]\n\n")

    async def end(self) -> web.StreamResponse:
        """End the stream and return the response."""
        await self._read_by_client(self._response.write_eof())
        return self._response

    async def _write(self, part: bytes) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
        await self._read_by_client(self._response.write(part))

    async def _read_by_client(self, writing: Awaitable[None]) -> None:
        """Wait for a client to read, but not for one that has stopped reading: it would keep its slot.

        Raises:
            ConnectionResetError: It has, and its connection is closed.
        """
        try:
            async with asyncio.timeout(self._stall_s):
                await writing
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from None


def _event(data: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return b"".join([head.encode(), b"data: ", json_bytes(data), b"\n\n"])


def verification(selected: Selected, outcome: Selection) -> dict[str, Any]:
    """Return how sure an answer is, and why it was chosen."""
    choice = selected.choice
    return {
        "score": choice.score,
        "verifier": outcome.verifier,
        "confidence": choice.confidence,
        "probability": selected.probability,
        "votes": choice.votes,
        "samples": len(outcome.candidates),
        "answer": choice.answer,
        "candidate": choice.index,
        "strategy": choice.strategy,
        "reason": choice.reason,
        "abstained": selected.abstained,
    }


def summary(ask: AnswerRequest, outcome: Selection) -> dict[str, Any]:
    """Return the figures of the whole request, with all candidates if they were asked for."""
    found: dict[str, Any] = {
        "strategy": ask.best_of.strategy,
        "verifier": outcome.verifier,
        "samples_used": len(outcome.candidates),
        "samples_missing": outcome.missing,
        "stopped": outcome.stopped,
        "calibrated": outcome.calibrated,
        "calls": ask.usage.calls,
        "usage_complete": ask.usage.complete,
    }
    if ask.best_of.samples:
        found["samples"] = [
            candidate_json(i, reply) | {"text": reply.text, "finish_reason": reply.finish}
            for i, reply in enumerate(outcome.candidates)
        ]
    return found


def candidate_json(index: int, candidate: Candidate) -> dict[str, Any]:
    """Return a candidate without its text. Equal answers have the same ``key``; boxes have none."""
    told = ("answer", "key", "score", "logprob", "tokens")
    return {"index": index, **{name: getattr(candidate, name) for name in told}}


def progress(stream: EventStream, settings: BestOfConfig, index: int, candidate: Completion) -> None:
    """Tell a stream of a candidate."""
    if settings.progress == "events":
        about = {name: candidate.about[name] for name in {"conversation"} & candidate.about.keys()}
        stream.put_event(candidate_json(index, candidate) | about | {"of": settings.n}, "candidate")
    else:
        score = "none" if candidate.score is None else f"{candidate.score:.3f}"
        stream.put_comment(f"candidate {index + 1} of {settings.n}, score {score}")


def message(selected: Selected, settings: BestOfConfig) -> dict[str, Any]:
    """Return the assistant's message. A withheld answer has a ``refusal`` instead of a content."""
    if selected.abstained:
        sure = selected.choice.confidence if selected.probability is None else selected.probability
        known = "unknown" if sure is None else f"{sure:.2f}"
        text = f"No answer is sure enough to be given (confidence {known})."
        return {
            "role": "assistant",
            "content": text if settings.refusal == "content" else None,
            "refusal": text,
        }
    found: dict[str, Any] = {"role": "assistant", "content": visible(selected, settings), "refusal": None}
    found |= selected.reply.rest
    if selected.reply.tool_calls:
        found["tool_calls"] = selected.reply.tool_calls
    if selected.reply.tool_calls or found["refusal"]:
        found["content"] = found["content"] or None
    return found


def logprobs(selected: Selected, settings: BestOfConfig) -> dict[str, Any] | None:
    """Return the log-probabilities of the returned text; None where that text is not one that a candidate
    wrote."""
    reply, text = selected.reply, visible(selected, settings)
    start = reply.text.find(text)
    if selected.abstained or start < 0 or (settings.content == "answer" and text != reply.text):
        return None
    place, found = 0, []
    for entry in reply.logprobs:
        token = str(entry.get("token", ""))
        if start < place + len(token) and place < start + len(text):
            found.append(entry)
        place += len(token)
    return {"content": found, "refusal": None}


def completion(head: dict[str, Any], ask: AnswerRequest, outcome: Selection) -> dict[str, Any]:
    """Return a chat completion; ``head`` holds its id, time and model.

    The server's other fields of the best answer, of its choice and of its reply are passed on.
    """
    with_logprobs = bool(ask.body.get("logprobs"))
    return {
        **outcome.selected[0].reply.head,
        **head,
        "object": "chat.completion",
        "choices": [
            {
                **chosen.reply.about,
                "index": i,
                "message": message(chosen, ask.best_of),
                "logprobs": logprobs(chosen, ask.best_of) if with_logprobs else None,
                "finish_reason": "stop" if chosen.abstained else chosen.reply.finish,
                "verification": verification(chosen, outcome),
            }
            for i, chosen in enumerate(outcome.selected)
        ],
        "usage": ask.usage.as_openai(sum(chosen.reply.tokens for chosen in outcome.selected)),
        "best_of": summary(ask, outcome),
    }


def piece_of(head: dict[str, Any], delta: dict[str, Any], usage: bool, index: int = 0) -> dict[str, Any]:
    """Return a chunk before an answer's end; ``head`` is that of `completion`."""
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    return _chunk(head, choice, usage)


def _chunk(head: dict[str, Any], choice: dict[str, Any], usage: bool) -> dict[str, Any]:
    chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
    return chunk | ({"usage": None} if usage else {})


def chunks(whole: dict[str, Any], include_usage: bool, sent: int = 0) -> Iterator[dict[str, Any]]:
    """Yield a completion in chunks: of each answer its role, its text, its end and verification.

    ``sent`` characters of the first answer, and its role, have been sent before.
    """
    head = {name: whole[name] for name in whole if name not in ("choices", "usage", "best_of")}
    for choice in whole["choices"]:
        index, said = choice["index"], choice["message"]
        rest = {k: v for k, v in said.items() if k not in ("role", "content", "refusal", "tool_calls")}
        calls = [{**call, "index": k} for k, call in enumerate(said.get("tool_calls", ()))]
        known = sent if index == 0 else 0
        text = (said["content"] or "")[known:]
        deltas = [
            {} if known else {"role": "assistant", "content": ""},
            rest,
            {"content": text} if text else {},
            {"refusal": said["refusal"]} if said["refusal"] else {},
            {"tool_calls": calls} if calls else {},
        ]
        for delta in filter(None, deltas):
            yield piece_of(head, delta, include_usage, index)
        last = {name: choice[name] for name in choice if name != "message"} | {"delta": {}}
        summed = {"best_of": whole["best_of"]} if choice is whole["choices"][-1] else {}
        yield _chunk(head, last, include_usage) | summed
    if include_usage:
        yield {**head, "object": "chat.completion.chunk", "choices": [], "usage": whole["usage"]}


Likeliest = list[list[tuple[int, float]]]
"""For each token of an answer the likeliest ids in its place with their log-probabilities, best first."""


@torch.no_grad()
def likeliest(
    policy: Policy, prompt: Prompt, answers: Sequence[Sequence[int]], most: int, temperature: float
) -> list[Likeliest]:
    """Return of each answer's tokens the ``most`` likeliest alternatives, found in one forward pass.

    They are under the temperature of the sampling, before top-p, as the log-probabilities of what was drawn
    are (`policy.decoding.TokenSampler.pick`).

    Args:
        policy: Wrote the answers.
        prompt: The prompt of the answers.
        answers: Their tokens.
        most: How many alternatives; fewer where the model knows fewer tokens.
        temperature: Divides the logits; 0 is read as 1.
    """
    if not most or not any(answers):
        return [[] for _ in answers]
    batch = policy.stack([[*answers]])
    [hidden_grh] = policy.hidden_states([prompt], batch)
    found: list[Likeliest] = []
    for states_rh, tokens in zip(hidden_grh, answers, strict=True):
        row: Likeliest = []
        for part in states_rh[: len(tokens)].split(policy.config.logprob_chunk):
            logprobs = (policy.head.logits(part).float() / (temperature or 1.0)).log_softmax(-1)
            values, ids = logprobs.topk(min(most, logprobs.shape[-1]))
            row += [list(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
        found.append(row)
    return found


def completion_of(
    policy: Policy,
    trajectory: Trajectory,
    likeliest: Likeliest,
    verifier: str,
    stops: Sequence[str] = (),
    with_logprobs: bool = False,
) -> Completion:
    """Return a trajectory's last turn as a chat completion: without its end token, cut at the first stop.

    Args:
        policy: Wrote it.
        trajectory: Ends with the turn.
        likeliest: The alternatives of its tokens; empty where they are not known.
        verifier: The name of the verifier.
        stops: Texts before which the answer ends.
        with_logprobs: Whether the log-probabilities of its tokens are wanted, of which it is the only turn.
    """
    reply = reply_of(trajectory, verifier)
    own = [segment for segment in trajectory.segments if segment.author == "policy"]
    tokens = [token for segment in own if segment.turn == own[-1].turn for token in segment.tokens]
    told = tokens[:-1] if reply.finish == "stop" else tokens
    reply.text = decoded(policy, told)
    places = [place for stop in stops if (place := reply.text.find(stop)) >= 0]
    if places:
        reply.text, reply.finish = reply.text[: min(places)], "stop"
    if with_logprobs:
        drawn, shown = zip(told, trajectory.logprobs, strict=False), likeliest or [[] for _ in told]
        reply.logprobs = [
            _entry(policy, token, value) | {"top_logprobs": [_entry(policy, *other) for other in others]}
            for (token, value), others in zip(drawn, shown, strict=False)
        ]
    return reply


def decoded(policy: Policy, tokens: Sequence[int]) -> str:
    """Return the text of tokens, special ones included."""
    text: str = policy.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def _entry(policy: Policy, token: int, logprob: float) -> dict[str, Any]:
    piece = decoded(policy, [token])
    return {"token": piece, "logprob": logprob, "bytes": list(piece.encode())}


class OwnStream:
    """Turns tokens into pieces of text, which together begin the text that `completion_of` makes of them.

    Text that may still change is held back: characters of which only some bytes are there, and text that may
    become a stop. So the last piece may be missing.

    Args:
        policy: Writes the tokens.
        stops: Texts before which the answer ends.
        put: Gets the pieces.
    """

    def __init__(self, policy: Policy, stops: Sequence[str], put: Callable[[str], object]) -> None:
        self._policy, self._ends, self._put = policy, policy.stop_tokens, put
        self._stops = stops
        self._held = max((len(stop) - 1 for stop in stops), default=0)
        self.sent = 0
        """Characters that were put."""
        self.restart()

    def restart(self) -> None:
        """Begin again with the same tokens; what was put is not put again."""
        self._tokens: list[int] = []
        self._text, self._read, self._context = "", 0, 0
        self._over = False

    def token(self, token: int) -> None:
        """Take in the next token."""
        if self._over or token in self._ends:
            return
        self._tokens.append(token)
        # A token's text depends on the one before it, as where it begins a word.
        before = decoded(self._policy, self._tokens[self._context : self._read])
        text = decoded(self._policy, self._tokens[self._context :])
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return
        self._text += text[len(before) :]
        self._context, self._read = self._read, len(self._tokens)
        places = [place for stop in self._stops if (place := self._text.find(stop)) >= 0]
        self._over = bool(places)
        end = min(places) if places else len(self._text) - self._held
        if end > self.sent:
            self._put(self._text[self.sent : end])
            self.sent = end
