"""What a chat completion says: the candidate it is, its score, and what of it is shown to a reader."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfverify.rollouts.tags import SCORE_TAG, parse_score, parse_tagged
from selfverify.selection.answers import Kind, read_answer
from selfverify.selection.candidates import Candidate

OPENING, CLOSING = f"<{SCORE_TAG}>", f"</{SCORE_TAG}>"
SCORE_TEXTS = tuple(f"{value / 10:.1f}" for value in range(11))


@dataclass(slots=True)
class Reply:
    """One sampled completion.

    Args:
        text: Everything that was written.
        finish: OpenAI's ``finish_reason``; ``error`` where it was cut off by a fault.
        tokens: Tokens written; an estimate where the server does not say.
        logprobs: OpenAI's ``logprobs.content``: one entry per token; empty where there are none.
        tool_calls: As the server gave them.
        rest: What else the message has, such as ``refusal`` or ``reasoning_content``.
        scores: By verifier.
        logprob: Mean log-probability of the answer's tokens, where that is known without ``logprobs``.
        reading: What `read_reply` found in it.
    """

    text: str
    finish: str = "stop"
    tokens: int = 0
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    logprob: float | None = None
    reading: Reading | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found in a completion.

    Args:
        answer: As a JSON value; None if it cannot be read.
        key: Equal for equivalent answers; None for boxes and unreadable answers.
        score: What the writer says of its own answer; None where it does not, or malformed.
        visible: The text without its score.
    """

    answer: Any
    key: str | None
    score: float | None
    visible: str


def read_text(text: str, kind: Kind = "text", strict: bool = False) -> Reading:
    """Read a completion, in tags or not. Never raises.

    With an ``<answer>`` tag anywhere, it has to be well formed, as in training. Without one (a model that was
    never taught the format) everything before the score, but for a ``<think>`` block at the beginning, is the
    answer; ``strict`` takes that for unreadable too.
    """
    bare = not strict and "<think" not in text  # some servers keep the thoughts to themselves
    tagged = parse_tagged(text, ("answer", SCORE_TAG) if bare else ("think", "answer", SCORE_TAG))
    head, opened, _ = text.rpartition(OPENING)
    visible = (head if opened else text).strip()
    if tagged.answer_ok:
        return Reading(*read_answer(tagged.fields["answer"], kind), tagged.score, visible)
    if strict or "<answer" in text or "</answer" in text:
        return Reading(None, None, None, visible)
    said = visible.partition("</think>")[2] if visible.startswith("<think>") else visible
    answer, key = read_answer(said, kind)
    return Reading(answer, key, last_score(text) if answer is not None else None, visible)


def last_score(text: str) -> float | None:
    """The score that a text ends with; None where it does not, or that is malformed."""
    _, opened, rest = text.rpartition(OPENING)
    written, closed, after = rest.partition(CLOSING)
    return parse_score(written) if opened and closed and not after.strip() else None


def read_tool_calls(calls: Sequence[Mapping[str, Any]]) -> tuple[Any, str | None]:
    """Calls of tools as an answer and its key: the same functions with the same arguments are one answer."""
    found = []
    for call in calls:
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


def read_reply(reply: Reply, kind: Kind = "text", strict: bool = False) -> Reading:
    """`read_text` of a finished reply, once: a request never asks for two kinds."""
    if reply.reading is None:
        reply.reading = read_text(reply.text, kind, strict)
    return reply.reading


def candidate_of(reply: Reply, verifier: str, kind: Kind = "text", strict: bool = False) -> Candidate:
    """A completion as a candidate, with the score that ``verifier`` gave it."""
    if reply.tool_calls:
        answer, key = read_tool_calls(reply.tool_calls)
    elif reply.finish == "error":
        answer, key = None, None
    else:
        reading = read_reply(reply, kind, strict)
        answer, key = reading.answer, reading.key
    logprob = mean_logprob(reply.logprobs) if reply.logprob is None else reply.logprob
    return Candidate(answer, key, reply.scores.get(verifier), logprob, reply.tokens, reply.text)


def mean_logprob(logprobs: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean log-probability of the tokens, where every one has it."""
    values = [entry.get("logprob") for entry in logprobs]
    if not values or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
        return None
    return float(sum(values)) / len(values)  # type: ignore[arg-type]


def soft_score(logprobs: Sequence[Mapping[str, Any]]) -> float | None:
    """The expected score from the alternatives (``top_logprobs``) at the tokens behind the last ``<score>``.

    As `ScoreTree.expectation`, on texts instead of token ids: at each written token, the alternatives that
    begin or go on one of the scores 0.0, 0.1, ..., 1.0 share the probability; what was not written has no
    alternatives further down and counts as the mean of the scores that it can still become.

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
    return _expected(logprobs[start:], "")


def _expected(entries: Sequence[Mapping[str, Any]], prefix: str) -> float | None:
    """Expected score given that ``prefix`` was written; None where the next token tells nothing."""
    if not entries:
        return None
    shares: dict[str, float] = {}
    options = entries[0].get("top_logprobs")
    for option in options if isinstance(options, list) else ():
        if not isinstance(option, Mapping):
            continue
        token, value = option.get("token"), option.get("logprob")
        if isinstance(token, str) and isinstance(value, (int, float)) and _values(prefix + token):
            shares[token] = shares.get(token, 0.0) + math.exp(min(float(value), 0.0))
    total = sum(shares.values())
    if not total > 0:
        return None
    written, expectation = str(entries[0].get("token", "")), 0.0
    for token, share in shares.items():
        values = _values(prefix + token)
        worth = sum(values) / len(values)
        if token == written and len(values) > 1:
            deeper = _expected(entries[1:], prefix + token)
            worth = worth if deeper is None else deeper
        expectation += share / total * worth
    return expectation


def _values(prefix: str) -> list[float]:
    """The scores that a text can still become, or has become with something behind it."""
    prefix = prefix.split("<")[0]
    return [float(text) for text in SCORE_TEXTS if prefix and text.startswith(prefix)]
