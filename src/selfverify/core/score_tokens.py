"""Scores as trees of the tokens that write them: the expected score, and what each token of one is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Branches = Mapping[tuple[int, ...], Mapping[int, float]]
"""The probability of each next token, by the tokens that lead to a branching of the tree."""


def score_texts(decimals: int) -> tuple[str, ...]:
    """Return all scores of so many decimals as they are written, from 0 to 1."""
    steps = 10**decimals
    return tuple(f"{value / steps:.{decimals}f}" for value in range(steps + 1))


SCORE_TEXTS = score_texts(1)
MOST_DECIMALS = 2
"""Scores with more decimals are read as if they had so many."""


def decimals_of(written: str) -> int:
    """Return the decimals of a score, from 1 to `MOST_DECIMALS`; ``0`` and ``1`` count as having one."""
    return min(max(len(written.strip().partition(".")[2]), 1), MOST_DECIMALS)


@dataclass(slots=True)
class ScoreTree:
    """The tokens of all score texts as a tree. A leaf holds its score."""

    children: dict[int, ScoreTree] = field(default_factory=dict)
    value: float | None = None

    def add(self, tokens: Iterable[int], value: float) -> None:
        """Let the score ``value`` be written as ``tokens``."""
        node = self
        for token in tokens:
            node = node.children.setdefault(token, ScoreTree())
        node.value = value

    def branchings(self, path: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], ScoreTree]]:
        """Return all nodes with several children, each with the tokens that lead to it."""
        own = [(path, self)] if len(self.children) > 1 else []
        return own + [b for token, child in self.children.items() for b in child.branchings((*path, token))]

    def paths(self) -> list[tuple[int, ...]]:
        """Return the tokens that lead to branchings, without paths that are the beginning of a longer one."""
        found = [path for path, _ in self.branchings()]
        return [p for p in found if not any(q != p and q[: len(p)] == p for q in found)]

    def _weights(self, probabilities: Branches, path: tuple[int, ...]) -> Mapping[int, float]:
        """Return this node's distribution over its children; uniform if none is given."""
        return probabilities.get(path) or dict.fromkeys(self.children, 1.0 / len(self.children))

    def expectation(
        self, probabilities: Branches, worth: Mapping[float, float] | None = None, path: tuple[int, ...] = ()
    ) -> float:
        """Return the expected score below this node, or the expected ``worth`` of the score.

        Args:
            probabilities: The distribution of each branching over its children; a branching without one is
                taken as uniform.
            worth: A value for each score, instead of the score itself.
            path: The tokens that lead to this node.
        """
        if self.value is not None and not self.children:
            return self.value if worth is None else worth[self.value]
        below = {t: c.expectation(probabilities, worth, (*path, t)) for t, c in self.children.items()}
        weights = self._weights(probabilities, path)
        return sum(weights[token] * value for token, value in below.items())

    def most_likely(self, probabilities: Branches, path: tuple[int, ...] = ()) -> float:
        """Return the score that greedy decoding writes if it can write nothing but scores."""
        if not self.children:
            return float(self.value or 0.0)
        weights = self._weights(probabilities, path)
        token = max(weights, key=lambda t: weights[t])
        return self.children[token].most_likely(probabilities, (*path, token))

    def leaves(
        self, probabilities: Branches, path: tuple[int, ...] = (), mass: float = 1.0
    ) -> dict[float, float]:
        """Return the probability of every score."""
        if not self.children:
            return {float(self.value or 0.0): mass}
        weights = self._weights(probabilities, path)
        found: dict[float, float] = {}
        for token, child in self.children.items():
            for value, share in child.leaves(probabilities, (*path, token), mass * weights[token]).items():
                found[value] = found.get(value, 0.0) + share
        return found


@dataclass(frozen=True, slots=True)
class ScoreReading:
    """One answer's distribution over the score texts, token by token."""

    tree: ScoreTree
    probabilities: Branches

    @property
    def greedy(self) -> float:
        """The score that greedy decoding writes."""
        return self.tree.most_likely(self.probabilities)

    @property
    def soft(self) -> float:
        """The expected score."""
        return self.tree.expectation(self.probabilities)

    def distribution(self) -> dict[float, float]:
        """Return the probability of every score, in order from 0.0 to 1.0."""
        return dict(sorted(self.tree.leaves(self.probabilities).items()))

    def choices(self, written: Sequence[int], worth: Mapping[float, float]) -> list[TokenChoice]:
        """Return the branchings that a written score came through, and what each branch there is worth.

        A branch is worth the expected ``worth`` of the scores below it, less that of the branching. Tokens
        are followed as long as they begin one of 0.0, 0.1, ..., 1.0. So of a "0.85" that was written "0",
        ".", "85" only the first token counts, and of a score with a space before it none.

        Args:
            written: The tokens behind ``<score>``.
            worth: The worth of each score.
        """
        found = []
        for path, node in self.tree.branchings():
            place = len(path)
            if tuple(written[:place]) != path or not {*written[place : place + 1]} & node.children.keys():
                continue
            probability = self.probabilities[path]
            values = {
                t: child.expectation(self.probabilities, worth, (*path, t))
                for t, child in node.children.items()
            }
            mean = sum(probability[t] * value for t, value in values.items())
            advantage = [value - mean for value in values.values()]
            found.append(TokenChoice(place, list(values), [probability[t] for t in values], advantage))
        return found


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """The tokens that the policy could have written at one place, counted from the score's first token."""

    place: int
    tokens: list[int]
    probability: list[float]
    advantage: list[float]
