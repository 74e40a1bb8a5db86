"""How good a model's answers are, how well it judges them, and what choosing by that judgement gains.

Everything is computed from stored samples, G per problem. Answers without a readable score take no part in
the verification metrics (AUC, AP, mean, spread); in best-of-N they lose to every answer with a score. A
metric that cannot be measured (a single class, no scores) is None, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

from selfverify.errors import DataError
from selfverify.evaluation.bootstrap import (
    Statistic,
    auc_statistic,
    average_precision_statistic,
    bootstrap_interval,
    draws,
    evaluate,
    mean_statistic,
    percentile_interval,
)
from selfverify.evaluation.reliability import reliability
from selfverify.evaluation.store import Sample
from selfverify.evaluation.table import SampleTable
from selfverify.selection.rules import best_of_n, oracle, pass_at_1
from selfverify.selection.strategies import expected_correctness, find_strategy

__all__ = [
    "bootstrap_interval", "curves", "paired_difference", "pooled_ap", "pooled_auc", "statistics", "summarise",
    "within_problem_auc",
]  # fmt: skip

Floats = NDArray[np.float64]
Curves = dict[str, list[float] | None]
Boxes = Mapping[str, Sequence[float]]
HEADLINE = "soft"
"""The decoding that metrics without a decoding in their name read."""
VOTES = {"majority": "majority", "weighted": "weighted", "best_of_majority": "best-of-majority"}
"""Strategies reported as ``NAME@N`` besides best-of-N, by their name in a summary."""
MAX_SUBSETS = 200
"""Most subsets that a rule without a closed form is averaged over."""


def pooled_auc(score: ArrayLike, correct: ArrayLike) -> float | None:
    """Area under the ROC curve over all scored samples ``[P, G]`` together; None with one class only.

    It rewards knowing which *problems* are hard as much as knowing which *answers* are right: see
    `within_problem_auc` for what selection can use.
    """
    kept, labels = _scored(score, correct)
    return float(roc_auc_score(labels, kept)) if len(np.unique(labels)) == 2 else None


def pooled_ap(score: ArrayLike, correct: ArrayLike) -> float | None:
    """Average precision over all scored samples ``[P, G]`` together; None with one class only."""
    kept, labels = _scored(score, correct)
    return float(average_precision_score(labels, kept)) if len(np.unique(labels)) == 2 else None


def within_problem_auc(score: ArrayLike, correct: ArrayLike) -> Floats:
    """AUC of each problem ``[P]`` among its own G samples; NaN without a scored right and a scored wrong one.

    That is the share of (right, wrong) pairs in which the right answer has the higher score, ties counting
    one half. The figure reported as within-problem AUC is its mean over the mixed problems, every problem
    counting the same, however many pairs it has: best-of-N decides once per problem, too.
    """
    score, correct = np.asarray(score, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    scored = ~np.isnan(score)
    right, wrong = scored & (correct > 0.5), scored & (correct <= 0.5)
    pair = right[:, :, None] & wrong[:, None, :]
    first, second = score[:, :, None], score[:, None, :]
    wins = (pair * ((first > second) + 0.5 * (first == second))).sum((1, 2))
    pairs = pair.sum((1, 2))
    return np.divide(wins, pairs, out=np.full(len(score), np.nan), where=pairs > 0)


def spread(score: ArrayLike) -> Floats:
    """Standard deviation (dividing by n) of each problem's scores ``[P]``; NaN with fewer than two scores."""
    score = np.asarray(score, dtype=np.float64)
    scored = ~np.isnan(score)
    count = scored.sum(-1)
    mean = np.where(scored, score, 0.0).sum(-1) / np.maximum(count, 1)
    square = np.where(scored, (score - mean[:, None]) ** 2, 0.0).sum(-1)
    return np.where(count > 1, np.sqrt(square / np.maximum(count, 1)), np.nan)


def best_share(score: ArrayLike, n: int) -> Floats:
    """How likely best-of-n chooses each sample ``[P, G]``, over all size-n subsets of the G samples, exactly.

    With L(i) samples not above sample i and l(i) below it, the best of a random subset is among the L(i) −
    l(i) samples tied with i with probability [C(L, n) − C(l, n)] / C(G, n), and each of them equally often.
    """
    score = np.asarray(score, dtype=np.float64)
    total = score.shape[-1]
    choose = np.array([math.comb(k, n) for k in range(total + 1)], dtype=np.float64) / math.comb(total, n)
    scored = ~np.isnan(score)
    below = (scored[:, :, None] & ~scored[:, None, :]) | (score[:, None, :] < score[:, :, None])
    equal = (~scored[:, :, None] & ~scored[:, None, :]) | (score[:, None, :] == score[:, :, None])
    less, same = below.sum(-1), equal.sum(-1)
    share: Floats = (choose[less + same] - choose[less]) / same
    return share


def best_of_subsets(score: ArrayLike, correct: ArrayLike, n: int) -> Floats:
    """Expected correctness ``[P]`` of best-of-n over all size-n subsets of the G samples, exactly."""
    return (best_share(score, n) * np.asarray(correct, dtype=np.float64)).sum(-1)


def oracle_of_subsets(correct: ArrayLike, n: int) -> Floats:
    """Share ``[P]`` of all size-n subsets of the G samples with a right answer: 1 − C(G − c, n) / C(G, n)."""
    correct = np.asarray(correct, dtype=np.float64)
    total = correct.shape[-1]
    misses = np.array([math.comb(total - c, n) for c in range(total + 1)], dtype=np.float64)
    return 1.0 - (misses / math.comb(total, n))[correct.sum(-1).astype(int)]


def oracle_share(correct: ArrayLike, n: int) -> Floats:
    """How likely a perfect choice takes each sample ``[P, G]``, over all size-n subsets of the G samples.

    A right one of the subset at random, else any of it.
    """
    correct = np.asarray(correct, dtype=np.float64) > 0.5
    hit = oracle_of_subsets(correct, n)[:, None]
    right, wrong = correct.sum(-1, keepdims=True), (~correct).sum(-1, keepdims=True)
    share: Floats = np.where(correct, hit / np.maximum(right, 1), (1 - hit) / np.maximum(wrong, 1))
    return share


def strategy_of_subsets(
    table: SampleTable,
    strategy: str,
    n: int,
    score: str = HEADLINE,
    target_boxes: Boxes | None = None,
    seed: int = 0,
) -> Floats | None:
    """Expected correctness ``[P]`` of a strategy over size-n subsets of the G samples.

    Exact, but where more than `MAX_SUBSETS` subsets exist and there is no closed form: then as many are
    drawn, seeded. None where the strategy needs scores and there are none, or where it answers with a box of
    its own and there are no targets.
    """
    if find_strategy(strategy).needs == "score" and np.isnan(table.scores[score]).all():
        return None
    if strategy == "best":
        return best_of_subsets(table.scores[score], table.correct, n)
    if strategy == "oracle":
        return oracle_of_subsets(table.correct, n)
    if strategy == "first":
        return pass_at_1(table.correct)
    candidates, targets = table.candidates(score), None
    if table.boxes is not None and find_strategy(strategy).votes:
        if target_boxes is None:
            return None
        targets = table.targets(target_boxes)
    total = table.correct.shape[1]
    return np.mean(
        [
            expected_correctness(strategy, candidates.take(columns), targets=targets)
            for columns in subsets(total, n, seed)
        ],
        axis=0,
    )


def curves(table: SampleTable, target_boxes: Boxes | None = None, seed: int = 0) -> Curves:
    """Accuracy by selection rule for N = 1..G, averaged over problems and size-N subsets of the G samples.

    Rules: ``pass@1``, ``majority``, ``weighted``, ``best_of_majority`` and ``best`` (soft score),
    ``best_sampled``, ``best_greedy``, ``best_logprob`` and ``oracle``; see `strategy_of_subsets`. A rule
    without any score, and votes for boxes without targets, is None.
    """
    total = table.correct.shape[1]
    sizes = range(1, total + 1)

    def curve(strategy: str, score: str = HEADLINE) -> list[float] | None:
        rows = [strategy_of_subsets(table, strategy, n, score, target_boxes, seed) for n in sizes]
        return None if rows[0] is None else [float(row.mean()) for row in rows if row is not None]

    result: Curves = {"pass@1": [float(table.correct.mean())] * total}
    result |= {name: curve(strategy) for name, strategy in VOTES.items()}
    names = {"best": HEADLINE, "best_sampled": "sampled", "best_greedy": "greedy", "best_logprob": "logprob"}
    result |= {rule: curve("best", score) for rule, score in names.items()}
    return result | {"oracle": curve("oracle")}


def statistics(table: SampleTable, target_boxes: Boxes | None = None) -> dict[str, Statistic]:
    """The headline metrics by name, as functions of problem weights: for intervals and paired differences.

    ``logprob.*`` is the free baseline that a score has to beat: the answer's mean log-probability.
    """
    total = table.correct.shape[1]
    score, correct = table.scores[HEADLINE], table.correct
    found = {"pass@1": mean_statistic(pass_at_1(correct)), f"oracle@{total}": mean_statistic(oracle(correct))}
    votes = {
        name: strategy_of_subsets(table, strategy, total, target_boxes=target_boxes)
        for name, strategy in VOTES.items()
    }
    found |= {f"{name}@{total}": mean_statistic(v) for name, v in votes.items() if v is not None}
    voted = votes["majority"]
    if not np.isnan(score).all():
        best = best_of_n(score, correct)
        found[f"best@{total}"] = mean_statistic(best)
        if voted is not None:
            found[f"best_over_majority@{total}"] = mean_statistic(best - voted)
    found["auc"] = auc_statistic(score, correct)
    found["ap"] = average_precision_statistic(score, correct)
    found["within_problem_auc"] = mean_statistic(within_problem_auc(score, correct))
    likelihood = table.scores["logprob"]
    if not np.isnan(likelihood).all():
        found[f"logprob.best@{total}"] = mean_statistic(best_of_n(likelihood, correct))
    found["logprob.within_problem_auc"] = mean_statistic(within_problem_auc(likelihood, correct))
    if not np.isnan(table.correct_1).any():
        found |= turn_statistics(table.correct_1, correct)
    found["score_mean"] = mean_statistic(_row_mean(score))
    found["score_spread"] = mean_statistic(spread(score))
    found["format_rate"] = mean_statistic(
        _row_mean(np.where(np.isnan(table.format), np.nan, table.format > 0))
    )
    return found


def turn_statistics(first: ArrayLike, second: ArrayLike) -> dict[str, Statistic]:
    """Two-turn figures of ``[P, G]`` answers as functions of problem weights, named ``turns.*``.

    See `selfverify.rollouts.transitions`; ``turns.corrected`` and ``turns.spoiled`` are rates of wrong and of
    right first answers, the rest shares of all.
    """
    before, after = np.asarray(first) > 0.5, np.asarray(second) > 0.5
    kinds = {f"{i:d}->{j:d}": ((before == i) & (after == j)).mean(-1) for i in (0, 1) for j in (0, 1)}
    values = {"acc@t1": before.mean(-1), "acc@t2": after.mean(-1)}
    values |= {"delta": values["acc@t2"] - values["acc@t1"], **kinds}
    found = {f"turns.{name}": mean_statistic(value) for name, value in values.items()}
    wrong, right = mean_statistic((~before).mean(-1)), mean_statistic(before.mean(-1))
    found["turns.corrected"] = _quotient(mean_statistic(kinds["0->1"]), wrong)
    found["turns.spoiled"] = _quotient(mean_statistic(kinds["1->0"]), right)
    return found


def _quotient(part: Statistic, whole: Statistic) -> Statistic:
    def statistic(weights: Floats) -> Floats:
        below = whole(weights)
        return np.divide(part(weights), below, out=np.full(below.shape, np.nan), where=below > 0)

    return statistic


def summarise(
    samples: Sequence[Sample], target_boxes: Boxes | None = None, n: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """All metrics of a sample set, ready for JSON.

    Args:
        samples: The same number of samples, G, for every problem.
        target_boxes: True boxes by problem id, which a majority vote over boxes is judged by.
        n: Bootstrap draws behind ``intervals``.
        seed: Of the draws.

    Raises:
        DataError: There are no samples, or problems have different numbers of them.
    """
    table = SampleTable.from_samples(samples)
    problems, total = table.correct.shape
    found = statistics(table, target_boxes)
    soft = table.scores[HEADLINE]
    soft = soft[~np.isnan(soft)]
    result: dict[str, Any] = {f"{rule}@{total}": None for rule in (*VOTES, "best", "best_over_majority")}
    flat = {name: statistic for name, statistic in found.items() if "." not in name}
    result |= {name: _number(evaluate(statistic, problems)) for name, statistic in flat.items()}
    result |= {name: _verification(table, name) for name in ("sampled", "greedy", "logprob")}
    turns = {name.removeprefix("turns."): s for name, s in found.items() if name.startswith("turns.")}
    if turns:
        result["turns"] = {name: _number(evaluate(s, problems)) for name, s in turns.items()}
    return result | {
        "problems": problems,
        "samples": problems * total,
        "samples_per_problem": total,
        "rewards": _mean_rewards(samples),
        "unjudged": sum(sample.finish == "error" for sample in samples),
        "reliability": reliability(table.scores[HEADLINE], table.correct),
        "score_std": float(soft.std()) if len(soft) else None,
        "curves": curves(table, target_boxes, seed),
        "intervals": {
            name: list(interval) if (interval := bootstrap_interval(statistic, problems, n, seed)) else None
            for name, statistic in found.items()
        },
    }


def paired_difference(
    a: Sequence[Sample], b: Sequence[Sample], target_boxes: Boxes | None = None, n: int = 2000, seed: int = 0
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
        difference = _number(evaluate(gain, problems))
        interval = percentile_interval(draws(gain, problems, n, seed))
        if difference is not None and interval is not None:
            result[name] = {"difference": difference, "interval": list(interval)}
    return result


def _minus(a: Statistic, b: Statistic) -> Statistic:
    return lambda weights: a(weights) - b(weights)


def _verification(table: SampleTable, name: str) -> dict[str, float | None]:
    score, correct = table.scores[name], table.correct
    problems, total = correct.shape
    exists = not np.isnan(score).all()
    return {
        f"best@{total}": float(best_of_n(score, correct).mean()) if exists else None,
        "auc": pooled_auc(score, correct),
        "ap": pooled_ap(score, correct),
        "within_problem_auc": _number(evaluate(mean_statistic(within_problem_auc(score, correct)), problems)),
    }


def subsets(total: int, n: int, seed: int) -> list[NDArray[np.int64]]:
    """All size-n subsets of the columns, or `MAX_SUBSETS` of them; in order, which box clustering needs."""
    if math.comb(total, n) <= MAX_SUBSETS:
        return [np.array(columns) for columns in combinations(range(total), n)]
    rng = np.random.default_rng([seed, n])
    return [np.sort(rng.choice(total, n, replace=False)) for _ in range(MAX_SUBSETS)]


def _scored(score: ArrayLike, correct: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    score, correct = np.asarray(score, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    kept = ~np.isnan(score)
    return score[kept], (correct[kept] > 0.5).astype(np.int64)


def _row_mean(score: Floats) -> Floats:
    scored = ~np.isnan(score)
    count = scored.sum(-1)
    return np.where(count > 0, np.where(scored, score, 0.0).sum(-1) / np.maximum(count, 1), np.nan)


def _mean_rewards(samples: Sequence[Sample]) -> dict[str, float]:
    """Each reward's mean over the samples that have it: a task's parts may apply to some problems only."""
    rows = [sample.rewards for sample in samples]
    names = sorted({name for rewards in rows for name in rewards})
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
