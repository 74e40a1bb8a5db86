"""What a chat completion says: its answer, the score its writer gave, and what of it a reader is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from selfverify.core.score_tree import SCORE_TEXTS, ScoreTree
from selfverify.core.tags import SCORE_TAG, parse_score, parse_tagged
from selfverify.selection.candidates import Candidate
from selfverify.selection.free_answers import Kind, read_answer

OPENING, CLOSING = f"<{SCORE_TAG}>", f"</{SCORE_TAG}>"


@dataclass(slots=True)
class Completion(Candidate):
    """A candidate that came as a chat completion. ``tokens`` is an estimate where the server does not say.

    Args:
        finish: OpenAI's ``finish_reason``; ``error`` where a fault cut the completion off.
        logprobs: OpenAI's ``logprobs.content``: one entry per token; empty where there are none.
        tool_calls: OpenAI's ``tool_calls``, as the server gave them.
        rest: The message's other fields, such as ``refusal`` or ``reasoning_content``.
        about: The choice's other fields, such as ``stop_reason``.
        head: The reply's other fields, such as ``service_tier``.
    """

    finish: str = "stop"
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)


class Reading(NamedTuple):
    """What a text says.

    Args:
        answer: The answer as a JSON value; None if it cannot be read.
        key: Equal for equivalent answers; None for boxes and unreadable answers.
        score: The score that the writer gave the answer; None without one, or with a malformed one.
    """

    answer: Any = None
    key: str | None = None
    score: float | None = None


Reader = Callable[[str], Reading]
"""Reads a finished text."""


def read_text(text: str, kind: Kind = "text", strict: bool = False) -> Reading:
    """Read a completion, in tags or not. Never raises.

    A text with an ``<answer>`` tag anywhere has to be well formed, as in training. In a text without one, as
    a model writes it that was never taught the format, everything before the score except a leading
    ``<think>`` block is the answer; with ``strict`` such a text is unreadable.
    """
    bare = not strict and "<think" not in text  # some servers keep the thoughts to themselves
    tagged = parse_tagged(text, ("answer", SCORE_TAG) if bare else ("think", "answer", SCORE_TAG))
    if tagged.answer_ok:
        return Reading(*read_answer(tagged.fields["answer"], kind), tagged.score)
    if strict or "<answer" in text or "</answer" in text:
        return Reading()
    shown = without_score(text)
    said = shown.partition("</think>")[2] if shown.startswith("<think>") else shown
    answer, key = read_answer(said, kind)
    return Reading(answer, key, last_score(text) if answer is not None else None)


def without_score(text: str) -> str:
    """Return the text before its last ``<score>``."""
    head, opened, _ = text.rpartition(OPENING)
    return (head if opened else text).strip()


def last_score(text: str) -> float | None:
    """Return the score that a text ends with; None if there is none or it is malformed."""
    _, opened, rest = text.rpartition(OPENING)
    written, closed, after = rest.partition(CLOSING)
    return parse_score(written) if opened and closed and not after.strip() else None


def text_of(content: Any) -> str:
    """Return the text of a message's content, which is one text or a list of parts."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    return "".join(text for text in texts if isinstance(text, str))


def read_tool_calls(calls: Sequence[Mapping[str, Any]]) -> tuple[Any, str | None]:
    """Return tool calls as an answer and its key, equal for the same tools with the same arguments."""
    found = []
    for call in calls:
        custom = call.get("custom")
        if isinstance(custom, Mapping) and isinstance(custom.get("name"), str):
            found.append({"name": custom["name"], "input": custom.get("input")})
            continue
        function = call.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            return None, None
        arguments: Any = function.get("arguments") or "{}"
        try:
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            return None, None
        found.append({"name": function["name"], "arguments": arguments})
    return found, json.dumps(found, sort_keys=True)


def finish_reading(reply: Completion, read: Reader) -> float | None:
    """Fill in the answer, key and log-probability of a completion that is whole.

    Returns:
        The score that the writer gave the answer, if any.
    """
    if reply.logprob is None:
        reply.logprob = mean_logprob(reply.logprobs)
    if reply.tool_calls:
        reply.answer, reply.key = read_tool_calls(reply.tool_calls)
        return read(reply.text).score
    reading = read(reply.text)
    if reply.finish != "error":
        reply.answer, reply.key = reading.answer, reading.key
    return reading.score


def mean_logprob(logprobs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean log-probability of the tokens; None unless every token has one."""
    values = [entry.get("logprob") for entry in logprobs]
    if not values or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
        return None
    return float(sum(values)) / len(values)  # type: ignore[arg-type]


def soft_score(logprobs: Sequence[Mapping[str, Any]]) -> float | None:
    """The expected score from the alternatives (``top_logprobs``) at the tokens behind the last ``<score>``.

    At each written token, the alternatives that begin or go on one of the scores 0.0, 0.1, ..., 1.0 share the
    probability. The server shows no alternatives behind a token that was not written: it counts as the mean
    of the scores that it can still become.

    Returns:
        None where no score was opened at a token's end, or there are no alternatives.
    """
    tokens = [str(entry.get("token", "")) for entry in logprobs]
    text, start = "", None
    for place, token in enumerate(tokens):
        text += token
        if text.endswith(OPENING):
            start = place + 1
    if start is None:
        return None
    tree, shares, path = ScoreTree[str](), dict[tuple[str, ...], dict[str, float]](), tuple[str, ...]()
    for token, entry in zip(tokens[start:], logprobs[start:], strict=True):
        found = _alternatives(entry, "".join(path))
        total = sum(found.values())
        if not total > 0:
            break
        shares[path] = {token: share / total for token, share in found.items()}
        path = (*path, token)
        if token not in found or len(_values("".join(path))) == 1:
            break
    for path, found in shares.items():
        for token in found:
            for value in _values("".join((*path, token))) if (*path, token) not in shares else ():
                tree.add((*path, token, str(value)), value)
    return tree.expectation(shares) if shares else None


def _alternatives(entry: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Return the probabilities of those alternatives of a token that begin or continue a score."""
    found: dict[str, float] = {}
    options = entry.get("top_logprobs")
    for option in options if isinstance(options, list) else ():
        token, value = (option.get("token"), option.get("logprob")) if isinstance(option, Mapping) else (0, 0)
        if isinstance(token, str) and isinstance(value, (int, float)) and _values(prefix + token):
            found[token] = found.get(token, 0.0) + math.exp(min(float(value), 0.0))
    return found


def _values(prefix: str) -> list[float]:
    """Return the scores that begin with ``prefix``, without what follows a ``<`` in it."""
    prefix = prefix.split("<")[0]
    return [float(text) for text in SCORE_TEXTS if prefix and text.startswith(prefix)]
