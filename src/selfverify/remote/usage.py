"""What a request has cost, honestly: every token read and written for it, also those nobody gets to see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Usage:
    """Counted over all calls made for one request.

    Args:
        prompt_tokens: Read, once for each call that reads the prompt.
        candidate_tokens: Written for candidates, chosen or not.
        verification_tokens: Written by judges.
        cached_tokens: Of the prompt tokens those that the server says it had cached.
        calls: Made to the server (or batches of the own model that the request took part in).
        complete: False where a server did not say what a call cost (a broken stream, a lost reply); what is
            known of it is estimated then.
    """

    prompt_tokens: int = 0
    candidate_tokens: int = 0
    verification_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    complete: bool = True

    def add(self, usage: Any, estimate: int, judge: bool = False) -> int:
        """Count one call by its ``usage`` object; ``estimate`` stands for tokens written where there is none.

        Returns:
            The tokens written.
        """
        self.calls += 1
        found = usage if isinstance(usage, Mapping) else {}
        written = _count(found, "completion_tokens")
        if written is None:
            self.complete = False
            written = estimate
        self.prompt_tokens += _count(found, "prompt_tokens") or 0
        details = found.get("prompt_tokens_details")
        self.cached_tokens += _count(details, "cached_tokens") or 0 if isinstance(details, Mapping) else 0
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
        """OpenAI's ``usage`` object; ``chosen_tokens`` are those of the candidates that are returned."""
        completion = self.candidate_tokens + self.verification_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "candidate_tokens": self.candidate_tokens,
                "verification_tokens": self.verification_tokens,
                "chosen_tokens": chosen_tokens,
            },
        }


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def estimated_tokens(text: str) -> int:
    """For servers that do not count: four bytes a token."""
    return max(1, len(text.encode()) // 4) if text else 0
