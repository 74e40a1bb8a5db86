"""Rules of choosing one of several, which free answers are the same, and clusters of boxes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selected import majority_weights
from selfverify.selection.rules import Candidates, best_weights, box_iou, cluster_boxes, read_answer
from selfverify.selection.strategies import STRATEGIES, expected_correctness

NAN = float("nan")


def chosen(strategy, keys, correct, score=None, **options):
    """Expected correctness of a strategy's choice among all candidates."""
    score = np.full(np.shape(correct), NAN) if score is None else np.array(score)
    arrays = Candidates(np.array(keys), score, options.pop("boxes", None), np.array(correct, float))
    return expected_correctness(STRATEGIES[strategy], arrays, **options)


def majority(keys, correct):
    return chosen("majority", keys, correct)


def majority_box(boxes, target):
    arrays = {"boxes": boxes[None], "targets": [target]}
    return chosen("majority", np.full((1, len(boxes)), -1), np.zeros((1, len(boxes))), **arrays)


def test_majority_ties_are_an_expectation_over_answers():
    """Votes 2 : 2 : 1, and one of the two tied answers is right: 1/2."""
    np.testing.assert_allclose(majority([[0, 0, 1, 1, 2]], [[1, 1, 0, 0, 0]]), [0.5])
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
    got = majority([keys], [[correct[key + 1] for key in keys]])
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


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("text", "A red  Car.", "a red car"),
        ("text", "1,234.50", "1234.5"),
        ("text", "3.0", "+3"),
        ("text", "50.0%", "50%"),
        ("set", "3, 4 7", "[7 4 3]"),
        ("set", "3.0 blue", "Blue 3"),
    ],
)
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
