"""Choosing one of a problem's candidates, and saying why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfverify.errors import ConfigError, DataError
from selfverify.selection.candidates import Candidate, Candidates
from selfverify.selection.rules import Floats, box_votes
from selfverify.selection.strategies import DEFAULTS, Options, find_strategy


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen.

    Args:
        index: The candidate that was chosen, or stands for the answer that was.
        answer: The answer; for boxes chosen by vote, the consensus of the winning cluster.
        score: The candidate's score.
        votes: How many candidates gave this answer (boxes: are in its cluster).
        confidence: ``best`` and ``best-of-majority``, ``first``: the score. ``majority``: the share of all
            candidates that gave the answer. ``weighted``: the sum of their scores, divided by the number of
            all candidates. None where that is unknown. Uncalibrated: see `selfverify.selection.calibration`.
        strategy: What really chose: a strategy that needs scores votes where no candidate has one.
        reason: In a sentence.
    """

    index: int
    answer: Any
    score: float | None
    votes: int
    confidence: float | None
    strategy: str
    reason: str


def choose(
    candidates: Sequence[Candidate], strategy: str = "weighted", options: Options = DEFAULTS
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
    asked = find_strategy(strategy)
    if asked.needs == "truth":
        raise ConfigError(f"strategy {strategy} needs the right answer; it is for analysis only")
    arrays = Candidates.of(candidates, options.iou)
    readable = arrays.keys >= 0
    if not readable.any():
        reason = f"none of the {len(candidates)} answers could be read"
        return Choice(0, None, candidates[0].score, 0, 0.0, strategy, reason)
    fallback = asked.needs == "score" and bool(np.isnan(arrays.score[readable]).all())
    used = find_strategy("majority") if fallback else asked
    masked = Candidates(arrays.keys, np.where(readable, arrays.score, np.nan), arrays.boxes)
    weights = used.weigh(masked, options)
    votes = (arrays.keys[:, None] == arrays.keys).sum(-1)
    index = _first_of(weights, masked.score, votes, candidates)
    answer = candidates[index].answer
    if arrays.boxes is not None and used.votes is not None and readable[index]:
        index, answer = _consensus(masked, used.votes(masked, options), candidates, options.iou)
    count = int(votes[index]) if readable[index] else 0
    score = candidates[index].score
    return Choice(
        index,
        answer,
        score,
        count,
        _confidence(used.name, masked, index),
        used.name,
        _reason(used.name, fallback, count, score, len(candidates), answer is None),
    )


def _first_of(weights: Floats, score: Floats, votes: Floats, candidates: Sequence[Candidate]) -> int:
    """The most preferred of the candidates that a rule could pick."""

    def rank(i: int) -> tuple[float, ...]:
        likelihood = candidates[i].logprob
        known = -np.inf if np.isnan(score[i]) else score[i]
        return (known, votes[i], -np.inf if likelihood is None else likelihood, -i)

    return max(np.flatnonzero(weights > 0).tolist(), key=rank)


def _consensus(
    arrays: Candidates, votes: Floats, candidates: Sequence[Candidate], iou: float
) -> tuple[int, list[float]]:
    """The consensus box, and the candidate that stands for it: the first of tied clusters, its best box."""
    assert arrays.boxes is not None
    sums, boxes = box_votes(arrays.boxes, votes, iou)
    winner = int(sums.argmax())
    index = _first_of((arrays.keys == winner).astype(float), arrays.score, votes, candidates)
    return index, [round(float(value), 2) for value in boxes[winner]]


def _confidence(name: str, arrays: Candidates, index: int) -> float | None:
    same = (arrays.keys == arrays.keys[index]) & (arrays.keys >= 0)
    if name == "majority":
        return float(same.mean())
    if name == "weighted":
        return float(np.where(same, np.nan_to_num(arrays.score), 0.0).mean())
    score = float(arrays.score[index])
    return None if np.isnan(score) else score


def _reason(name: str, fallback: bool, votes: int, score: float | None, total: int, unreadable: bool) -> str:
    agreed = f"{votes} of {total} candidates gave it"
    known = "no score" if score is None else f"score {score:.2f}"
    if unreadable:
        return f"the first of {total}; it could not be read"
    if fallback:
        return f"no readable answer has a score, so a majority vote: {agreed}"
    return {
        "first": f"the first of {total} candidates; {known}",
        "majority": f"most votes: {agreed}",
        "best": f"highest {known}; {agreed}",
        "weighted": f"most votes, weighted by score: {agreed}; its best {known}",
        "best-of-majority": f"highest {known} among frequent answers; {agreed}",
    }[name]
