"""Adaptive sampling: start with a few candidates and stop when more would hardly change the answer.

Two rules say how sure the leading answer is:

``beta`` (adaptive consistency, arXiv:2305.11860): with v1 votes for the leading answer and v2 for the next,
the probability that the first is really the more frequent of the two is P(p > 1/2) for p ~ Beta(v1 + 1,
v2 + 1), a uniform prior. Under a strategy with weighted votes, those count instead, scaled to add up to N.

``posterior`` (after confidence-guided early stopping, arXiv:2511.02603): scores are taken as the probability
that their candidate is right, candidates as independent. With c_i the score of candidate i and m the number
of distinct answers seen, an answer a has weight prod_i (c_i if candidate i gave a, else (1 - c_i) / m), and
so has "none of those seen", which no candidate gave. The rule is as good as the scores are calibrated
(`selfverify.selection.calibration`). Candidates of one problem are not independent, so it is too sure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from scipy.special import betainc

from selfverify.core.errors import ConfigError
from selfverify.selection.rules import Candidate, Candidates, Floats, support
from selfverify.selection.strategies import DEFAULTS, StrategyConfig, find_strategy

AnyCandidate = TypeVar("AnyCandidate", bound=Candidate)

_CERTAIN = 1e-3
"""Scores are moved at least this far away from 0 and 1, so that no single candidate settles the matter."""


@dataclass(frozen=True, slots=True)
class Stopping:
    """When to stop sampling.

    Args:
        rule: ``beta`` or ``posterior``, as the module explains them; ``never`` takes the whole budget.
        confidence: Sampling stops when the leading answer is at least this sure.
        start: The number of candidates before the first look.
        step: The number of candidates between two looks.
        max_samples: The most candidates.
        max_tokens: The most tokens to write. No candidate is begun that would pass this limit if it were as
            long as the mean of those before it. None is no limit.
    """

    rule: Literal["beta", "posterior", "never"] = "beta"
    confidence: float = 0.95
    start: int = 2
    step: int = 1
    max_samples: int = 8
    max_tokens: int | None = None


def beta_confidence(votes: float, next_votes: float) -> float:
    """P(p > 1/2) for p ~ Beta(votes + 1, next_votes + 1); votes need not be whole."""
    return float(betainc(next_votes + 1, votes + 1, 0.5))


def answer_posterior(keys: Sequence[int], score: Sequence[float]) -> Floats:
    """Probability of each answer 0, 1, ... and, as the last, of none of them.

    Unreadable and unscored candidates say nothing. Without any other, all answers and "none" are equally
    likely.
    """
    given, values = np.asarray(keys, dtype=np.int64), np.asarray(score, dtype=np.float64)
    answers = int(given.max(initial=-1)) + 1
    told = (given >= 0) & ~np.isnan(values)
    values = np.clip(values[told], _CERTAIN, 1 - _CERTAIN)
    gave = given[told] == np.arange(answers + 1)[:, None]
    logs = np.where(gave, np.log(values), np.log((1 - values) / max(answers, 1))).sum(-1)
    power = np.exp(logs - logs.max())
    found: Floats = power / power.sum()
    return found


def leader_confidence(
    candidates: Candidates, rule: str = "beta", strategy: str = "majority", options: StrategyConfig = DEFAULTS
) -> float:
    """How sure the leading answer of one problem's candidates ``[N]`` is; 0 if none can be read.

    Raises:
        ConfigError: ``posterior`` with scores outside [0, 1].
    """
    readable = candidates.keys >= 0
    if rule == "never" or not readable.any():
        return 0.0
    if rule == "posterior":
        if ((candidates.score < 0) | (candidates.score > 1)).any():
            raise ConfigError("stopping rule posterior needs scores that are probabilities")
        return float(answer_posterior(candidates.keys.tolist(), candidates.score.tolist())[:-1].max())
    votes = find_strategy(strategy).votes or find_strategy("majority").votes
    assert votes is not None
    each = np.where(readable, votes(candidates, options), 0.0)
    sums = support(candidates.keys, each / each.sum() * readable.sum())
    leader = int(sums.argmax())
    others = sums[candidates.keys != candidates.keys[leader]]
    return beta_confidence(float(sums[leader]), float(others.max(initial=0.0)))


def sample_adaptively(
    draw: Callable[[int], Sequence[AnyCandidate]],
    stopping: Stopping,
    strategy: str = "majority",
    options: StrategyConfig = DEFAULTS,
) -> tuple[list[AnyCandidate], str]:
    """Draw candidates until the leading answer is sure enough or the budget is spent.

    Args:
        draw: Makes up to the given number of further candidates, in order; fewer if it has no more.
        stopping: When to stop.
        strategy: The strategy that will choose; its votes are counted.
        options: The options of the strategy.

    Returns:
        The candidates, and why there are no more: ``confident``, ``samples``, ``tokens`` or ``exhausted``.
    """
    candidates: list[AnyCandidate] = []
    while True:
        wanted, spent = next_draw(candidates, stopping)
        if not wanted:
            return candidates, spent
        drawn = draw(wanted)
        candidates += drawn
        if candidates and is_sure(candidates, stopping, strategy, options):
            return candidates, "confident"
        if len(drawn) < wanted:
            return candidates, "exhausted"


def next_draw(candidates: Sequence[Candidate], stopping: Stopping) -> tuple[int, str]:
    """Return how many more candidates the budget allows; if 0, what is spent: ``samples`` or ``tokens``."""
    room = stopping.max_samples - len(candidates)
    if room < 1:
        return 0, "samples"
    wanted = min(stopping.step if candidates else stopping.start, room)
    if stopping.max_tokens is not None and candidates:
        used = sum(candidate.tokens for candidate in candidates)
        mean = max(used / len(candidates), 1.0)
        wanted = min(wanted, int((stopping.max_tokens - used) / mean))
    return (wanted, "") if wanted > 0 else (0, "tokens")


def is_sure(
    candidates: Sequence[Candidate], stopping: Stopping, strategy: str, options: StrategyConfig = DEFAULTS
) -> bool:
    """Whether the leading answer is sure enough."""
    arrays = Candidates.of(candidates, options.iou)
    return leader_confidence(arrays, stopping.rule, strategy, options) >= stopping.confidence
