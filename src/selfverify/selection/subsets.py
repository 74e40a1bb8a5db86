"""What a strategy chooses from n of G candidates, on average over the size-n subsets of the G.

This is the only engine behind figures such as ``best@4`` of 12 samples: accuracies, the parts of an answer
that tasks measure, categories, and the table of generators and verifiers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfverify.core.errors import ConfigError
from selfverify.selection.candidates import Candidates
from selfverify.selection.rules import Floats, box_iou, consensus_boxes
from selfverify.selection.strategies import DEFAULTS, Strategy, StrategyConfig

MAX_SUBSETS = 200
"""A strategy without a closed form is averaged over at most so many subsets."""
_BLOCK = 64
"""Problems whose subsets are in memory at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """What a strategy chooses for each of P problems, as probabilities that add up to 1.

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
    """What each of the strategies chooses from n of the candidates ``[P, G]``.

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
    """Expected correctness ``[P]`` of what a strategy chooses from n of the candidates.

    Args:
        strategy: What chooses.
        candidates: ``[P, G]``, with ``correct``.
        n: Candidates that it sees; by default all G.
        options: What the strategy is told.
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
