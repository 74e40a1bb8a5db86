"""Reads chat completions: the answer, its writer's score, what of it a reader is shown, and its cost.

A score is read as it was written, or as the expectation under the probabilities that a server shows of its
tokens (`soft_score`).
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, takewhile
from statistics import fmean
from typing import Any, Literal, NamedTuple

from pydantic_core import PydanticSerializationError, from_json, to_json

from selfverify.core.score_tokens import decimals_of, score_texts
from selfverify.core.tags import SCORE_TAG, channel_lengths, parse_score, parse_tagged
from selfverify.selection.rules import Candidate, Kind, read_answer

logger = logging.getLogger(__name__)

OPENING = f"<{SCORE_TAG}>"
CLOSING = f"</{SCORE_TAG}>"

Ending = Literal["whole", "cut_off", "broken_off", "withheld"]
"""How a message ended: by itself, by a limit, by a fault or a user of the server, or since somebody does not
want it read."""

_REASONS: dict[Ending, str] = {
    "whole": "stop eos eos_token end_turn stop_sequence stop_token complete completed done end finished"
    " normal tool_calls function_call tool_use tool_call",
    "cut_off": "length max_tokens max_output_tokens max_length model_length model_context_window_exceeded"
    " context_length_exceeded error_limit repetition malformed_function_call",
    "broken_off": "error abort aborted cancelled canceled user_cancel timeout network_error"
    " insufficient_system_resource",
    "withheld": "content_filter content_filtered safety image_safety refusal recitation sensitive blocklist"
    " prohibited_content spii guardrail_intervened error_toxic",
}


def _letters(reason: str) -> str:
    """A finish reason without what servers write differently: ``FinishReason.MAX_TOKENS``, ``maxTokens``."""
    return re.sub(r"[^a-z]", "", reason.lower()).removeprefix("finishreason")


_ENDINGS = {_letters(reason): ending for ending, reasons in _REASONS.items() for reason in reasons.split()}

_PARTS = ("think", "answer", SCORE_TAG, "tool_call")
"""Tags of which a whole text closes as many as it opens."""


def ending(finish: str, text: str, calls: Sequence[Mapping[str, Any]] = ()) -> Ending:
    """Return what a server's finish reason says of a message.

    One that we do not know is logged once, and its message is whole if it looks so: its calls can be read, or
    its text ends with a mark and has closed its tags.
    """
    known = _ENDINGS.get(_letters(finish))
    if known is not None:
        return known
    _log_unknown(finish)
    if calls:
        return "whole" if read_tool_calls(calls)[0] is not None else "cut_off"
    closed = all(text.count(_tag(part)) <= text.count(_tag(part, closing=True)) for part in _PARTS)
    marked = re.search(r"[^\w\s,;:(\[{<-]\s*\Z", text)
    return "whole" if closed and marked else "cut_off"


@cache
def _log_unknown(finish: str) -> None:
    logger.warning("a server ends messages with %r, which is not known here", finish[:80])


def usable_choices(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return those choices of a completion that have a message, and no error in its place.

    No content is a call, a refusal, or thoughts that were cut off: asking again would not help.
    """
    choices = reply.get("choices")
    return [choice for choice in choices if _is_usable(choice)] if isinstance(choices, list) else []


def _is_usable(choice: Any) -> bool:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict) or choice.get("finish_reason") == "error":
        return False
    return isinstance(message.get("content"), str | list | None)


class ScoreShares:
    """Of beginnings of the scores of so many decimals: what may follow them, with which probability.

    A text that is no score counts for nothing: the alternatives that begin or go on a score share the
    probability. A 0 without decimals is a score. `policy.scores.read_scores` reads a policy's scores so, too.

    Args:
        decimals: 1 for 0.0, 0.1, ..., 1.0, and 2 for 0.00, 0.01, ..., 1.00.
    """

    def __init__(self, decimals: int = 1) -> None:
        self._every = score_texts(decimals)
        self._next: dict[str, dict[str, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._next)

    def follow(self, logprobs: Sequence[Mapping[str, Any]], prefix: str = "") -> None:
        """Take in tokens that were written behind the beginning ``prefix``, each with its alternatives.

        Args:
            logprobs: Entries of OpenAI's ``logprobs.content``.
            prefix: Empty where they are the score's first tokens.
        """
        for entry in logprobs:
            found = {token: share for token, share in _options(entry) if self._texts(prefix + token)}
            if not sum(found.values()) > 0:
                return
            self._next[prefix] = found
            token = str(entry.get("token", ""))
            prefix += token
            if token not in found or len(self._texts(prefix)) == 1:
                return

    def unknown(self, least: float) -> list[str]:
        """Return the beginnings, each as long as it is certain, whose continuations are unknown.

        Args:
            least: The least probability of a beginning that is worth knowing.
        """
        open_ones = [p for p, share in self._ends() if share >= least and len(self._texts(p)) > 1]
        return list(dict.fromkeys(map(self._certain, open_ones)))

    def expectation(self) -> float:
        """Return the expected score. An unknown one counts as the mean of the scores that it can become."""
        return sum(share * fmean(map(float, self._texts(prefix))) for prefix, share in self._ends())

    def _ends(self, prefix: str = "", share: float = 1.0) -> list[tuple[str, float]]:
        """Return the beginnings of which it is not known what follows, with their probabilities."""
        known = next((p for p in (prefix, self._certain(prefix)) if p in self._next), None)
        if known is None:
            return [(prefix, share)]
        options = self._next[known].items()
        whole = sum(part for _, part in options)
        return [end for token, part in options for end in self._ends(known + token, share * part / whole)]

    def _texts(self, prefix: str) -> list[str]:
        """Return the scores that begin with ``prefix``; the one before a ``<``, where a tag closes it."""
        begun, closed, _ = prefix.partition("<")
        begins = [text for text in self._every if begun and text.startswith(begun)]
        if not closed:
            return begins
        return [] if begun.endswith(".") else [t for t in begins if not t[len(begun) :].strip(".0")]

    def _certain(self, prefix: str) -> str:
        """Return ``prefix`` with what every score goes on with that begins so: a point behind 0."""
        columns = takewhile(lambda column: len(set(column)) == 1, zip(*self._texts(prefix), strict=False))
        return "".join(column[0] for column in columns) or prefix


def soft_score(logprobs: Sequence[Mapping[str, Any]]) -> float | None:
    """The expected score from the alternatives (``top_logprobs``) at the tokens behind the last ``<score>``.

    The server shows no alternatives behind a token that was not written: it counts as the mean of the scores
    that it can still become.

    Scores of one or two decimals are read in as many as were written.

    Returns:
        None where no score was opened at a token's end, or there are no alternatives.
    """
    before, written = _before_score(logprobs)
    if written is None or "".join(_tokens(logprobs[before:])) != written:
        return None
    shares = ScoreShares(decimals_of(written.partition("<")[0]))
    shares.follow(logprobs[before:])
    return shares.expectation() if shares else None


def begins_number(logprobs: Sequence[Mapping[str, Any]]) -> float:
    """Return the probability that the first token begins a number, as far as alternatives are shown."""
    options = _options(logprobs[0]) if logprobs else ()
    return sum(share for token, share in options if token[0] in "0123456789")


def _options(entry: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The alternatives of a token with their probabilities, as far as they can be read."""
    options = entry.get("top_logprobs")
    for option in options if isinstance(options, list) else ():
        token, value = (option.get("token"), option.get("logprob")) if isinstance(option, Mapping) else (0, 0)
        if isinstance(token, str) and token and isinstance(value, (int, float)):
            yield token, math.exp(min(float(value), 0.0))


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

    @property
    def ending(self) -> Ending:
        """How it ended."""
        return ending(self.finish, self.text, self.tool_calls)

    @property
    def thoughts(self) -> str:
        """The thoughts that the server has taken out of the text."""
        found = self.rest.get("reasoning_content") or self.rest.get("reasoning")
        return mended(found) if isinstance(found, str) else ""


class Reading(NamedTuple):
    """The parts of a reply's text.

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


def mended(text: str) -> str:
    """Return a text with the halves of surrogate pairs joined; U+FFFD stands for one that is alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def encoded(body: Mapping[str, Any]) -> bytes:
    """Return an object as JSON. Halves of surrogate pairs, which are no text, become question marks."""
    try:
        return to_json(body)  # for a body with an image in a tenth of `json.dumps`'s time
    except PydanticSerializationError:
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def decoded(raw: str | bytes, piece: bool = False) -> Any:
    """Return the value of JSON, in which U+FFFD stands for halves of surrogate pairs.

    Args:
        raw: The JSON.
        piece: Whether it is one of several, so that the other half may come in the next one: they stay.

    Raises:
        ValueError: It is none.
    """
    try:
        return from_json(raw)
    except ValueError as error:
        try:
            found = json.loads(raw)  # which takes halves
            return found if piece else json.loads(mended(json.dumps(found, ensure_ascii=False)))
        except (ValueError, RecursionError):
            raise error from None


def text_of(content: Any) -> str:
    """Return the text of a message's content, which is one text or a list of parts; thoughts are none."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = [part if isinstance(part, Mapping) else {"text": part} for part in content]
    texts = [part.get("text") for part in parts if part.get("type", "text") in ("text", "output_text")]
    return "".join(text for text in texts if isinstance(text, str))


def calls_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message's tool calls; the ``function_call`` of OpenAI's first protocol is one."""
    calls, old = message.get("tool_calls") or [], message.get("function_call")
    if isinstance(old, Mapping) and not calls:
        calls = [{"type": "function", "function": old}]
    calls = calls if isinstance(calls, list) else [calls]
    return [call for call in calls if isinstance(call, dict)]


def called(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the ``name`` of the function, or custom tool, of a tool call, and its arguments."""
    found = call.get("function") or call.get("custom")
    return found if isinstance(found, Mapping) else {}


def read_tool_calls(calls: Sequence[Mapping[str, Any]]) -> tuple[Any, str | None]:
    """Return tool calls as an answer and its key, equal for the same tools with the same arguments."""
    found = []
    for call in map(called, calls):
        name, arguments = call.get("name"), call.get("arguments") or "{}"
        if not isinstance(name, str):
            return None, None
        if "input" in call:
            found.append({"name": name, "input": call["input"]})
            continue
        try:
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            return None, None
        found.append({"name": name, "arguments": arguments})
    return found, json.dumps(found, sort_keys=True)


def finish_reading(reply: Completion, read: Reader) -> float | None:
    """Fill in the answer, key and log-probability of a completion that is whole.

    Returns:
        The score that the writer gave the answer, if any.
    """
    if reply.logprob is None and reply.logprobs:
        reply.logprob = mean_logprob(reply.logprobs[: _before_score(reply.logprobs)[0]])
    if reply.tool_calls:
        reply.answer, reply.key = read_tool_calls(reply.tool_calls)
        return read(reply.text).score
    reading = read(reply.text)
    if reply.finish != "error":
        reply.answer, reply.key = reading.answer, reading.key
    return reading.score


def _before_score(logprobs: Sequence[Mapping[str, Any]]) -> tuple[int, str | None]:
    """Return how many tokens come before those of the score, and the text behind the last ``<score>``; all
    tokens and None where no score is opened."""
    tokens = _tokens(logprobs)
    head, opened, written = at_score("".join(tokens))
    boundary = len(head) + len(opened) if opened else None
    return channel_lengths(list(accumulate(map(len, tokens))), boundary), written if opened else None


def _tokens(logprobs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(entry.get("token", "")) for entry in logprobs]


def mean_logprob(logprobs: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean log-probability of the tokens; None unless every token has one."""
    values = [entry.get("logprob") for entry in logprobs]
    if not values or not all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
        return None
    return float(sum(values)) / len(values)  # type: ignore[arg-type]


MOST_TOKENS = 2**31
"""The most tokens that a request may ask for, and that a server is believed to have counted in one call."""

_PROMPT, _COMPLETION = "prompt_tokens_details", "completion_tokens_details"


@dataclass(slots=True)
class Usage:
    """The cost of all calls that were made for one request.

    Every token counts that was read or written for it, shown to the client or not.

    Args:
        prompt_tokens: Tokens read; the prompt counts once for each call that reads it.
        candidate_tokens: Tokens written for candidates, chosen or not.
        verification_tokens: Tokens written by judges.
        calls: Calls of the server, or batches of an own model that the request took part in.
        details: Further counts of servers, such as ``reasoning_tokens``, by the name of their object.
        complete: False if the cost of some call is unknown (a broken stream, a lost reply) and estimated.
    """

    prompt_tokens: int = 0
    candidate_tokens: int = 0
    verification_tokens: int = 0
    calls: int = 0
    details: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    complete: bool = True

    @property
    def cached_tokens(self) -> int:
        """The prompt tokens that the server says it had cached."""
        return self.details[_PROMPT]["cached_tokens"]

    def add(self, usage: Any, estimate: int, judge: bool = False) -> int:
        """Count one call by its ``usage`` object, or by estimates where it has none.

        Args:
            usage: OpenAI's object, if there is one.
            estimate: Tokens written.
            judge: Whether a judge wrote them.

        Returns:
            The number of tokens written.
        """
        self.calls += 1
        found = _counts(usage)
        self.complete &= "completion_tokens" in found
        written = found.get("completion_tokens", estimate)
        self.prompt_tokens += found.get("prompt_tokens", 0)
        for name in (_PROMPT, _COMPLETION):
            self.details[name].update(_counts(usage.get(name)) if isinstance(usage, Mapping) else {})
        if judge:
            self.verification_tokens += written
        else:
            self.candidate_tokens += written
        return written

    def lost(self, written: int = 0) -> None:
        """Count a call whose cost will never be known."""
        self.calls += 1
        self.complete = False
        self.candidate_tokens += written

    def as_openai(self, chosen_tokens: int) -> dict[str, Any]:
        """Return OpenAI's ``usage`` object; ``chosen_tokens`` counts the candidates that are returned."""
        completion = self.candidate_tokens + self.verification_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            _PROMPT: {**self.details[_PROMPT], "cached_tokens": self.cached_tokens},
            _COMPLETION: {
                **self.details[_COMPLETION],
                "candidate_tokens": self.candidate_tokens,
                "verification_tokens": self.verification_tokens,
                "chosen_tokens": chosen_tokens,
            },
        }


def _counts(usage: Any) -> dict[str, int]:
    """Return the fields of an object that are numbers of tokens."""
    found = usage.items() if isinstance(usage, Mapping) else ()
    return {name: value for name, value in found if type(value) is int and 0 <= value <= MOST_TOKENS}


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text, four bytes each, for servers that do not count."""
    return max(1, len(text.encode()) // 4) if text else 0
