"""Strategies for choosing among candidates, by name: one vocabulary for evaluation, `solve` and servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from selfverify.errors import ConfigError
from selfverify.selection.candidates import Candidates
from selfverify.selection.rules import (
    Floats,
    best_of_majority_weights,
    best_weights,
    consensus_box,
    first_weights,
    majority_weights,
    oracle_weights,
    vote_weights,
    weighted_weights,
)


@dataclass(frozen=True, slots=True)
class Options:
    """What strategies can be told.

    Args:
        temperature: ``weighted``: softmax temperature of the votes; see `vote_weights`.
        share: ``best-of-majority``: share of the candidates that an answer needs.
        iou: Boxes: overlap that a box must exceed to join a cluster.
    """

    temperature: float = 0.1
    share: float = 0.25
    iou: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature: a number above 0 is needed, not {self.temperature}")
        for name in ("share", "iou"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: a number between 0 and 1 is needed, not {getattr(self, name)}")


DEFAULTS = Options()


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to choose.

    Args:
        name: As it is called on the command line.
        summary: One line for people.
        weigh: The probability ``[..., N]`` that it picks each candidate, ties being random.
        needs: What it cannot do without: nothing, the verifier's scores, or the truth.
        votes: How much each candidate's vote counts ``[..., N]``. For boxes a strategy with votes answers
            with the consensus of the winning cluster; without, with one of the boxes.
    """

    name: str
    summary: str
    weigh: Callable[[Candidates, Options], Floats]
    needs: Literal["nothing", "score", "truth"] = "nothing"
    votes: Callable[[Candidates, Options], Floats] | None = None


def _truth(candidates: Candidates) -> Floats:
    if candidates.correct is None:
        raise ConfigError("strategy oracle needs to know which candidates are right: it is for analysis only")
    return candidates.correct


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("first", "the first candidate: no selection", lambda c, o: first_weights(c.keys)),
        Strategy(
            "majority",
            "the answer given most often",
            lambda c, o: majority_weights(c.keys),
            votes=lambda c, o: np.ones(c.keys.shape),
        ),
        Strategy("best", "the highest score", lambda c, o: best_weights(c.score), "score"),
        Strategy(
            "weighted",
            "votes weighted by softmax(score / temperature)",
            lambda c, o: weighted_weights(c.keys, c.score, o.temperature),
            "score",
            votes=lambda c, o: vote_weights(np.where(c.keys >= 0, c.score, np.nan), o.temperature),
        ),
        Strategy(
            "best-of-majority",
            "the highest score among the frequent answers",
            lambda c, o: best_of_majority_weights(c.keys, c.score, o.share),
            "score",
        ),
        Strategy(
            "oracle",
            "a right answer if there is one (analysis only)",
            lambda c, o: oracle_weights(_truth(c)),
            "truth",
        ),
    )
}


def find_strategy(name: str) -> Strategy:
    """The strategy called ``name``.

    Raises:
        ConfigError: There is none; the message lists those there are.
    """
    if name not in STRATEGIES:
        raise ConfigError(f"there is no strategy {name!r}; strategies: {', '.join(STRATEGIES)}")
    return STRATEGIES[name]


def expected_correctness(
    name: str, candidates: Candidates, options: Options = DEFAULTS, targets: ArrayLike | None = None
) -> Floats:
    """Expected correctness ``[...]`` of what a strategy answers.

    Args:
        name: Of the strategy.
        candidates: With ``correct``.
        options: Of the strategy.
        targets: The true boxes ``[..., 4]``. Where a strategy answers with a consensus of boxes, that is what
            is judged, and without targets it cannot be.

    Raises:
        ConfigError: No such strategy, the candidates' correctness is unknown, or targets are missing.
    """
    strategy = find_strategy(name)
    if candidates.correct is None:
        raise ConfigError(f"strategy {name}: it is unknown which candidates are right")
    if candidates.boxes is not None and strategy.votes is not None:
        if targets is None:
            raise ConfigError(f"strategy {name} answers with a box of its own, which needs targets to judge")
        return consensus_box(candidates.boxes, strategy.votes(candidates, options), targets, options.iou)
    return (strategy.weigh(candidates, options) * candidates.correct).sum(-1)
