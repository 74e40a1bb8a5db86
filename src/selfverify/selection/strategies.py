"""The strategies for choosing among candidates by name, and what they choose from n of G candidates.

Evaluation, reports, `solve`, the gateway and the commands take names, words and functions from `STRATEGIES`.
`choose` chooses one of a problem's candidates and says why. `mixtures` is the only engine behind figures such
as ``best@4`` of 12 samples: accuracies, the parts of an answer that tasks measure, categories, and the table
of generators and verifiers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfverify.core.errors import ConfigError, DataError
from selfverify.selection.rules import (
    Candidate,
    Candidates,
    Floats,
    best_of_majority_weights,
    best_of_subsets,
    best_weights,
    box_iou,
    consensus_boxes,
    elect,
    first_weights,
    oracle_of_subsets,
    oracle_weights,
    support,
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
        needs: The values that the strategy cannot do without: the verifier's scores, the truth, or nothing.
        confidence: The kind of confidence of a choice: the candidate's score, the share of all candidates
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


@dataclass(frozen=True, slots=True)
class Choice:
    """A choice among candidates.

    Args:
        index: The place of the chosen candidate, or of the one that stands for the chosen answer.
        answer: The answer; for boxes that were chosen by vote, the consensus of the winning cluster.
        score: The candidate's score.
        votes: How many candidates gave this answer; for boxes, how many are in its cluster.
        confidence: The value that `Strategy.confidence` names, not calibrated
            (`selfverify.selection.calibration`); None where it is unknown.
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
    count, most = int(votes[index]) if readable[index] else 0, int(votes[readable].max())
    score, total = candidates[index].score, len(candidates)
    agreed = f"{count} of {total} candidates gave it" + (f", {most} gave another" if most > count else "")
    if answer is None:
        reason = f"the first of {total}; it could not be read"
    elif fallback:
        reason = f"no readable answer has a score, so a majority vote: {agreed}"
    else:
        known = "no score" if score is None else f"score {score:.2f}"
        reason = used.reason.format(score=known, agreed=agreed, total=total)
    return Choice(index, answer, score, count, _confidence(used, masked, index), used.name, reason)


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


MAX_SUBSETS = 200
"""A strategy without a closed form is averaged over at most so many subsets."""
_BLOCK = 64
"""Problems whose subsets are in memory at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """A strategy's choice for each of P problems, as probabilities that add up to 1.

    Args:
        probability: ``[P, G]`` of the candidates, or ``[P, M]`` of the boxes that votes made.
        boxes: ``[P, M, 4]``, boxes that votes made, NaN for "none could be read"; None where the strategy
            chooses one of the candidates.
    """

    probability: Floats
    boxes: Floats | None = None

    def likely(self, problem: int) -> tuple[Floats, Floats]:
        """The probabilities ``[M]`` of the different boxes ``[M, 4]`` of one problem that can be chosen."""
        assert self.boxes is not None
        share = self.probability[problem]
        boxes, place = np.unique(self.boxes[problem, share > 0], axis=0, return_inverse=True)
        return np.bincount(place.ravel(), share[share > 0]).astype(np.float64), boxes


def subsets(total: int, n: int, seed: int = 0) -> NDArray[np.int64]:
    """All size-n subsets ``[S, n]`` of ``total`` columns, or `MAX_SUBSETS` random ones of them.

    The columns of a subset ascend, which the clustering of boxes needs.
    """
    if math.comb(total, n) <= MAX_SUBSETS:
        return np.array(list(combinations(range(total), n)))
    rng = np.random.default_rng([seed, n])
    return np.array([np.sort(rng.choice(total, n, replace=False)) for _ in range(MAX_SUBSETS)])


def blocks(problems: int) -> Iterator[slice]:
    """The problems in blocks that are small enough for `mixtures`."""
    return (slice(start, min(start + _BLOCK, problems)) for start in range(0, problems, _BLOCK))


def mixtures(
    strategies: Sequence[Strategy],
    candidates: Candidates,
    n: int,
    options: StrategyConfig = DEFAULTS,
    seed: int = 0,
) -> list[Mixture]:
    """Return each strategy's choice from n of the candidates ``[P, G]``, on average over the subsets.

    Exact where all subsets can be looked at or a strategy has a closed form, else an average over
    `MAX_SUBSETS` seeded subsets. Memory grows with P: see `blocks`.
    """
    columns = subsets(candidates.keys.shape[-1], n, seed)
    taken = None
    found = []
    for strategy in strategies:
        if strategy.of_subsets is not None:
            found.append(Mixture(strategy.of_subsets(candidates, n)))
            continue
        taken = taken or candidates.take(columns, options.iou)
        weights = strategy.weigh(taken, options)
        if taken.boxes is not None and strategy.votes is not None:
            made = consensus_boxes(taken.keys, taken.boxes, strategy.votes(taken, options))
            problems = len(weights)
            found.append(Mixture(weights.reshape(problems, -1) / len(columns), made.reshape(problems, -1, 4)))
            continue
        probability = np.zeros(candidates.keys.shape)
        for number, own in enumerate(columns):
            probability[:, own] += weights[:, number]
        found.append(Mixture(probability / len(columns)))
    return found


def expected_correctness(
    strategy: Strategy,
    candidates: Candidates,
    n: int | None = None,
    options: StrategyConfig = DEFAULTS,
    targets: ArrayLike | None = None,
    seed: int = 0,
) -> Floats:
    """Return the expected correctness ``[P]`` of a strategy's choice from n of the candidates.

    Args:
        strategy: The strategy.
        candidates: ``[P, G]``, with ``correct``.
        n: Candidates that it sees; by default all G.
        options: The options of the strategy.
        targets: The true boxes ``[P, 4]``. A box that votes made is right where its IoU with the target is
            above 0.5.
        seed: Draws the subsets, where there are too many.

    Raises:
        ConfigError: The candidates' correctness is unknown, or votes make boxes and there are no targets.
    """
    if candidates.correct is None:
        raise ConfigError(f"strategy {strategy.name}: it is unknown which candidates are right")
    if candidates.boxes is not None and strategy.votes is not None and targets is None:
        raise ConfigError(
            f"strategy {strategy.name} answers with a box of its own, which needs targets to judge"
        )
    found = []
    for rows in blocks(len(candidates.keys)):
        [chosen] = mixtures([strategy], candidates.rows(rows), n or candidates.keys.shape[-1], options, seed)
        right = candidates.correct[rows]
        if chosen.boxes is not None:
            wanted = np.asarray(targets, dtype=np.float64)[rows, None]
            right = (box_iou(chosen.boxes, wanted) > 0.5).astype(np.float64)
        found.append((chosen.probability * right).sum(-1))
    return np.concatenate(found)
