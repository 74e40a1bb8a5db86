"""Strategies against hand-worked cases, their limits, and the paper's clustering."""

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
    cluster_boxes,
    consensus_boxes,
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
