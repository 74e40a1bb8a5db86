"""How good a model's answers are, how well it judges them, and what choosing by that judgement gains.

Everything is computed from stored samples, G per problem. Answers without a readable score take no part in
the verification metrics (AUC, AP, mean, spread); in best-of-N they lose to every answer with a score. A
metric that cannot be measured (a single class, no scores) is None, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from selfverify.core.errors import DataError
from selfverify.core.trajectory import Finish
from selfverify.evaluation.bootstrap import (
    Statistic,
    bootstrap_interval,
    draws,
    mean_statistic,
    on_all,
    percentile_interval,
    ratio,
)
from selfverify.evaluation.ranking import auc_statistic, average_precision_statistic, within_problem_auc
from selfverify.evaluation.reliability import reliability
from selfverify.evaluation.sample_table import SampleTable
from selfverify.evaluation.store import CORRECT_1, StoredSample
from selfverify.evaluation.transitions import turn_statistics
from selfverify.selection.rules import Floats
from selfverify.selection.strategies import STRATEGIES, find_strategy
from selfverify.selection.subsets import expected_correctness

Curves = dict[str, list[float] | None]
Boxes = Mapping[str, Sequence[float]]
HEADLINE = "soft"
"""The way of reading scores that a metric uses if its name has no other."""


def accuracy(
    table: SampleTable,
    strategy: str,
    n: int,
    score: str = HEADLINE,
    target_boxes: Boxes | None = None,
    seed: int = 0,
) -> Floats | None:
    """Expected correctness ``[P]`` of what a strategy chooses from n of the G samples.

    None where the strategy needs scores and there are none, or where it answers with a box of its own and
    there are no targets. See `selfverify.selection.subsets.expected_correctness`.
    """
    chooser = find_strategy(strategy)
    if chooser.needs == "score" and np.isnan(table.scores.get(score, np.nan)).all():
        return None
    targets = None
    if table.boxes is not None and chooser.votes is not None:
        if target_boxes is None:
            return None
        targets = table.targets(target_boxes)
    return expected_correctness(chooser, table.candidates(score), n, targets=targets, seed=seed)


def curves(table: SampleTable, target_boxes: Boxes | None = None, seed: int = 0) -> Curves:
    """Accuracy for N = 1..G, averaged over problems and size-N subsets of the G samples.

    There is a curve for every strategy (of soft scores) by its `Strategy.figure`, and ``best_sampled``,
    ``best_greedy`` and ``best_logprob``; None where `accuracy` has none.
    """

    def curve(strategy: str, score: str = HEADLINE) -> list[float] | None:
        sizes = range(1, table.correct.shape[1] + 1)
        rows = [accuracy(table, strategy, n, score, target_boxes, seed) for n in sizes]
        return None if rows[0] is None else [float(row.mean()) for row in rows if row is not None]

    found = {strategy.figure: curve(strategy.name) for strategy in STRATEGIES.values()}
    return found | {f"best_{score}": curve("best", score) for score in ("sampled", "greedy", "logprob")}


def statistics(table: SampleTable, target_boxes: Boxes | None = None) -> dict[str, Statistic]:
    """Return the headline metrics by name, as functions of problem weights.

    ``logprob.*`` is the free baseline that a score has to beat: the answer's mean log-probability.
    """
    total = table.correct.shape[1]
    score, likelihood, correct = table.scores[HEADLINE], table.scores["logprob"], table.correct
    values = {
        s.at(total): accuracy(table, s.name, total, HEADLINE, target_boxes) for s in STRATEGIES.values()
    }
    best, voted = values[f"best@{total}"], values[f"majority@{total}"]
    values[f"best_over_majority@{total}"] = None if best is None or voted is None else best - voted
    found = {name: mean_statistic(value) for name, value in values.items() if value is not None}
    found["auc"] = auc_statistic(score, correct)
    found["ap"] = average_precision_statistic(score, correct)
    values = {"within_problem_auc": within_problem_auc(score, correct)}
    values[f"logprob.best@{total}"] = accuracy(table, "best", total, "logprob")
    values["logprob.within_problem_auc"] = within_problem_auc(likelihood, correct)
    values["score_mean"] = row_mean(score)
    values["score_spread"] = spread(score)
    readable = table.reward("format")
    values["format_rate"] = row_mean(np.where(np.isnan(readable), np.nan, readable > 0))
    found |= {name: mean_statistic(value) for name, value in values.items() if value is not None}
    if not np.isnan(table.reward(CORRECT_1)).any():
        found |= turn_statistics(table.reward(CORRECT_1), correct)
    return found


def verification(table: SampleTable, score: str) -> dict[str, float | None]:
    """Return how well scores that were read in one way judge the answers, and what best@G by them reaches."""
    values, correct = table.scores[score], table.correct
    problems, total = correct.shape
    best = accuracy(table, "best", total, score)
    found = {
        "auc": auc_statistic(values, correct),
        "ap": average_precision_statistic(values, correct),
        "within_problem_auc": mean_statistic(within_problem_auc(values, correct)),
    }
    return {
        f"best@{total}": None if best is None else float(best.mean()),
        **{name: _number(on_all(statistic, problems)) for name, statistic in found.items()},
    }


def summarise(
    samples: Sequence[StoredSample], target_boxes: Boxes | None = None, n: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """All metrics of a sample set, ready for JSON.

    Args:
        samples: The same number of samples, G, for every problem.
        target_boxes: True boxes by problem id, which a majority vote over boxes is judged by.
        n: The number of bootstrap draws behind ``intervals``.
        seed: Draws the bootstrap and the subsets.

    Raises:
        DataError: There are no samples, or problems have different numbers of them.
    """
    table = SampleTable.from_samples(samples)
    problems, total = table.correct.shape
    found = statistics(table, target_boxes)
    values = {name: _number(on_all(statistic, problems)) for name, statistic in found.items()}
    turns = {name.removeprefix("turns."): v for name, v in values.items() if name.startswith("turns.")}
    soft = table.scores[HEADLINE]
    soft = soft[~np.isnan(soft)]
    return {
        **{strategy.at(total): None for strategy in STRATEGIES.values()},
        f"best_over_majority@{total}": None,
        **{name: value for name, value in values.items() if "." not in name},
        **{score: verification(table, score) for score in ("sampled", "greedy", "logprob")},
        **({"turns": turns} if turns else {}),
        "problems": problems,
        "samples": problems * total,
        "samples_per_problem": total,
        # A task's parts may apply to some problems only.
        "rewards": {name: float(reward[~np.isnan(reward)].mean()) for name, reward in table.rewards.items()},
        "unjudged": sum(sample.finish == Finish.ERROR for sample in samples),
        "reliability": reliability(table.scores[HEADLINE], table.correct),
        "score_std": float(soft.std()) if len(soft) else None,
        "curves": curves(table, target_boxes, seed),
        "intervals": {
            name: list(interval) if (interval := bootstrap_interval(statistic, problems, n, seed)) else None
            for name, statistic in found.items()
        },
    }


def paired_difference(
    a: Sequence[StoredSample],
    b: Sequence[StoredSample],
    target_boxes: Boxes | None = None,
    n: int = 2000,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """How much higher each headline metric is in run ``b`` than in run ``a``, on the same problems.

    Returns:
        ``{metric: {"difference": float, "interval": [low, high]}}`` for the metrics defined in both runs.

    Raises:
        DataError: The runs are not about the same problems; the message names some that differ.
    """
    first = SampleTable.from_samples(a)
    only_a = set(first.problems) - {sample.problem for sample in b}
    only_b = {sample.problem for sample in b} - set(first.problems)
    if only_a or only_b:
        raise DataError(
            "a paired comparison needs the same problems in both runs; "
            f"only in the first: {sorted(only_a)[:5] or 'none'}, "
            f"only in the second: {sorted(only_b)[:5] or 'none'}"
        )
    second = SampleTable.from_samples(b, order=first.problems)
    problems = len(first.problems)
    left, right = statistics(first, target_boxes), statistics(second, target_boxes)
    result = {}
    for name in (name for name in left if name in right):
        gain = _minus(right[name], left[name])
        difference = _number(on_all(gain, problems))
        interval = percentile_interval(draws(gain, problems, n, seed))
        if difference is not None and interval is not None:
            result[name] = {"difference": difference, "interval": list(interval)}
    return result


def row_mean(values: ArrayLike) -> Floats:
    """Mean ``[P]`` of each row's numbers; NaN for a row of NaN only."""
    values = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(values)
    return ratio(np.where(known, values, 0.0).sum(-1), known.sum(-1))


def spread(score: ArrayLike) -> Floats:
    """Standard deviation (dividing by n) of each problem's scores ``[P]``; NaN with fewer than two scores."""
    score = np.asarray(score, dtype=np.float64)
    deviation = score - row_mean(score)[:, None]
    return np.where((~np.isnan(score)).sum(-1) > 1, np.sqrt(row_mean(deviation**2)), np.nan)


def _minus(a: Statistic, b: Statistic) -> Statistic:
    return lambda weights: a(weights) - b(weights)


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
