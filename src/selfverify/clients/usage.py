"""The cost of requests: tokens by kind, of candidates and of verification."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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

    def take_in(self, other: Usage) -> None:
        """Count what was counted apart."""
        for name in other.details:
            self.details[name].update(other.details[name])
        for name in ("prompt_tokens", "candidate_tokens", "verification_tokens", "calls"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.complete &= other.complete

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
