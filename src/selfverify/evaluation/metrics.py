"""Metrics of stored samples: accuracy, choosing among N, verification, calibration, classes of error.

Everything is computed from stored samples, G per problem. A metric that cannot be measured (a single class,
no scores) is None, never NaN. Answers without a readable score take no part in the verification metrics
(AUC, AP, mean, spread); in best-of-N they lose to every answer with a score.

`reliability` and `risk_coverage` say whether confidences mean what they say, and what abstaining by them
would gain. They take confidences and verdicts of any one shape; answers without a confidence (NaN) take no
part. Within-problem AUC is about choosing and not about abstaining; it is in
`selfverify.evaluation.statistics`.

A task names the classes of its wrong answers (`Task.errors`) and puts each into one (`Verdict.error`). A
verifier that tells right answers from wrong ones well may still be blind to one class: that shows only when
right answers are compared with that class alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfverify.core.errors import DataError
from selfverify.core.trajectory import Finish
from selfverify.evaluation.samples import (
    CORRECT_1,
    DECODINGS,
    TEXT_RULES,
    TOOL_COUNTS,
    StoredSample,
    talk_figures,
)
from selfverify.evaluation.statistics import (
    Statistic,
    auc_statistic,
    compare,
    interval,
    mean_statistic,
    measure,
    on_shared,
    ranking_statistics,
    ratio_statistic,
    row_mean,
    spread,
    turn_statistics,
    within_problem_auc,
)
from selfverify.selection.calibration import FUSED
from selfverify.selection.rules import Candidates, Floats, box_array, number_keys
from selfverify.selection.strategies import STRATEGIES, expected_correctness, find_strategy
from selfverify.tasks.base import EVERY, Metric


def brier(confidence: ArrayLike, correct: ArrayLike) -> float | None:
    """Mean squared difference of confidence and verdict: 0 is perfect, a constant one half gives 1/4."""
    values, labels = _known(confidence, correct)
    return float(((values - labels) ** 2).mean()) if len(values) else None


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 15) -> float | None:
    """Expected calibration error over ``bins`` bins of equal mass.

    The mean over answers of |accuracy - mean confidence| of the bin they fall in. Bins are cut from the
    sorted confidences; equal confidences share the bin that the middle one of them falls into.
    """
    values, labels = _known(confidence, correct)
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    values, labels = values[order], labels[order]
    position = np.arange(len(values)) * min(bins, len(values)) // len(values)
    _, first, group, many = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    bin_of = position[first + (many - 1) // 2][group]
    count = np.bincount(bin_of, minlength=bins)
    gap = np.bincount(bin_of, values, bins) - np.bincount(bin_of, labels, bins)
    return float(np.abs(gap).sum() / count.sum())


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Return coverage k/n and selective risk ``[n]`` when only the k most confident answers are given.

    Equal confidences come in random order; the risk is the expected one.
    """
    values, labels = _known(confidence, correct)
    order = np.argsort(-values, kind="stable")
    _, group = np.unique(-values[order], return_inverse=True)
    expected = (np.bincount(group, 1.0 - labels[order]) / np.bincount(group))[group]
    count = np.arange(1, len(values) + 1)
    return count / max(len(values), 1), np.cumsum(expected) / count


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float | None:
    """Area under the risk-coverage curve: mean selective risk over all coverages; lower is better."""
    _, risk = risk_coverage(confidence, correct)
    return float(risk.mean()) if len(risk) else None


def augrc(confidence: ArrayLike, correct: ArrayLike) -> float | None:
    """Area under the generalised risk-coverage curve (arXiv:2407.01032): mean of coverage times risk.

    The generalised risk at a coverage is the share of *all* answers that are given and wrong, so that a few
    confident mistakes do not weigh on every coverage as they do in `aurc`. Lower is better, at most 1/2.
    """
    coverage, risk = risk_coverage(confidence, correct)
    if not len(risk):
        return None
    joint = np.concatenate([[0.0], coverage * risk])
    return float(((joint[1:] + joint[:-1]) / 2).mean())


def reliability(confidence: ArrayLike, correct: ArrayLike) -> dict[str, float | None]:
    """Return ``ece``, ``brier``, ``aurc`` and ``augrc`` by name."""
    return {f.__name__: f(confidence, correct) for f in (ece, brier, aurc, augrc)}


def _known(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    values = np.ravel(np.asarray(confidence, dtype=np.float64))
    labels = (np.ravel(np.asarray(correct, dtype=np.float64)) > 0.5).astype(np.float64)
    if values.shape != labels.shape:
        raise ValueError(f"{len(values)} confidences for {len(labels)} verdicts")
    known = ~np.isnan(values)
    return values[known], labels[known]


MALFORMED = "malformed"
"""The class of answers that cannot be read, in every task that names classes."""
ERRORS = "errors"
"""The table of a summary that has these figures, and the beginning of their names."""


def error_classes(
    rows: Sequence[Sequence[StoredSample]], named: Sequence[str] = ()
) -> tuple[dict[str, NDArray[np.bool_]], int]:
    """Return the samples ``[P, G]`` of each class, and how many wrong answers were stored without theirs.

    The classes are those that the task has named, in its order, those that samples have besides, and
    `MALFORMED`. There are none where neither the task nor a sample names a class. An answer that could not be
    judged has none. Answers count as stored without classes where some that could be read are wrong, and not
    one has a class.
    """
    found = {s.error for row in rows for s in row if s.error}
    if not named and not found:
        return {}, 0
    wrong = np.array([[not s.correct and s.finish != Finish.ERROR for s in row] for row in rows])
    unread = wrong & np.array([[s.answer is None for s in row] for row in rows])
    own = np.array([[s.error or "" for s in row] for row in rows], dtype=object)
    own[unread & (own == "")] = MALFORMED
    masks = {name: own == name for name in dict.fromkeys([*named, *sorted(found), MALFORMED])}
    return masks, 0 if found - {MALFORMED} else int((wrong & (own == "")).sum())


def error_statistics(table: SampleTable) -> dict[str, Statistic]:
    """Return the figures of each class, named ``errors.CLASS.FIGURE``, as functions of problem weights.

    ``share`` is the share of all answers. ``within_problem_auc`` and ``auc`` compare right answers with the
    class alone, in the same problem and over all. ``logprob_within_problem_auc`` is what the answer's mean
    log-probability reaches without having been taught. Where the classes were not stored, shares are unknown.
    """
    found: dict[str, Statistic] = {}
    correct, readings = table.correct, (table.scores[table.headline], table.scores["logprob"])
    for name, mask in table.errors.items():
        share = np.where(table.unclassed and name != MALFORMED, np.nan, row_mean(mask))
        own, free = (np.where(mask | (correct > 0.5), values, np.nan) for values in readings)
        found |= {
            f"{ERRORS}.{name}.share": mean_statistic(share),
            f"{ERRORS}.{name}.within_problem_auc": mean_statistic(within_problem_auc(own, correct)),
            f"{ERRORS}.{name}.auc": auc_statistic(own, correct),
            f"{ERRORS}.{name}.logprob_within_problem_auc": mean_statistic(within_problem_auc(free, correct)),
        }
    return found


def error_table(table: SampleTable, values: Mapping[str, float | None]) -> dict[str, dict[str, Any]]:
    """Return each class's figures, how many ``answers`` it has, and why figures are ``missing``.

    Args:
        table: The samples.
        values: The figures by the names of `error_statistics`; None where undefined.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, mask in table.errors.items():
        start, lost = f"{ERRORS}.{name}.", table.unclassed and name != MALFORMED
        own = {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}
        found[name] = {"answers": None if lost else int(mask.sum()), **own}
        if None not in own.values():
            continue
        if lost:
            why = NOT_STORED.format(count=table.unclassed)
        elif not mask.any():
            why = "no answer is of this class"
        elif not (table.correct > 0.5).any():
            why = "no answer is right"
        else:
            why = "no problem has a right answer and one of this class that both have a score"
        found[name][MISSING] = why
    return found


NOT_STORED = (
    "{count} wrong answers were stored without their class, by another version: delete them, evaluate again"
)
"""Why nothing is known of a class that samples of another version do not have."""


MISSING = "missing"
"""The reason why a class lacks figures."""

COLUMNS = {
    "answers": "Answers",
    "share": "Share of all",
    "within_problem_auc": "AUC within a problem",
    "auc": "AUC",
    "logprob_within_problem_auc": "The log-prob's within a problem",
    MISSING: "Why figures are missing",
}
"""The columns of a table for people, and their titles."""


def tabulate_errors(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for people for each class: its name as ``error``, and `COLUMNS` where any row has one.

    A column that no class has a figure in, as those of scores where a task has none, is left out, and no row
    says why it lacks it.
    """
    table: Mapping[str, Mapping[str, Any]] = summary.get(ERRORS) or {}
    figures = [name for name in COLUMNS if name != MISSING]
    kept = [name for name in figures if any(row.get(name) is not None for row in table.values())]
    rows = {name: {"error": name, **{key: row.get(key) for key in kept}} for name, row in table.items()}
    why = {name: table[name].get(MISSING) for name, row in rows.items() if None in row.values()}
    return [row | ({MISSING: why.get(name)} if any(why.values()) else {}) for name, row in rows.items()]


Boxes = Mapping[str, Sequence[float]]
"""The true boxes by problem id."""
HEADLINE = "soft"
"""The way of reading scores that a metric uses if neither its name nor an evaluation says another."""
OTHER_SCORES = ("sampled", "greedy", "logprob")
"""The other ways of reading scores, and the answer's mean log-probability, which are always measured."""
BESIDE = (FUSED, *TEXT_RULES)
"""Scores that no model wrote; they are measured where samples have them."""


class SampleTable:
    """Samples as arrays, one row per problem in order of first appearance, one column per sample.

    Answers count as boxes when no sample has a key and every readable answer is a list of four numbers.

    Args:
        samples: The same number of samples, G, for every problem.
        order: The problem ids in the order of the rows; by default in order of first appearance.
        target_boxes: The true boxes, which boxes that a vote makes are judged by.
        headline: The scores that metrics read.
        errors: The classes of error that the task names (`Task.errors`).

    Attributes:
        problems: The P problem ids.
        keys: int ``[P, G]``, answers as numbers that are equal inside a problem exactly for equal answers;
            -1 for unreadable answers, and for all boxes.
        correct: ``[P, G]`` in {0, 1}.
        scores: Scores ``[P, G]`` by decoding or verifier, and ``logprob``; NaN where there is none.
        rewards: Rewards ``[P, G]`` by name; NaN where a sample has none of that name.
        boxes: ``[P, G, 4]``, NaN for unreadable answers; None unless the answers are boxes.
        targets: The true boxes ``[P, 4]``, where answers are boxes and the true ones are known.
        talks: How long conversations were and how they ended ``[P, G]``, by name (`talk_figures`); empty
            where the policy has always spoken once.
        errors: Which samples ``[P, G]`` are of each class of error; empty where there are no classes.
        unclassed: How many wrong answers were stored without their classes.
        headline: The name of the scores that a metric reads if its name has no other.
        comparable: Whether it can be said which answers are the same; not of conversations without an answer.
            Votes have no figures then.

    Raises:
        DataError: There are no samples, problems have different numbers of them, or answers are boxes and a
            problem has no target box.
    """

    def __init__(
        self,
        samples: Sequence[StoredSample],
        order: Sequence[str] | None = None,
        target_boxes: Boxes | None = None,
        headline: str = HEADLINE,
        errors: Sequence[str] = (),
    ) -> None:
        groups = by_problem(samples)
        if not groups:
            raise DataError("there are no samples to evaluate")
        self.problems, self.headline = list(groups if order is None else order), headline
        rows = [groups[problem] for problem in self.problems]
        for problem, row in zip(self.problems, rows, strict=True):
            if len(row) != len(rows[0]):
                raise DataError(
                    f"problem {problem!r} has {len(row)} samples, but {self.problems[0]!r} has "
                    f"{len(rows[0])}; every problem needs the same number"
                )

        ordered = [sample for row in rows for sample in row]

        def array(values: Iterable[float | None]) -> Floats:
            return np.array([*values], dtype=np.float64).reshape(len(rows), -1)

        decodings = dict.fromkeys([*DECODINGS, *(name for sample in samples for name in sample.scores)])
        names = sorted({name for sample in samples for name in sample.rewards})
        self.keys = np.array([number_keys([sample.key for sample in row]) for row in rows])
        self.correct = array(s.correct for s in ordered)
        self.scores = {name: array(s.scores.get(name) for s in ordered) for name in decodings}
        self.scores["logprob"] = array(s.logprob for s in ordered)
        self.rewards = {name: array(s.rewards.get(name) for s in ordered) for name in names}
        self.boxes: Floats | None = None
        self.targets: Floats | None = None
        boxes = box_array([sample.answer for sample in ordered], [sample.key for sample in ordered])
        if boxes is not None:
            self.boxes = boxes.reshape(len(rows), -1, 4)
            self.targets = None if target_boxes is None else _targets(self.problems, target_boxes)
        self.talks = talk_figures(rows)
        self.errors, self.unclassed = error_classes(rows, errors)
        comparable = boxes is not None or not self.talks
        self.comparable = comparable or any(sample.key is not None for sample in ordered)

    def reward(self, name: str) -> Floats:
        """The rewards ``[P, G]`` called ``name``, NaN where a sample has none."""
        return self.rewards.get(name, np.full(self.correct.shape, np.nan))

    def candidates(self, score: str) -> Candidates:
        """The samples as candidates ``[P, G]`` with the scores of that name, of which there may be none.

        Boxes have no clusters yet; `Candidates.take` makes them.
        """
        values = self.scores.get(score, np.full(self.correct.shape, np.nan))
        return Candidates(self.keys, values, self.boxes, self.correct)


def _targets(problems: Sequence[str], target_boxes: Boxes) -> Floats:
    if missing := [problem for problem in problems if problem not in target_boxes]:
        raise DataError(f"no target box for {len(missing)} problems, such as {missing[:3]}")
    return np.array([target_boxes[problem] for problem in problems], dtype=np.float64)


def by_problem(samples: Sequence[StoredSample]) -> dict[str, list[StoredSample]]:
    """Return each problem's samples, ordered by number; problems come in order of first appearance."""
    groups: dict[str, list[StoredSample]] = {}
    for sample in samples:
        groups.setdefault(sample.problem, []).append(sample)
    return {problem: sorted(rows, key=lambda sample: sample.sample) for problem, rows in groups.items()}


def accuracy(table: SampleTable, strategy: str, n: int, score: str | None = None) -> Floats | None:
    """Return the expected correctness ``[P]`` of what a strategy chooses from n of the G samples.

    ``score`` names the scores; None takes the table's headline.

    The result is None where the strategy needs scores and there are none, where it counts equal answers and
    it is not known which are equal, or where it answers with a box of its own and there are no targets. See
    `selfverify.selection.strategies.expected_correctness`.
    """
    chooser, score = find_strategy(strategy), score or table.headline
    if chooser.needs == "score" and np.isnan(table.scores.get(score, np.nan)).all():
        return None
    if chooser.compares and not table.comparable:
        return None
    if table.boxes is not None and chooser.votes is not None and table.targets is None:
        return None
    return expected_correctness(chooser, table.candidates(score), n, targets=table.targets)


def curves(table: SampleTable) -> dict[str, list[float] | None]:
    """Return accuracies for N = 1..G, averaged over problems and size-N subsets of the G samples.

    There is a curve for every strategy (of the headline's scores) by its `Strategy.figure`, and
    ``best_sampled``, ``best_greedy`` and ``best_logprob``, and ``best_soft`` where the headline is
    another; None where `accuracy` has none.
    """

    def curve(strategy: str, score: str = table.headline) -> list[float] | None:
        sizes = range(1, table.correct.shape[1] + 1)
        known = [row for n in sizes if (row := accuracy(table, strategy, n, score)) is not None]
        return [float(row.mean()) for row in known] or None

    found = {strategy.figure: curve(strategy.name) for strategy in STRATEGIES.values()}
    return found | {f"best_{score}": curve("best", score) for score in other_scores(table)}


def other_scores(table: SampleTable) -> tuple[str, ...]:
    """The ways of reading scores that are measured beside the headline's."""
    return OTHER_SCORES if table.headline == HEADLINE else (HEADLINE, *OTHER_SCORES)


def other_reading(headline: str) -> str:
    """The reading of scores whose figures have intervals beside the headline's: written, or soft."""
    return "sampled" if headline == HEADLINE else HEADLINE


def statistics(table: SampleTable) -> dict[str, Statistic]:
    """Return the headline metrics by name, as functions of problem weights.

    ``logprob.*`` is the free baseline that a score has to beat: the answer's mean log-probability.
    ``sampled.*``, or ``soft.*``, is of the `other_reading` of scores.
    ``fused.*`` is there where samples have a score of that name (`selfverify.evaluation.calibrate`), and so
    are ``text_rule.*`` and ``text_rule_read.*`` (`selfverify.evaluation.samples`).
    ``errors.*`` is there where samples, or the task, have classes of error (`error_statistics`).
    ``conversations.*`` and the counts of tools are there where the policy has spoken more than once.
    """
    total = table.correct.shape[1]
    score, correct, first = table.scores[table.headline], table.correct, table.reward(CORRECT_1)
    accuracies = {s.at(total): accuracy(table, s.name, total) for s in STRATEGIES.values()}
    best, voted = accuracies[f"best@{total}"], accuracies[f"majority@{total}"]
    accuracies[f"best_over_majority@{total}"] = None if best is None or voted is None else best - voted
    readable = table.reward("format")
    others: dict[str, Floats | None] = {
        f"logprob.best@{total}": accuracy(table, "best", total, "logprob"),
        "logprob.within_problem_auc": within_problem_auc(table.scores["logprob"], correct),
        "score_mean": row_mean(score),
        "score_spread": spread(score),
        "format_rate": row_mean(np.where(np.isnan(readable), np.nan, readable > 0)),
    }
    for name in _told_beside(table):
        others |= {
            f"{name}.best@{total}": accuracy(table, "best", total, name),
            f"{name}.weighted@{total}": accuracy(table, "weighted", total, name),
            f"{name}.within_problem_auc": within_problem_auc(table.scores[name], correct),
        }
    return {
        **_means(accuracies),
        **ranking_statistics(score, correct),
        **_means(others),
        "score_right": _mean_score(score, correct > 0.5),
        "score_wrong": _mean_score(score, correct <= 0.5),
        **error_statistics(table),
        # A lost conversation has no first answer, and counts as wrong.
        **({} if np.isnan(first).all() else turn_statistics(np.nan_to_num(first), correct)),
        **_means({f"conversations.{name}": row_mean(values) for name, values in table.talks.items()}),
        **_means({f"rewards.{n}": row_mean(table.rewards[n]) for n in TOOL_COUNTS if n in table.rewards}),
    }


def _mean_score(score: Floats, of: NDArray[np.bool_]) -> Statistic:
    """The mean of the scores ``[P, G]`` of some answers, each with the same weight."""
    known = of & ~np.isnan(score)
    return ratio_statistic(np.where(known, score, 0.0).sum(-1), known.sum(-1))


def _told_beside(table: SampleTable) -> list[str]:
    """The other reading, and those scores of `BESIDE` that there are."""
    return [other_reading(table.headline), *(name for name in BESIDE if name in table.scores)]


def _means(per_problem: Mapping[str, Floats | None]) -> dict[str, Statistic]:
    return {
        name: mean_statistic(values, signed=name.startswith("best_over_majority"))
        for name, values in per_problem.items()
        if values is not None
    }


def summarise(
    samples: Sequence[StoredSample],
    target_boxes: Boxes | None = None,
    headline: str = HEADLINE,
    errors: Sequence[str] = (),
) -> dict[str, Any]:
    """Return all metrics of a sample set, ready for JSON.

    Args:
        samples: The same number of samples, G, for every problem.
        target_boxes: The true boxes, which a majority vote over boxes is judged by.
        headline: The scores that the figures read (`EvaluationConfig.score`).
        errors: The classes of error that the task names (`Task.errors`).

    Raises:
        DataError: There are no samples, problems have different numbers of them, or answers are boxes and a
            problem has no target box.
    """
    table = SampleTable(samples, None, target_boxes, headline, errors)
    problems, total = table.correct.shape
    found = statistics(table)
    values = {name: _number(statistic.on_all()) for name, statistic in found.items()}
    tables: dict[str, dict[str, float | None]] = {}
    for table_name in ("turns", "conversations", *_told_beside(table)):
        own = {name.partition(".")[2]: v for name, v in values.items() if name.startswith(f"{table_name}.")}
        tables |= {table_name: own} if own else {}
    for name in dict.fromkeys([*other_scores(table), *_told_beside(table)]):
        read, best = table.scores[name], accuracy(table, "best", total, name)
        ranking = ranking_statistics(read, table.correct)
        tables[name] = {
            f"best@{total}": None if best is None else float(best.mean()),
            **{figure: _number(statistic.on_all()) for figure, statistic in ranking.items()},
            **tables.get(name, {}),
        }
    score = table.scores[headline]
    score = score[~np.isnan(score)]
    return {
        **{strategy.at(total): None for strategy in STRATEGIES.values()},
        f"best_over_majority@{total}": None,
        **{name: value for name, value in values.items() if "." not in name},
        **tables,
        **({ERRORS: error_table(table, values)} if table.errors else {}),
        "score": headline,
        "problems": problems,
        "samples": problems * total,
        "samples_per_problem": total,
        # A task's parts may apply to some problems only.
        "rewards": {name: float(reward[~np.isnan(reward)].mean()) for name, reward in table.rewards.items()},
        "unjudged": sum(sample.finish == Finish.ERROR for sample in samples),
        "reliability": reliability(table.scores[headline], table.correct),
        "score_std": float(score.std()) if len(score) else None,
        "curves": curves(table),
        "intervals": {name: interval([measure(statistic)]) for name, statistic in found.items()},
    }


def paired_difference(
    a: Sequence[StoredSample],
    b: Sequence[StoredSample],
    headline: str = HEADLINE,
    metrics: Sequence[Metric] = (),
) -> dict[str, dict[str, Any]]:
    """Return how much higher each headline metric is in run ``b`` than in run ``a``, on the same problems.

    Args:
        a: Samples.
        b: Samples about the same problems.
        headline: The scores that metrics read.
        metrics: The task's figures, which are told of single answers under names that begin with
            ``metrics.``; one that is given only where another reaches a number is left out.

    Returns:
        `compare`'s values by metric, for those that are defined in both runs. Where other problems are mixed
        in one than in the other, `MIXED_BOTH` has the within-problem AUC of those that are in both,
        ``before`` and ``after``, too: training can change which problems an AUC is about.

    Raises:
        DataError: The runs are not about the same problems; the message names some that differ.
    """
    first = SampleTable(a, headline=headline)
    only_a = set(first.problems) - {sample.problem for sample in b}
    only_b = {sample.problem for sample in b} - set(first.problems)
    if only_a or only_b:
        raise DataError(
            "a paired comparison needs the same problems in both runs; "
            f"only in the first: {sorted(only_a)[:5] or 'none'}, "
            f"only in the second: {sorted(only_b)[:5] or 'none'}"
        )
    second = SampleTable(b, order=first.problems, headline=headline)
    left, right = (
        {name: measure(one) for name, one in (statistics(table) | _of_singles(table, metrics)).items()}
        for table in (first, second)
    )
    changes = {name: compare([right[name] - left[name]]) for name in left if name in right}
    found = {name: change for name, change in changes.items() if not math.isnan(change["difference"])}
    before, after = left["within_problem_auc"], right["within_problem_auc"]
    if (before.used & after.used).any() and (before.used != after.used).any():
        same = on_shared(before, after), on_shared(after, before)
        values = {"before": same[0].value, "after": same[1].value}
        found[MIXED_BOTH] = values | compare([same[1] - same[0]])
    return found


MIXED_BOTH = "mixed_both.within_problem_auc"
"""The within-problem AUC of problems that have right and wrong answers with a score in both runs."""


def _of_singles(table: SampleTable, metrics: Sequence[Metric]) -> dict[str, Statistic]:
    found = {}
    for metric in metrics:
        part = table.reward(metric.part)
        over = ~np.isnan(part) if metric.over is None else table.reward(metric.over)
        over = np.ones_like(part) if metric.over == EVERY else over
        if metric.needs is None:
            statistic = ratio_statistic(np.nansum(part, axis=-1), np.nansum(over, axis=-1))
            found[f"metrics.{metric.name}"] = statistic
    return found


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
