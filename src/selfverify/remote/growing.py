"""Completions out of what servers send: whole replies, and chunks from which they grow.

Unknown fields are kept as they came: those of a reply, of its choices and of their messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.remote.server_replies import Completion, text_of
from selfverify.remote.usage import Usage, estimated_tokens

_OWN_OF_REPLY = {"id", "object", "created", "model", "choices", "usage", "error", "dropped"}
_OWN_OF_CHOICE = {"index", "message", "delta", "finish_reason", "logprobs"}
_OWN_OF_MESSAGE = {"role", "content", "tool_calls"}

_IN_PIECES = {"name", "arguments", "input"}
"""Fields of a call that come in pieces; all others come whole."""


def read_choices(
    reply: Mapping[str, Any], usage: Usage, judge: bool = False, most: int | None = None
) -> list[Completion]:
    """Return the candidates of a whole reply, none longer than ``most`` tokens, and count what it cost."""
    found, head = [], _others(reply, _OWN_OF_REPLY)
    for choice in reply["choices"]:
        message = choice["message"]
        calls = message.get("tool_calls")
        candidate = Completion(
            text=text_of(message.get("content")),
            finish=str(choice.get("finish_reason") or "stop"),
            logprobs=_token_logprobs(choice),
            tool_calls=[call for call in calls or () if isinstance(call, dict)],
            rest=_others(message, _OWN_OF_MESSAGE),
            about=_others(choice, _OWN_OF_CHOICE),
            head=head,
        )
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


class Growing:
    """A candidate that comes in chunks."""

    def __init__(self) -> None:
        self.reply = Completion(finish="error")
        self._calls: dict[int, int] = {}

    def grow(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """Append what a chunk says of this candidate in its ``choice``."""
        reply = self.reply
        reply.head |= _others(chunk, _OWN_OF_REPLY)
        reply.about |= _others(choice, _OWN_OF_CHOICE)
        delta = choice.get("delta")
        if isinstance(delta, Mapping):
            self._grow_message(delta)
        reply.logprobs += _token_logprobs(choice)
        reply.tokens = max(reply.tokens, len(reply.logprobs))

    def _grow_message(self, delta: Mapping[str, Any]) -> None:
        reply = self.reply
        if text := text_of(delta.get("content")):
            reply.text += text
            reply.tokens += 1
        for name, value in _others(delta, _OWN_OF_MESSAGE).items():
            known = reply.rest.get(name)
            both = (isinstance(known, str) and isinstance(value, str)) or (
                isinstance(known, list) and isinstance(value, list)
            )
            reply.rest[name] = known + value if both else value
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping):
                self._grow_call(call)

    def _grow_call(self, part: Mapping[str, Any]) -> None:
        """Append a piece of a call to the call of its index; one with another id begins a new call."""
        calls, index = self.reply.tool_calls, part.get("index")
        number = index if isinstance(index, int) and index >= 0 else None
        place = self._calls.get(number, len(calls)) if number is not None else len(calls)
        if place < len(calls) and part.get("id") not in (None, "", calls[place].get("id")):
            place = len(calls)
        if place == len(calls):
            calls.append({})
        if number is not None:
            self._calls[number] = place
        _merge(calls[place], {name: value for name, value in part.items() if name != "index"})


def _merge(known: dict[str, Any], part: Mapping[str, Any]) -> None:
    for name, value in part.items():
        old = known.get(name)
        if isinstance(value, Mapping):
            inner = dict(old) if isinstance(old, Mapping) else {}
            _merge(inner, value)
            known[name] = inner
        elif name in _IN_PIECES and isinstance(old, str) and isinstance(value, str):
            known[name] = old if name == "name" and value == old else old + value
        elif value is not None or name not in known:
            known[name] = value


def _others(found: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    if found.keys() <= known:
        return {}
    return {name: value for name, value in found.items() if name not in known and value is not None}


def _token_logprobs(choice: Mapping[str, Any]) -> list[dict[str, Any]]:
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    return [entry for entry in content if isinstance(entry, dict)] if isinstance(content, list) else []
