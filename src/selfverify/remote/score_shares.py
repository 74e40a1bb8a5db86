"""The probabilities that a server shows of a score's tokens, and the expected score under them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from selfverify.core.score_tokens import decimals_of, score_texts
from selfverify.core.tags import SCORE_TAG

OPENING = f"<{SCORE_TAG}>"
_DIGITS = frozenset("0123456789")


class ScoreShares:
    """Of beginnings of the scores of so many decimals: what may follow them, with which probability.

    What is no score counts for nothing: the alternatives that begin or go on a score share the probability. A
    0 without decimals is a score. `policy.scores.read_scores` reads a policy's scores so, too.

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
            found, token = self._alternatives(entry, prefix), str(entry.get("token", ""))
            if not sum(found.values()) > 0:
                return
            self._next[prefix] = found
            prefix += token
            if token not in found or len(self._values(prefix)) == 1:
                return

    def unknown(self, least: float) -> list[str]:
        """Return the beginnings, each as long as it is certain, of which nobody knows how they go on.

        Args:
            least: The least probability of a beginning that is worth knowing.
        """
        found, rest = dict[str, None](), [("", 1.0)]
        while rest:
            prefix, share = rest.pop()
            shown = self._shown(prefix)
            if shown is not None:
                total = sum(self._next[shown].values())
                rest += [(shown + t, share * p / total) for t, p in self._next[shown].items()]
            elif share >= least and len(self._values(prefix)) > 1:
                found[self._certain(prefix)] = None
        return list(found)

    def expectation(self, prefix: str = "") -> float:
        """Return the expected score. What is unknown counts as the mean of the scores that it can become."""
        shown = self._shown(prefix)
        if shown is None:
            values = self._values(prefix)
            return sum(values) / len(values)
        options = self._next[shown]
        total = sum(options.values())
        return sum(share / total * self.expectation(shown + token) for token, share in options.items())

    def _shown(self, prefix: str) -> str | None:
        """Return the beginning of which it is known what follows ``prefix``; None if that is unknown."""
        return next((p for p in (prefix, self._certain(prefix)) if p in self._next), None)

    def _alternatives(self, entry: Mapping[str, Any], prefix: str) -> dict[str, float]:
        """Return the probabilities of those alternatives of a token that begin or continue a score."""
        found: dict[str, float] = {}
        for token, share in _options(entry):
            if self._texts(prefix + token):
                found[token] = found.get(token, 0.0) + share
        return found

    def _texts(self, prefix: str) -> list[str]:
        """Return the scores that begin with ``prefix``; the one before a ``<``, where a tag closes it."""
        begun, closed, _ = prefix.partition("<")
        begins = [text for text in self._every if begun and text.startswith(begun)]
        if not closed:
            return begins
        return [] if begun.endswith(".") else [t for t in begins if not t[len(begun) :].strip(".0")]

    def _values(self, prefix: str) -> list[float]:
        return [float(text) for text in self._texts(prefix)]

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
    text, start = "", None
    for place, entry in enumerate(logprobs):
        text += str(entry.get("token", ""))
        if text[-len(OPENING) :].lower() == OPENING:
            start = place + 1
    if start is None:
        return None
    written = "".join(str(entry.get("token", "")) for entry in logprobs[start:])
    shares = ScoreShares(decimals_of(written.partition("<")[0]))
    shares.follow(logprobs[start:])
    return shares.expectation() if shares else None


def begins_number(logprobs: Sequence[Mapping[str, Any]]) -> float:
    """Return the probability that the first token begins a number, as far as alternatives are shown."""
    return sum(share for token, share in _options(logprobs[0]) if token[0] in _DIGITS) if logprobs else 0.0


def _options(entry: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The alternatives of a token with their probabilities, as far as they can be read."""
    options = entry.get("top_logprobs")
    for option in options if isinstance(options, list) else ():
        token, value = (option.get("token"), option.get("logprob")) if isinstance(option, Mapping) else (0, 0)
        if isinstance(token, str) and token and isinstance(value, (int, float)):
            yield token, math.exp(min(float(value), 0.0))
