"""The strategies for choosing among candidates, and all that is said about them anywhere.

Evaluation, reports, `solve`, the gateway and the commands take names, words and functions from `STRATEGIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from selfverify.core.errors import ConfigError
from selfverify.selection.candidates import Candidates
from selfverify.selection.rules import (
    Floats,
    best_of_majority_weights,
    best_of_subsets,
    best_weights,
    elect,
    first_weights,
    oracle_of_subsets,
    oracle_weights,
    vote_weights,
)


@dataclass(frozen=True, slots=True)
class StrategyConfig:
    """Settings of the strategies.

    Args:
        temperature: Softmax temperature of the votes of ``weighted`` (`vote_weights`).
        share: The share of the candidates that an answer needs with ``best-of-majority``.
        iou: The overlap that a box must exceed to join a cluster.
    """

    temperature: float = 0.1
    share: float = 0.25
    iou: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature: a number above 0 is needed, not {self.temperature}")
        for name, value in (("share", self.share), ("iou", self.iou)):
            if not 0 <= value <= 1:
                raise ConfigError(f"{name}: a number between 0 and 1 is needed, not {value}")


DEFAULTS = StrategyConfig()


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to choose.

    Args:
        name: The name in commands, settings and requests.
        label: The name in charts.
        title: The name in tables; ``{n}`` stands for the number of candidates.
        meaning: A sentence that explains the strategy.
        reason: Says why a candidate was chosen. ``{score}`` stands for its score, ``{agreed}`` for how many
            candidates gave the same answer, ``{total}`` for the number of candidates.
        rule: The probability ``[..., N]`` that it picks each candidate, ties being random; None for a vote.
        votes: How much each candidate's vote counts ``[..., N]``, for a vote. Among boxes a vote answers with
            the consensus of the winning cluster; other strategies with one of the boxes.
        of_subsets: The ``rule`` averaged over all size-n subsets of G candidates ``[..., G]``, where there is
            a closed form.
        needs: What the strategy cannot do without: the verifier's scores, the truth, or nothing.
        confidence: What the confidence of a choice is: the candidate's score, the share of all candidates
            that gave its answer, or the sum of their scores over the number of all candidates.
    """

    name: str
    label: str
    title: str
    meaning: str
    reason: str
    rule: Callable[[Candidates, StrategyConfig], Floats] | None = None
    votes: Callable[[Candidates, StrategyConfig], Floats] | None = None
    of_subsets: Callable[[Candidates, int], Floats] | None = None
    needs: Literal["nothing", "score", "truth"] = "nothing"
    confidence: Literal["score", "agreement", "scored agreement"] = "score"

    def weigh(self, candidates: Candidates, options: StrategyConfig) -> Floats:
        """The probability ``[..., N]`` that it picks each candidate, ties being random."""
        if self.votes is not None:
            return elect(candidates.keys, self.votes(candidates, options))
        assert self.rule is not None
        return self.rule(candidates, options)

    @property
    def compares(self) -> bool:
        """Whether it asks which answers are the same."""
        return self.votes is not None or self.name == "best-of-majority"

    @property
    def figure(self) -> str:
        """The name of its accuracy in summaries, without the number of candidates."""
        return "pass@1" if self.name == "first" else self.name.replace("-", "_")

    def at(self, n: int | str) -> str:
        """The name of its accuracy with ``n`` candidates: ``majority@8``, but always ``pass@1``."""
        return self.figure if self.name == "first" else f"{self.figure}@{n}"


def _truth(candidates: Candidates) -> Floats:
    if candidates.correct is None:
        raise ConfigError("strategy oracle needs to know which candidates are right: it is for analysis only")
    return candidates.correct


_ALL = (
    Strategy(
        "first", "single answer", "Single answer (pass@1)", "Share of sampled answers that are right.",
        "the first of {total} candidates; {score}",
        rule=lambda c, o: first_weights(c.keys),
        of_subsets=lambda c, n: np.full(c.keys.shape, 1.0 / c.keys.shape[-1]),
    ),
    Strategy(
        "majority", "majority vote", "Majority vote of {n}",
        "The answer given most often, as a baseline without scores.", "most votes: {agreed}",
        votes=lambda c, o: np.ones(c.keys.shape),
        confidence="agreement",
    ),
    Strategy(
        "best", "own score", "Best of {n} by own score", "The answer that the model itself scores highest.",
        "highest {score}; {agreed}",
        rule=lambda c, o: best_weights(c.score),
        of_subsets=lambda c, n: best_of_subsets(c.score, n),
        needs="score",
    ),
    Strategy(
        "weighted", "vote by score", "Vote of {n} weighted by own score",
        "Every answer's vote counts softmax(score / 0.1).",
        "most weight by score: {agreed}; its best {score}",
        votes=lambda c, o: vote_weights(np.where(c.keys >= 0, c.score, np.nan), o.temperature),
        needs="score",
        confidence="scored agreement",
    ),
    Strategy(
        "best-of-majority", "best of frequent answers", "Best of {n} among frequent answers",
        "The highest score among answers a quarter of the samples gave.",
        "highest {score} among frequent answers; {agreed}",
        rule=lambda c, o: best_of_majority_weights(c.keys, c.score, o.share),
        needs="score",
    ),
    Strategy(
        "oracle", "perfect choice", "Perfect choice of {n}",
        "Any of the samples is right: the most a choice can reach.",
        "a right answer if there is one: {agreed}",
        rule=lambda c, o: oracle_weights(_truth(c)),
        of_subsets=lambda c, n: oracle_of_subsets(_truth(c), n),
        needs="truth",
    ),
)  # fmt: skip
STRATEGIES = {strategy.name: strategy for strategy in _ALL}
"""All strategies by name."""
FOR_USE = tuple(name for name, strategy in STRATEGIES.items() if strategy.needs != "truth")
"""Names of the strategies that can choose without knowing which answers are right."""


def find_strategy(name: str) -> Strategy:
    """Return the strategy called ``name``.

    Raises:
        ConfigError: There is none; the message lists those there are.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"there is no strategy {name!r}; strategies: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def strategy_for_use(name: str) -> Strategy:
    """Return the strategy called ``name``, which chooses without knowing which answers are right.

    Raises:
        ConfigError: There is none, or it needs the truth.
    """
    strategy = find_strategy(name)
    if strategy.needs == "truth":
        raise ConfigError(f"strategy {name} needs the right answer; it is for analysis only")
    return strategy
