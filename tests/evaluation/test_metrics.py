"""Metrics against hand-worked cases, brute force and scikit-learn."""

import dataclasses
import json
from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from samples import sample, turned
from selected import majority_weights
from selfverify.core.errors import DataError
from selfverify.evaluation.metrics import SampleTable, curves, paired_difference, summarise
from selfverify.evaluation.samples import StoredSample
from selfverify.evaluation.statistics import (
    auc_statistic,
    average_precision_statistic,
    interval,
    mean_statistic,
    measure,
    spread,
    within_problem_auc,
)
from selfverify.selection.rules import (
    Candidates,
    best_weights,
    box_iou,
    cluster_boxes,
)
from selfverify.selection.strategies import DEFAULTS, STRATEGIES, expected_correctness

NAN = float("nan")


def best_of_n(score, correct):
    return (best_weights(score) * correct).sum(-1)


def majority(keys, correct):
    return (majority_weights(keys) * correct).sum(-1)


def arrays(seed=0, problems=30, total=6, missing=0.1):
    """Scores on a coarse grid (so that ties occur), some missing, higher for right answers."""
    rng = np.random.default_rng(seed)
    correct = (rng.random((problems, total)) < rng.random((problems, 1))).astype(float)
    score = np.round(rng.random((problems, total)) * 0.7 + 0.3 * correct, 1)
    score[rng.random(score.shape) < missing] = np.nan
    return score, correct


def samples_of(score, correct, prefix="p", **changes):
    """Samples with these soft scores; wrong answers share the key "wrong"."""
    result = []
    for p, (row, right) in enumerate(zip(score, correct, strict=True)):
        for k, (value, ok) in enumerate(zip(row, right, strict=True)):
            key = "right" if ok else "wrong"
            soft = None if np.isnan(value) else float(value)
            scores = {"soft": soft, "greedy": soft, "sampled": None}
            fields = {"answer": key, "key": key, "logprob": -0.1 * k, "scores": scores}
            result.append(sample(f"{prefix}{p}", k, bool(ok), soft, **(fields | changes)))
    return result


def test_within_problem_auc_by_hand():
    """Right .9 and .4, wrong .5 and .4: pairs won 2 + ½ of 4, 0.625. All right, or no scores: undefined."""
    score = [[0.9, 0.4, 0.5, 0.4], [0.1, 0.2, 0.3, 0.4], [NAN, 0.2, NAN, 0.1]]
    correct = [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 1, 0]]
    np.testing.assert_allclose(within_problem_auc(score, correct), [0.625, NAN, NAN])


def test_within_problem_auc_equals_sklearn_problem_by_problem():
    score, correct = arrays()
    for value, row, right in zip(within_problem_auc(score, correct), score, correct, strict=True):
        kept = ~np.isnan(row)
        if 0 < right[kept].sum() < kept.sum():
            assert value == pytest.approx(roc_auc_score(right[kept], row[kept]))
        else:
            assert np.isnan(value)


def test_pooled_auc_can_be_perfect_where_selection_gains_nothing():
    """A score that only knows which problem is hard: pooled AUC 0.75, within-problem 0.5.

    AP: at .9 precision 3/4 and recall 3/4, then precision 4/8 for the last quarter of recall.
    """
    score, correct = [[0.9] * 4, [0.1] * 4], [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert auc_statistic(score, correct).on_all() == pytest.approx(0.75)
    precision = average_precision_statistic(score, correct).on_all()
    assert precision == pytest.approx(3 / 4 * 3 / 4 + 1 / 4 * 1 / 2)
    np.testing.assert_allclose(within_problem_auc(score, correct), [0.5, 0.5])


def test_spread_by_hand():
    """Scores .2 and .6: mean .4, deviations .2, standard deviation .2; a single score has none."""
    np.testing.assert_allclose(spread([[0.2, 0.6, NAN], [0.5, NAN, NAN]]), [0.2, NAN])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_engine_equals_the_mean_over_all_subsets(name, n):
    """Each strategy on every size-n subset on its own, averaged: closed forms and sums over subsets agree."""
    score, correct = arrays(missing=0.3)
    keys = np.random.default_rng(1).integers(-1, 3, correct.shape)
    strategy, whole = STRATEGIES[name], Candidates(keys, score, None, correct)
    subsets = [list(subset) for subset in combinations(range(6), n)]
    if name == "first":
        expected = correct.mean(-1)
    else:
        taken = [Candidates(keys[:, s], score[:, s], None, correct[:, s]) for s in subsets]
        expected = np.mean([(strategy.weigh(t, DEFAULTS) * t.correct).sum(-1) for t in taken], axis=0)
    np.testing.assert_allclose(expected_correctness(strategy, whole, n), expected, atol=1e-12)


@pytest.mark.parametrize("name", ["majority", "weighted"])
@pytest.mark.parametrize("n", [1, 3, 5])
def test_the_engine_judges_the_boxes_that_votes_make(name, n):
    """Subset by subset: cluster the boxes, add up votes, take the mean box of the largest clusters."""
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 4, (6, 5, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 9, (6, 5, 2))], axis=-1)
    boxes[0, :4] = NAN
    score, targets = rng.random((6, 5)).round(1), boxes[:, 4] + 0.3
    expected = []
    for own, values, target in zip(boxes, score, targets, strict=True):
        right = []
        for subset in map(list, combinations(range(5), n)):
            ids, _ = cluster_boxes(own[subset])
            weights = np.exp(values[subset] / 0.1) if name == "weighted" else np.ones(n)
            votes = {key: weights[ids == key].sum() for key in set(ids.tolist()) - {-1}}
            top = [key for key, vote in votes.items() if vote >= max(votes.values()) * (1 - 1e-9)]
            made = [np.average(own[subset][ids == k], axis=0, weights=weights[ids == k]) for k in top]
            right.append(np.mean([box_iou(box, target) > 0.5 for box in made]) if made else 0.0)
        expected.append(np.mean(right))
    whole = Candidates(np.full((6, 5), -1), score, boxes, np.zeros((6, 5)))
    found = expected_correctness(STRATEGIES[name], whole, n, targets=targets)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_majority_over_sampled_subsets_is_close_and_repeatable():
    """C(12, 6) = 924 subsets are sampled. Independent answers with two keys: the exact mean is within .02."""
    _, correct = arrays(total=12, problems=60)
    table = SampleTable(samples_of(correct, correct))
    subsets = [list(subset) for subset in combinations(range(12), 6)]
    exact = np.mean([majority(table.keys[:, subset], correct[:, subset]).mean() for subset in subsets])
    first, again = curves(table), curves(table)
    assert first == again
    assert first["majority"][5] == pytest.approx(exact, abs=0.02)


def test_weighted_statistics_equal_sklearn_on_repeated_problems():
    score, correct = arrays()
    weights = np.random.default_rng(2).integers(0, 4, (5, 30)).astype(float)
    kept = ~np.isnan(score)
    auc = auc_statistic(score, correct).of(weights)
    ap = average_precision_statistic(score, correct).of(weights)
    for row, weight in enumerate(weights):
        each = np.broadcast_to(weight[:, None], score.shape)[kept]
        assert auc[row] == pytest.approx(roc_auc_score(correct[kept], score[kept], sample_weight=each))
        assert ap[row] == pytest.approx(
            average_precision_score(correct[kept], score[kept], sample_weight=each)
        )


def test_interval_of_a_share():
    """Wilson's, at t of 99 degrees: 36 of 100 are .273 to .459; of 20 of 20 the lower end is 20/(20 + t²)."""
    of = [
        np.repeat([1.0, 0.0], [36, 64]),
        np.ones(20),
        np.full(10, NAN),
        np.full(10, 0.5),
        np.arange(3) - 1.0,
    ]
    ends = [interval([measure(mean_statistic(values))]) for values in of]
    t = stats.t.ppf(0.975, [99, 19, 2])
    n = 99  # the variance of a mean divides by n - 1
    centre, half = 0.36 + t[0] ** 2 / 2 / n, t[0] * np.sqrt((0.36 * 0.64 + t[0] ** 2 / 4 / n) / n)
    assert ends[0] == pytest.approx((np.array([centre - half, centre + half])) / (1 + t[0] ** 2 / n))
    assert ends[1] == pytest.approx([20 / (20 + t[1] ** 2), 1.0])
    assert ends[2] is None and ends[3] is None
    assert ends[4] == pytest.approx([-t[2] / 3**0.5, t[2] / 3**0.5])  # no share: Student's own


def test_paired_difference_uses_the_same_problems():
    """Every problem gains exactly one of four answers: the difference is .25 without any spread."""
    rng = np.random.default_rng(3)
    before = np.array([rng.permutation([1, 0, 0, k % 2]) for k in range(20)], dtype=float)
    after = before.copy()
    for row in after:
        row[np.flatnonzero(row == 0)[0]] = 1
    a, b = samples_of(before, before), samples_of(after, after)
    found = paired_difference(a, b[::-1])["pass@1"]
    assert found["difference"] == pytest.approx(0.25)
    assert found["interval"] is None


def test_summary_has_the_promised_keys_and_agrees_with_sklearn():
    score, correct = arrays(problems=40, total=8)
    found = summarise(samples_of(score, correct))
    kept = ~np.isnan(score)
    assert found["pass@1"] == pytest.approx(correct.mean())
    assert found["best@8"] == pytest.approx(best_of_n(score, correct).mean())
    assert found["auc"] == pytest.approx(roc_auc_score(correct[kept], score[kept]))
    assert found["ap"] == pytest.approx(average_precision_score(correct[kept], score[kept]))
    assert found["greedy"]["auc"] == pytest.approx(found["auc"])
    assert found["sampled"] == {"best@8": None, "auc": None, "ap": None, "within_problem_auc": None}
    assert found["logprob"]["best@8"] == pytest.approx(correct[:, 0].mean())
    assert (found["problems"], found["samples"], found["format_rate"]) == (40, 320, 1.0)
    for name in ("pass@1", "majority@8", "best@8", "oracle@8", "auc", "ap", "within_problem_auc"):
        low, high = found["intervals"][name]
        assert low <= found[name] <= high
    assert found["best_over_majority@8"] == pytest.approx(found["best@8"] - found["majority@8"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("correct", [0.0, 1.0])
def test_what_cannot_be_measured_is_none(correct):
    found = summarise(samples_of(np.full((3, 2), NAN), np.full((3, 2), correct)))
    for name in ("auc", "ap", "within_problem_auc", "best@2", "score_mean", "score_std", "score_spread"):
        assert found[name] is None, name
    assert found["curves"]["best"] is None
    json.dumps(found, allow_nan=False)
    found = summarise(samples_of(np.full((3, 2), 0.5), np.full((3, 2), correct)))
    assert (found["auc"], found["ap"], found["intervals"]["ap"], found["best@2"]) == (
        None, None, None, correct,
    )  # fmt: skip


def test_samples_that_do_not_fit_are_named():
    score, correct = arrays(problems=3)
    whole = samples_of(score, correct)
    with pytest.raises(DataError, match="'p2' has 5 samples, but 'p0' has 6"):
        summarise(whole[:-1])
    with pytest.raises(DataError, match="no samples"):
        summarise([])
    other = whole[:12] + samples_of(score[:1], correct[:1], prefix="q")
    with pytest.raises(DataError, match=r"only in the first: \['p2'\], only in the second: \['q0'"):
        paired_difference(whole, other)


def test_boxes_vote_by_clusters_and_need_targets():
    """Two near boxes outvote a far one; the target is near them: majority right, though pass@1 is 2/3."""
    answers = [[0, 0, 10, 1], [30, 0, 40, 1], [1, 0, 11, 1]]
    correct = [True, False, True]
    samples = [
        StoredSample("p", k, "", box, None, right, {"answer": 1.0}, {"soft": 0.5}, 1, None, "stop", 0)
        for k, (box, right) in enumerate(zip(answers, correct, strict=True))
    ]
    found = summarise(samples, {"p": [0, 0, 10, 1]})
    assert found["majority@3"] == 1
    assert found["pass@1"] == pytest.approx(2 / 3)
    assert found["format_rate"] is None
    without = summarise(samples)
    assert without["majority@3"] is None
    assert without["curves"]["majority"] is None
    with pytest.raises(DataError, match=r"no target box for 1 problems, such as \['p'\]"):
        summarise(samples, {})


def test_every_figure_reads_scores_as_asked() -> None:
    """Written scores that are right where the soft ones are wrong, and the other way round."""
    soft, correct = arrays(seed=3, missing=0.0)
    samples = [
        dataclasses.replace(
            s, scores={"soft": s.scores["soft"], "greedy": None, "sampled": 1 - s.scores["soft"]}
        )
        for s in samples_of(soft, correct)
    ]
    written, plain = summarise(samples, headline="sampled"), summarise(samples)
    assert (written["score"], plain["score"]) == ("sampled", "soft")
    for name in ("auc", "within_problem_auc", "best@6"):
        assert written[name] == pytest.approx(plain["sampled"][name])
        assert written["soft"][name] == pytest.approx(plain[name])
    assert written["auc"] == pytest.approx(1 - plain["auc"]) and written["auc"] < 0.5
    assert written["curves"]["best"] == plain["curves"]["best_sampled"]
    assert written["curves"]["best_soft"] == plain["curves"]["best"] and "soft" not in plain
    assert written["score_mean"] == pytest.approx(1 - plain["score_mean"])
    assert written["majority@6"] == plain["majority@6"]
    worse = paired_difference(samples, samples_of(soft, correct), headline="soft")
    assert worse["auc"]["difference"] == 0


def test_one_that_is_lost_counts_as_wrong_and_hides_no_figure() -> None:
    """Of single answers it makes no conversations; of two turns both are wrong."""
    lost = {"lost": True, "finish": "error", "rewards": {"answer": 0.0}, "tokens": 0}
    single = [sample(f"p{n}", k, k < 2, k / 4) for n in range(5) for k in range(4)]
    single[0] = sample("p0", 0, False, None, key=None, answer=None, **lost)
    found = summarise(single)
    assert "conversations" not in found and found["unjudged"] == 1
    assert found["pass@1"] == pytest.approx(9 / 20) and found["majority@4"] is not None
    pairs = [*turned("01 01 11"), sample("p3", 0, False, None, **lost)]
    turns = summarise(pairs)["turns"]
    assert (turns["acc@t1"], turns["acc@t2"]) == (0.25, 0.75)
    assert "conversations" in summarise([sample("p0", 0, False, None, **lost)])
