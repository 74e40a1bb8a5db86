"""Choosing one of a problem's candidates, and saying why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfverify.core.errors import DataError
from selfverify.selection.candidates import Candidate, Candidates
from selfverify.selection.rules import Floats, consensus_boxes, support
from selfverify.selection.strategies import DEFAULTS, STRATEGIES, Strategy, StrategyConfig, strategy_for_use


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen.

    Args:
        index: The place of the chosen candidate, or of the one that stands for the chosen answer.
        answer: The answer; for boxes that were chosen by vote, the consensus of the winning cluster.
        score: The candidate's score.
        votes: How many candidates gave this answer; for boxes, how many are in its cluster.
        confidence: What `Strategy.confidence` says, not calibrated (`selfverify.selection.calibration`); None
            where it is unknown.
        strategy: The strategy that really chose: where no candidate has a score, a vote replaces one that
            needs scores.
        reason: A sentence that says why.
    """

    index: int
    answer: Any
    score: float | None
    votes: int
    confidence: float | None
    strategy: str
    reason: str


def choose(
    candidates: Sequence[Candidate], strategy: str = "weighted", options: StrategyConfig = DEFAULTS
) -> Choice:
    """Choose among one problem's candidates.

    Unlike the rules, which treat ties as chance, this is deterministic: of tied candidates the one with the
    higher score is taken, then the one whose answer was given more often, then the likelier, then the
    earlier. Where no candidate has a score, a strategy that needs one votes instead, and says so. Where no
    answer can be read, the choice has none (``answer`` None, ``confidence`` 0).

    Raises:
        ConfigError: No such strategy, or one that needs the truth.
        DataError: There are no candidates.
    """
    if not candidates:
        raise DataError("there are no candidates to choose from")
    asked = strategy_for_use(strategy)
    arrays = Candidates.of(candidates, options.iou)
    readable = arrays.keys >= 0
    if not readable.any():
        reason = f"none of the {len(candidates)} answers could be read"
        return Choice(0, None, candidates[0].score, 0, 0.0, strategy, reason)
    fallback = asked.needs == "score" and bool(np.isnan(arrays.score[readable]).all())
    used = STRATEGIES["majority"] if fallback else asked
    masked = Candidates(arrays.keys, np.where(readable, arrays.score, np.nan), arrays.boxes)
    weights = used.weigh(masked, options)
    votes = (arrays.keys[:, None] == arrays.keys).sum(-1)
    index = _first_of(weights, masked.score, votes, candidates)
    answer = candidates[index].answer
    if arrays.boxes is not None and used.votes is not None and readable[index]:
        index, answer = _consensus(masked, used.votes(masked, options), candidates)
    count = int(votes[index]) if readable[index] else 0
    most = int(votes[readable].max())
    score = candidates[index].score
    return Choice(
        index,
        answer,
        score,
        count,
        _confidence(used, masked, index),
        used.name,
        _reason(used, fallback, count, most, score, len(candidates), answer is None),
    )


def _first_of(weights: Floats, score: Floats, votes: Floats, candidates: Sequence[Candidate]) -> int:
    """The most preferred of the candidates that a rule could pick."""
    scores, counts = score.tolist(), votes.tolist()

    def rank(i: int) -> tuple[float, ...]:
        likelihood = candidates[i].logprob
        known = -math.inf if math.isnan(scores[i]) else scores[i]
        return (known, counts[i], -math.inf if likelihood is None else likelihood, -i)

    return max(np.flatnonzero(weights > 0).tolist(), key=rank)


def _consensus(arrays: Candidates, votes: Floats, candidates: Sequence[Candidate]) -> tuple[int, list[float]]:
    """The consensus box, and the candidate that stands for it: the first of tied clusters, its best box."""
    assert arrays.boxes is not None
    winner = int(support(arrays.keys, votes).argmax())
    index = _first_of((arrays.keys == arrays.keys[winner]).astype(float), arrays.score, votes, candidates)
    boxes = consensus_boxes(arrays.keys, arrays.boxes, votes)
    return index, [round(float(value), 2) for value in boxes[winner]]


def _confidence(strategy: Strategy, arrays: Candidates, index: int) -> float | None:
    same = (arrays.keys == arrays.keys[index]) & (arrays.keys >= 0)
    if strategy.confidence == "agreement":
        return float(same.mean())
    if strategy.confidence == "scored agreement":
        return float(np.where(same & ~np.isnan(arrays.score), arrays.score, 0.0).sum()) / len(same)
    score = float(arrays.score[index])
    return None if np.isnan(score) else score


def _reason(
    strategy: Strategy,
    fallback: bool,
    votes: int,
    most: int,
    score: float | None,
    total: int,
    unreadable: bool,
) -> str:
    agreed = f"{votes} of {total} candidates gave it"
    if most > votes:
        agreed += f", {most} gave another"
    if unreadable:
        return f"the first of {total}; it could not be read"
    if fallback:
        return f"no readable answer has a score, so a majority vote: {agreed}"
    known = "no score" if score is None else f"score {score:.2f}"
    return strategy.reason.format(score=known, agreed=agreed, total=total)
