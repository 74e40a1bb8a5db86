"""Strategies and rules against hand-worked cases, their limits, the paper's clustering, and free answers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selected import majority_weights, weighted_weights
from selfverify.core.errors import ConfigError, DataError
from selfverify.selection.rules import (
    Candidate,
    Candidates,
    best_of_majority_weights,
    best_weights,
    box_iou,
    cluster_boxes,
    consensus_boxes,
    read_answer,
    support,
    vote_weights,
)
from selfverify.selection.strategies import (
    STRATEGIES,
    StrategyConfig,
    choose,
    expected_correctness,
    find_strategy,
)
from tables import yaml_cases

NAN = float("nan")


def candidates(*pairs, **changes):
    """Candidates from (key, score) pairs."""
    return [Candidate(key, key, score, **changes) for key, score in pairs]


def test_votes_by_hand():
    """Scores ln 3, 0 and missing at temperature 1: votes 3 : 1 : 0. Nobody scored: all the same."""
    np.testing.assert_allclose(vote_weights([np.log(3), 0.0, NAN], 1.0), [0.75, 0.25, 0])
    np.testing.assert_allclose(vote_weights([NAN, NAN], 1.0), [0.5, 0.5])
    with pytest.raises(ValueError, match="above 0"):
        vote_weights([0.5], 0.0)


def test_weighted_vote_by_hand():
    """Answers a, a, b with scores 0, 0, ln 3: votes 1 + 1 against 3, b wins. With b at ln 1.5, a does."""
    np.testing.assert_allclose(weighted_weights([0, 0, 1], [0, 0, np.log(3)], 1.0), [0, 0, 1])
    np.testing.assert_allclose(weighted_weights([0, 0, 1], [0, 0, np.log(1.5)], 1.0), [0.5, 0.5, 0])


def test_weighted_vote_ties_are_between_answers_not_holders():
    """a, a with votes 1 + 1 and b with vote 2 are tied: each answer has one half."""
    np.testing.assert_allclose(weighted_weights([0, 0, 1], [0, 0, np.log(2)], 1.0), [0.25, 0.25, 0.5])


def test_unreadable_answers_have_no_weighted_vote():
    np.testing.assert_allclose(weighted_weights([-1, 0, 1], [9.0, 0.2, 0.1], 0.1), [0, 1, 0])
    np.testing.assert_allclose(weighted_weights([-1, -1], [0.9, 0.1], 0.1), [0.5, 0.5])
    np.testing.assert_allclose(weighted_weights([-1, 0, 0], [0.9, NAN, NAN], 0.1), [0, 0.5, 0.5])


def test_best_of_majority_by_hand():
    """Of 4, half is needed: the lucky single answer at .9 may not win, .8 among the two that agree does."""
    keys, score = [0, 0, 1, 2], [0.3, 0.8, 0.9, 0.1]
    np.testing.assert_allclose(best_of_majority_weights(keys, score, 0.5), [0, 1, 0, 0])
    np.testing.assert_allclose(best_of_majority_weights(keys, score, 0.25), [0, 0, 1, 0])
    # Nobody has three quarters: the most frequent answer stays.
    np.testing.assert_allclose(best_of_majority_weights(keys, score, 0.75), [0, 1, 0, 0])
    # Frequent answers without scores: any of them.
    np.testing.assert_allclose(best_of_majority_weights([0, 0, 1], [NAN, NAN, 0.9], 0.5), [0.5, 0.5, 0])


rows = st.lists(st.tuples(st.integers(-1, 3), st.sampled_from([0.1, 0.4, 0.9])), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(rows)
def test_limits_of_the_weighted_vote(row):
    """Hot it is a majority vote, cold the best readable answer; all rules are distributions."""
    keys, score = np.array([k for k, _ in row]), np.array([s for _, s in row])
    np.testing.assert_allclose(weighted_weights(keys, np.zeros(len(row)), 1.0), majority_weights(keys))
    hot = weighted_weights(keys, score, 1e12)
    np.testing.assert_allclose(hot, majority_weights(keys), atol=1e-6)
    if (keys >= 0).any():
        top = {int(k) for k, s in row if k >= 0 and s == max(s for k, s in row if k >= 0)}
        cold = weighted_weights(keys, score, 1e-3)
        assert {int(k) for k in keys[cold > 0]} <= top
    for strategy in STRATEGIES.values():
        arrays = Candidates(keys, score, correct=(keys == 0).astype(float))
        assert strategy.weigh(arrays, StrategyConfig()).sum() == pytest.approx(1)
    np.testing.assert_allclose(
        best_of_majority_weights(keys, score, 0.0), best_weights(np.where(keys < 0, NAN, score))
        if (keys >= 0).any() else best_weights(score),
    )  # fmt: skip


def test_consensus_of_boxes_is_weighted():
    """[0, 0, 10, 1] with vote 3 and [2, 0, 12, 1] with vote 1 share a cluster: x from .5 to 10.5."""
    boxes = [[0, 0, 10, 1], [2, 0, 12, 1], [30, 0, 40, 1], [NAN] * 4]
    keys = cluster_boxes(boxes)[0]
    np.testing.assert_allclose(support(keys, [3, 1, 2, 9]), [4, 4, 2, 0])
    consensus = consensus_boxes(keys, boxes, [3, 1, 2, 9])
    np.testing.assert_allclose(consensus[:3], [[0.5, 0, 10.5, 1]] * 2 + [[30, 0, 40, 1]])
    assert np.isnan(consensus[3]).all()


def test_expected_correctness_of_boxes_judges_the_consensus():
    """Two loose boxes whose centroid hits the target; neither alone does (IoU 4.9/10.1 and 4.9/10.1)."""
    boxes = np.array([[[0, 0, 10, 1], [4, 0, 14, 1]]], dtype=float)
    target = [[2.0, 0.0, 12.0, 1.0]]
    loose = StrategyConfig(iou=0.3)
    c = Candidates(np.array([[0, 0]]), np.array([[0.5, 0.5]]), boxes, np.zeros((1, 2)))
    assert expected_correctness(STRATEGIES["majority"], c, None, loose, target) == 1
    assert expected_correctness(STRATEGIES["weighted"], c, None, loose, target) == 1
    assert expected_correctness(STRATEGIES["best"], c, None, loose, target) == 0
    with pytest.raises(ConfigError, match="targets"):
        expected_correctness(STRATEGIES["majority"], c, None, loose)


def test_choose_says_what_and_why():
    found = choose(candidates(("7", 0.2), ("9", 0.9), ("7", 0.3)), "best")
    assert (found.index, found.answer, found.score, found.votes, found.confidence) == (1, "9", 0.9, 1, 0.9)
    assert "0.90" in found.reason
    found = choose(candidates(("7", 0.2), ("9", 0.9), ("7", 0.3)), "majority")
    assert (found.index, found.votes, found.confidence) == (2, 2, pytest.approx(2 / 3))  # the better 7
    found = choose(
        candidates(("7", 0.2), ("9", 0.9), ("7", 0.3)), "weighted", StrategyConfig(temperature=1e9)
    )
    assert (found.answer, found.confidence) == ("7", pytest.approx(0.5 / 3))
    assert choose(candidates(("7", 0.2)), "best").index == 0  # N = 1


@pytest.mark.parametrize("strategy", ["best", "weighted", "best-of-majority"])
def test_without_scores_it_votes_and_says_so(strategy):
    found = choose(candidates(("a", None), ("b", None), ("b", None)), strategy)
    assert (found.answer, found.strategy) == ("b", "majority")
    assert "no readable answer has a score" in found.reason


def test_a_score_of_an_unreadable_answer_cannot_win():
    found = choose([Candidate(None, None, 1.0), Candidate("a", "a", 0.1)], "best")
    assert (found.index, found.answer) == (1, "a")


def test_all_malformed():
    found = choose(candidates((None, 0.9), (None, None)), "best")
    assert (found.answer, found.confidence, found.votes) == (None, 0.0, 0)
    assert "none of the 2" in found.reason


def test_equal_scores_fall_back_to_votes_then_likelihood_then_order():
    same = [Candidate("a", "a", 0.5), Candidate("b", "b", 0.5), Candidate("b", "b", 0.5, logprob=-0.1)]
    assert choose(same, "best").index == 2
    assert choose(same[:2], "best").index == 0


def test_choose_among_boxes():
    """Two near boxes outvote a far one with a better score; best takes the far one as it is."""
    boxes = [Candidate([0, 0, 10, 1], None, 0.4), Candidate([30, 0, 40, 1], None, 0.5),
             Candidate([2, 0, 12, 1], None, 0.45), Candidate(None, None, 0.9)]  # fmt: skip
    found = choose(boxes, "majority")
    assert (found.index, found.answer, found.votes) == (2, [1.0, 0.0, 11.0, 1.0], 2)
    assert choose(boxes, "best").answer == [30, 0, 40, 1]
    weighted = choose(boxes, "weighted", StrategyConfig(temperature=1.0))
    assert weighted.answer[0] == pytest.approx(2 / (1 + np.exp(-0.05)), abs=0.01)


def test_bad_requests_are_named():
    with pytest.raises(ConfigError, match=r"no strategy 'bst'; strategies: first, majority, best"):
        find_strategy("bst")
    with pytest.raises(ConfigError, match="analysis only"):
        choose(candidates(("a", 0.5)), "oracle")
    with pytest.raises(DataError, match="no candidates"):
        choose([])
    for wrong in ({"temperature": 0.0}, {"share": 1.5}, {"iou": -0.1}, {"temperature": NAN}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            StrategyConfig(**wrong)


# --- rules: majorities, clusters, free answers --------------------------------------------------------------


def chosen(strategy, keys, correct, score=None, **options):
    """Expected correctness of a strategy's choice among all candidates."""
    score = np.full(np.shape(correct), NAN) if score is None else np.array(score)
    arrays = Candidates(np.array(keys), score, options.pop("boxes", None), np.array(correct, float))
    return expected_correctness(STRATEGIES[strategy], arrays, **options)


def majority_of(keys, correct):
    return chosen("majority", keys, correct)


def majority_box(boxes, target):
    arrays = {"boxes": boxes[None], "targets": [target]}
    return chosen("majority", np.full((1, len(boxes)), -1), np.zeros((1, len(boxes))), **arrays)


def test_majority_ties_are_an_expectation_over_answers():
    """Votes 2 : 2 : 1, and one of the two tied answers is right: 1/2."""
    np.testing.assert_allclose(majority_of([[0, 0, 1, 1, 2]], [[1, 1, 0, 0, 0]]), [0.5])
    np.testing.assert_allclose(majority_weights([[0, 0, 1, 1, 2]]), [[0.25, 0.25, 0.25, 0.25, 0]])


def test_best_of_n_ties_and_missing_scores():
    """Scores .9 .9 .2 –: the two best are tied, one is right: 1/2. No scores at all: 3 of 4 right, 3/4."""
    np.testing.assert_allclose(chosen("best", [[0] * 4], [[1, 0, 1, 1]], [[0.9, 0.9, 0.2, NAN]]), [0.5])
    np.testing.assert_allclose(chosen("best", [[0] * 4], [[1, 0, 1, 1]]), [0.75])
    np.testing.assert_allclose(best_weights([[NAN, -5.0]]), [[0, 1]])


def test_pass_and_oracle():
    correct = [[1, 0, 0, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(chosen("first", [[0] * 4] * 2, correct), [0.25, 0])
    np.testing.assert_allclose(chosen("oracle", [[0] * 4] * 2, correct), [1, 0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 3), min_size=1, max_size=9), st.data())
def test_majority_equals_counting_by_hand(keys, data):
    correct = [data.draw(st.integers(0, 1), label=f"key {key}") for key in range(-1, 4)]
    readable = [key for key in keys if key >= 0]
    if readable:
        most = max(readable.count(key) for key in readable)
        winners = {key for key in readable if readable.count(key) == most}
        expected = sum(correct[key + 1] for key in winners) / len(winners)
    else:
        expected = correct[0]
    got = majority_of([keys], [[correct[key + 1] for key in keys]])
    np.testing.assert_allclose(got, [expected])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0.1, 0.5, 0.9, NAN]), min_size=1, max_size=8), st.randoms())
def test_weights_are_a_distribution_that_follows_its_candidates(score, random):
    """Shuffling the candidates shuffles the weights, and every rule keeps extra leading axes."""
    order = list(range(len(score)))
    random.shuffle(order)
    weights = best_weights(score)
    assert weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(best_weights(np.array(score)[order]), weights[order])
    np.testing.assert_allclose(best_weights([[score, score]])[0, 1], weights)


def test_iou_by_hand():
    """[0,0,2,2] and [1,0,3,2] share 1·2 of 4 + 4 − 2 = 6: 1/3. A box without area overlaps with nothing."""
    assert box_iou([0, 0, 2, 2], [1, 0, 3, 2]) == pytest.approx(1 / 3)
    assert box_iou([1, 1, 1, 1], [1, 1, 1, 1]) == 0
    assert box_iou([2, 2, 0, 0], [0, 0, 2, 2]) == 0


def test_online_clustering_by_hand():
    """Width-10 boxes of height 1, shifted by 0, 2, 20 and 3.

    Box 2 overlaps box 1 by 8 of 12: 0.67 > 0.5, joins, centroid [1, 11]. The third is alone. The fourth
    shares [3, 11] with that centroid, 8 of 12: joins, centroid shift (0 + 2 + 3) / 3 = 5/3.
    """
    boxes = [[x, 0, x + 10, 1] for x in (0, 2, 20, 3)]
    ids, centroids = cluster_boxes(boxes)
    assert ids.tolist() == [0, 0, 1, 0]
    np.testing.assert_allclose(centroids[:2], [[5 / 3, 0, 35 / 3, 1], [20, 0, 30, 1]])
    assert np.isnan(centroids[2:]).all()


def test_clustering_compares_with_the_centroid_not_with_a_member():
    """Shifts 0, 3, 6: the third shares 7 of 13 with the second box, .54, but 5.5 of 14.5 with [1.5, 11.5]."""
    ids, _ = cluster_boxes([[x, 0, x + 10, 1] for x in (0, 3, 6)])
    assert ids.tolist() == [0, 0, 1]


def test_majority_box():
    """The largest cluster's centroid [1, 0, 11, 1] overlaps the target [0, 0, 10, 1] by 9 of 11: right."""
    boxes = np.array([[0, 0, 10, 1], [20, 0, 30, 1], [2, 0, 12, 1], [NAN] * 4])
    assert majority_box(boxes, [0, 0, 10, 1]) == 1
    assert majority_box(boxes, [20, 0, 30, 1]) == 0
    assert majority_box(boxes[:2], [20, 0, 30, 1]) == 0.5
    assert majority_box(boxes[3:], [20, 0, 30, 1]) == 0


def _cluster_one_by_one(boxes):
    clusters, ids = [], []
    for box in boxes:
        overlaps = [float(box_iou(box, np.mean(members, axis=0))) for members in clusters]
        if overlaps and max(overlaps) > 0.5:
            ids.append(int(np.argmax(overlaps)))
            clusters[ids[-1]].append(box)
        else:
            ids.append(len(clusters))
            clusters.append([box])
    return ids, [np.mean(members, axis=0) for members in clusters]


def test_clustering_of_many_problems_equals_the_plain_loop():
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 12, (40, 7, 2))
    boxes = np.concatenate([corner, corner + rng.uniform(5, 15, (40, 7, 2))], axis=-1)
    ids, centroids = cluster_boxes(boxes)
    for row in range(40):
        expected, means = _cluster_one_by_one(boxes[row])
        assert ids[row].tolist() == expected
        np.testing.assert_allclose(centroids[row, : len(means)], means)


# --- free answers -------------------------------------------------------------------------------------------


@yaml_cases
def test_same(kind, one, other):
    assert read_answer(one, kind)[1] == read_answer(other, kind)[1] is not None


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [("text", "3 4 7", "7 4 3"), ("text", "50%", "50"), ("set", "3 3 4", "3 4"), ("text", "12", "1 2")],
)
def test_different(kind, one, other):
    assert read_answer(one, kind)[1] != read_answer(other, kind)[1]


def test_boxes():
    assert read_answer("[1, 2, 3.5, 4]", "box") == ([1, 2, 3.5, 4], None)
    for wrong in ("1 2 3", "3 2 1 4", "1 2 1e9 4", "a b c d", "1 2 nan 4", ""):
        assert read_answer(wrong, "box") == (None, None)


def test_nothing_and_far_too_much_are_unreadable():
    for kind in ("text", "set"):
        assert read_answer("  ", kind) == read_answer("x" * 2001, kind) == (None, None)
    assert read_answer("[ ]", "set") == (None, None)
    assert read_answer("9" * 1500, "text")[1] == "9" * 1500  # never a float
