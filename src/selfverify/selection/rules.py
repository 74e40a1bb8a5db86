"""Rules that choose one of N candidate answers, as pure functions over arrays.

Every rule first becomes *selection weights*: the probability that it picks each candidate. Ties are broken
uniformly at random, so a rule's correctness is an expectation and needs no random numbers: two answers tied
in first place, one of them right, count one half. All functions work on the last axis and keep every leading
axis, which lets ``[P, N]`` (problems, candidates) and ``[P, S, n]`` (with subsets) share one implementation.

Arrays, wherever they appear:
    keys: int ``[..., N]``, the canonical answer's id inside its problem; -1 where nothing could be parsed.
    correct: float ``[..., N]`` in {0, 1}.
    score: float ``[..., N]``; NaN where a candidate has no readable score.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def majority_weights(keys: ArrayLike) -> Floats:
    """Probability ``[..., N]`` that a majority vote picks each candidate.

    The answer given most often wins; between answers given equally often the vote is random. All tied answers
    have the same number of holders, so choosing uniformly among the *holders* is choosing uniformly among the
    *answers*. A candidate without a readable answer never wins, unless no candidate has one.
    """
    keys = np.asarray(keys)
    parsed = keys >= 0
    votes = np.where(parsed, (keys[..., :, None] == keys[..., None, :]).sum(-1), 0)
    return _uniform(parsed & (votes == votes.max(-1, keepdims=True)))


def best_weights(score: ArrayLike) -> Floats:
    """Probability ``[..., N]`` that best-of-N picks each candidate: the highest score, ties at random.

    A candidate without a score loses to every candidate with one; if nobody has a score, the choice is
    random.
    """
    score = np.asarray(score, dtype=np.float64)
    scored = ~np.isnan(score)
    top = np.where(scored, score, -np.inf).max(-1, keepdims=True)
    return _uniform(scored & (score == top))


def pass_at_1(correct: ArrayLike) -> Floats:
    """Correctness ``[...]`` of one candidate taken at random: the mean."""
    return np.asarray(correct, dtype=np.float64).mean(-1)


def majority(keys: ArrayLike, correct: ArrayLike) -> Floats:
    """Expected correctness ``[...]`` of a majority vote.

    Raises:
        ValueError: ``keys`` and ``correct`` differ in shape.
    """
    return _expected(majority_weights(keys), correct)


def best_of_n(score: ArrayLike, correct: ArrayLike) -> Floats:
    """Expected correctness ``[...]`` of the candidate with the highest score.

    Raises:
        ValueError: ``score`` and ``correct`` differ in shape.
    """
    return _expected(best_weights(score), correct)


def oracle(correct: ArrayLike) -> Floats:
    """1 where any candidate is right ``[...]``: what a perfect selection rule would reach."""
    return np.asarray(correct, dtype=np.float64).max(-1)


def box_iou(a: ArrayLike, b: ArrayLike) -> Floats:
    """Intersection over union ``[...]`` of boxes ``[..., 4]`` as (x1, y1, x2, y2), in any one unit.

    A box without area (or with its corners swapped) overlaps with nothing, itself included; NaN gives 0.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    shared = np.clip(sides, 0, None).prod(-1)
    areas = [np.clip(box[..., 2:] - box[..., :2], 0, None).prod(-1) for box in (a, b)]
    union = areas[0] + areas[1] - shared
    return np.divide(shared, union, out=np.zeros_like(union), where=union > 0)


def cluster_boxes(boxes: ArrayLike, threshold: float = 0.5) -> tuple[NDArray[np.int64], Floats]:
    """Group boxes by the online clustering of ADPO, appendix C.

    Boxes are taken in their given order. Each joins the existing cluster whose centroid overlaps it most,
    if that IoU exceeds ``threshold``, else it founds a cluster; the centroid is then the mean of its boxes'
    coordinates. Between equal overlaps the older cluster wins.

    Args:
        boxes: ``[..., N, 4]`` as (x1, y1, x2, y2); a row with NaN is an answer that could not be read.
        threshold: IoU that a box must exceed to join.

    Returns:
        The cluster of each box ``[..., N]`` (-1 for unreadable ones), numbered in order of founding, and the
        final centroids ``[..., N, 4]`` (NaN where there is no such cluster).
    """
    boxes = np.asarray(boxes, dtype=np.float64)
    lead, count = boxes.shape[:-2], boxes.shape[-2]
    flat = boxes.reshape(-1, count, 4)
    rows = np.arange(len(flat))
    ids = np.full(flat.shape[:2], -1, dtype=np.int64)
    centroids = np.full(flat.shape, np.nan)
    sizes = np.zeros(flat.shape[:2], dtype=np.int64)
    for position in range(count):
        box = flat[:, position]
        overlap = np.where(sizes > 0, box_iou(box[:, None], centroids), -1.0)
        nearest = overlap.argmax(-1)
        joined = np.where(overlap[rows, nearest] > threshold, nearest, (sizes > 0).sum(-1))
        use = np.flatnonzero(~np.isnan(box).any(-1))
        target = joined[use]
        ids[use, position] = target
        size = sizes[use, target][:, None]
        old = np.where(size > 0, centroids[use, target], 0.0)
        centroids[use, target] = (old * size + box[use]) / (size + 1)
        sizes[use, target] += 1
    return ids.reshape(*lead, count), centroids.reshape(*lead, count, 4)


def majority_box(boxes: ArrayLike, target: ArrayLike, threshold: float = 0.5) -> Floats:
    """Expected correctness ``[...]`` of the majority box: the centroid of the largest cluster.

    Right means IoU > 0.5 with the target. The paper does not say which of several largest clusters is taken;
    a random one is, as for answers. Where no box could be read the result is 0.

    Args:
        boxes: ``[..., N, 4]``; NaN for unreadable answers.
        target: ``[..., 4]``, the true box in the same unit.
        threshold: IoU that a box must exceed to join a cluster.
    """
    ids, centroids = cluster_boxes(boxes, threshold)
    clusters = np.arange(ids.shape[-1])
    sizes = (ids[..., :, None] == clusters).sum(-2)
    largest = (sizes > 0) & (sizes == sizes.max(-1, keepdims=True))
    right = box_iou(centroids, np.asarray(target, dtype=np.float64)[..., None, :]) > 0.5
    return np.where(largest.any(-1), (_uniform(largest) * right).sum(-1), 0.0)


def _uniform(winners: NDArray[np.bool_]) -> Floats:
    """Equal weight on every winner; on everybody where there is none."""
    winners = winners | ~winners.any(-1, keepdims=True)
    return winners / winners.sum(-1, keepdims=True)


def _expected(weights: Floats, correct: ArrayLike) -> Floats:
    correct = np.asarray(correct, dtype=np.float64)
    if weights.shape != correct.shape:
        raise ValueError(f"candidates {weights.shape} and correctness {correct.shape} differ in shape")
    return (weights * correct).sum(-1)
