"""What a chat completion says: its answer, the score its writer gave, and what of it a reader is shown."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from selfverify.core.tags import SCORE_TAG, parse_score, parse_tagged
from selfverify.remote.score_shares import OPENING
from selfverify.selection.rules import Candidate, Kind, read_answer

CLOSING = f"</{SCORE_TAG}>"


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
    ``<think>`` block is the answer. Tags may be in any letter case. With ``strict`` tags have to be there, as
    they are in training.
    """
    text = text if strict else small_tags(text)
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
    head, opened, _ = at_score(text)
    return (head if opened else text).strip()


def at_score(text: str) -> tuple[str, str, str]:
    """Return the text before its last ``<score>``, in any letter case, that tag, and the text behind it.

    Without the tag both are empty, as with ``str.rpartition``.
    """
    head, opened, _ = small_tags(text).rpartition(OPENING)
    start, end = len(head), len(head) + len(opened)
    return text[:start], text[start:end], text[end:]


def small_tags(text: str) -> str:
    """Return the text with its tags in small letters, each where it was."""
    return _ANY_CASE.sub(lambda found: found[0].lower(), text)


def shown_answer(text: str) -> str:
    """Return what a reader wants of a completion: the answer without thoughts, score and tags. Never raises.

    A text without tags is the answer. Of one that was cut off inside its answer that much is shown, without
    the tag that it was cut off in, and nothing of one that was cut off inside its thoughts. Tags may be
    in any letter case.
    """
    text = small_tags(text)
    if not any(tag in text for tag in _TAGS):
        return text.strip()  # what looks like a tag that was cut off is the answer's, such as b<a
    shown = without_score(text)
    _, thought, after = shown.rpartition(_tag("think", closing=True))
    shown = after if thought else shown.partition(_tag("think"))[0]
    _, opened, inside = shown.rpartition(_tag("answer"))
    inside, closed, _ = inside.partition(_tag("answer", closing=True))
    shown = inside if opened else shown
    for tag in _TAGS:
        shown = shown.replace(tag, "")
    return (shown if opened and closed else _CUT_TAG.sub("", shown)).strip()


def _tag(name: str, closing: bool = False) -> str:
    return f"</{name}>" if closing else f"<{name}>"


_ANY_CASE = re.compile(f"</?(?:think|answer|{SCORE_TAG})>", re.IGNORECASE | re.ASCII)
_TAGS = [_tag(name, closing) for name in ("think", "answer", SCORE_TAG) for closing in (False, True)]
_CUT_TAG = re.compile(
    "(?:" + "|".join(re.escape(tag[:n]) for tag in _TAGS for n in range(2, len(tag))) + r")\Z",
    re.IGNORECASE | re.ASCII,
)
"""A tag at the end of a text whose last characters did not come any more."""


def last_score(text: str) -> float | None:
    """Return the score that a text ends with; None if there is none or it is malformed."""
    _, opened, rest = small_tags(text).rpartition(OPENING)
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
    if reply.logprob is None and reply.logprobs:
        reply.logprob = mean_logprob(reply.logprobs[: _answer_tokens(reply.logprobs)])
    if reply.tool_calls:
        reply.answer, reply.key = read_tool_calls(reply.tool_calls)
        return read(reply.text).score
    reading = read(reply.text)
    if reply.finish != "error":
        reply.answer, reply.key = reading.answer, reading.key
    return reading.score


def _answer_tokens(logprobs: Sequence[Mapping[str, Any]]) -> int:
    """Return how many tokens come before those of the score, which is opened last."""
    ends = list(accumulate(len(str(entry.get("token", ""))) for entry in logprobs))
    head, opened, _ = at_score("".join(str(entry.get("token", "")) for entry in logprobs))
    return bisect_left(ends, len(head) + len(OPENING)) + 1 if opened else len(logprobs)


def mean_logprob(logprobs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean log-probability of the tokens; None unless every token has one."""
    values = [entry.get("logprob") for entry in logprobs]
    if not values or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
        return None
    return float(sum(values)) / len(values)  # type: ignore[arg-type]
