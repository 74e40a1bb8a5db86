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


def first_weights(keys: ArrayLike) -> Floats:
    """The first candidate ``[..., N]``, readable or not: what sampling once would have given."""
    weights = np.zeros(np.shape(keys))
    weights[..., 0] = 1.0
    return weights


def vote_weights(score: ArrayLike, temperature: float) -> Floats:
    """What each candidate's vote counts ``[..., N]``: softmax(score / temperature), adding up to 1.

    A candidate without a score has no vote beside others that have one; if nobody has a score, all votes
    count the same. A small temperature leaves only the highest score's vote, a large one makes them equal.
    (CISC, arXiv:2502.06233.)

    Raises:
        ValueError: The temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"a temperature above 0 is needed, not {temperature}")
    score = np.asarray(score, dtype=np.float64)
    scored = ~np.isnan(score)
    scored |= ~scored.any(-1, keepdims=True)
    filled = np.where(scored, np.nan_to_num(score), -np.inf)
    power = np.exp((filled - filled.max(-1, keepdims=True)) / temperature)
    return power / power.sum(-1, keepdims=True)


def support(keys: ArrayLike, votes: ArrayLike) -> Floats:
    """The summed ``votes`` ``[..., N]`` of everybody who gave the same answer; 0 for unreadable answers."""
    keys, votes = np.asarray(keys), np.asarray(votes, dtype=np.float64)
    same = (keys[..., :, None] == keys[..., None, :]) & (keys[..., :, None] >= 0)
    return np.where(same, votes[..., None, :], 0.0).sum(-1)


def weighted_weights(keys: ArrayLike, score: ArrayLike, temperature: float = 0.1) -> Floats:
    """Probability ``[..., N]`` that a vote weighted by `vote_weights` picks each candidate.

    Only readable answers vote. Ties, and the choice among those who gave the winning answer, are random; if
    no answer can be read, so is everything.
    """
    keys = np.asarray(keys)
    score = np.asarray(score, dtype=np.float64)
    parsed = keys >= 0
    sums = support(keys, vote_weights(np.where(parsed, score, np.nan), temperature))
    # Sums of the same votes in another order differ in their last bits.
    top = sums >= sums.max(-1, keepdims=True) * (1 - 1e-9)
    # Of tied answers the one with more holders must not win more often: each holder gets its share.
    holders = support(keys, np.ones(keys.shape))
    share = np.where(parsed & top & (sums > 0), 1.0 / np.maximum(holders, 1), 0.0)
    total = share.sum(-1, keepdims=True)
    return np.where(total > 0, share / np.where(total > 0, total, 1.0), _uniform(parsed))


def best_of_majority_weights(keys: ArrayLike, score: ArrayLike, share: float = 0.25) -> Floats:
    """Probability ``[..., N]`` that best-of-majority (arXiv:2510.03199) picks each candidate.

    Of the answers that at least ``share`` of the readable candidates gave, the one holding the highest score
    wins; where no answer is that frequent, the most frequent ones stay. What is rare cannot win by one lucky
    score, so that, unlike best-of-N, more samples do not make it worse. ``share`` 0 is `best_weights` among
    readable answers, 1 needs unanimity and is else a vote whose ties the score decides.

    Raises:
        ValueError: ``share`` is not in [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is a part of the candidates between 0 and 1, not {share}")
    keys = np.asarray(keys)
    parsed = keys >= 0
    votes = support(keys, np.ones(keys.shape))
    needed = np.minimum(share * parsed.sum(-1, keepdims=True), votes.max(-1, keepdims=True))
    kept = parsed & (votes >= needed - 1e-9)
    kept |= ~parsed.any(-1, keepdims=True)
    score = np.where(kept, np.asarray(score, dtype=np.float64), np.nan)
    return np.where(np.isnan(score).all(-1, keepdims=True), _uniform(kept), best_weights(score))


def oracle_weights(correct: ArrayLike) -> Floats:
    """A right candidate ``[..., N]`` where there is one, else any: for analysis, it needs the truth."""
    return _uniform(np.asarray(correct, dtype=np.float64) > 0.5)


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


def box_votes(boxes: ArrayLike, votes: ArrayLike, threshold: float = 0.5) -> tuple[Floats, Floats]:
    """Cluster boxes, and let each cluster have the summed votes of its boxes.

    Args:
        boxes: ``[..., N, 4]``; NaN for unreadable answers, which have no vote.
        votes: ``[..., N]``, not negative.
        threshold: IoU that a box must exceed to join a cluster.

    Returns:
        Votes ``[..., N]`` of the clusters, and each cluster's consensus ``[..., N, 4]``: its boxes' mean,
        weighted by their votes. With equal votes that is the centroid. NaN where there is no such cluster
        or nobody in it has a vote.
    """
    boxes = np.asarray(boxes, dtype=np.float64)
    return cluster_votes(cluster_boxes(boxes, threshold)[0], boxes, votes)


def cluster_votes(ids: ArrayLike, boxes: ArrayLike, votes: ArrayLike) -> tuple[Floats, Floats]:
    """`box_votes` of boxes whose clusters ``[..., N]`` are known."""
    boxes, ids = np.asarray(boxes, dtype=np.float64), np.asarray(ids)
    member = ids[..., :, None] == np.arange(ids.shape[-1])
    parts = np.where(member, np.asarray(votes, dtype=np.float64)[..., :, None], 0.0)
    sums = parts.sum(-2)
    mean = np.einsum("...nc,...nk->...ck", parts, np.nan_to_num(boxes))
    above = sums[..., None] > 0
    return sums, np.divide(mean, sums[..., None], out=np.full(mean.shape, np.nan), where=above)


def consensus_box(boxes: ArrayLike, votes: ArrayLike, target: ArrayLike, threshold: float = 0.5) -> Floats:
    """Expected correctness ``[...]`` of the consensus of the cluster with the most votes.

    Right means IoU > 0.5 with the target. The paper does not say which of several largest clusters is taken;
    a random one is, as for answers. Where no box could be read the result is 0.

    Args:
        boxes: ``[..., N, 4]``; NaN for unreadable answers.
        votes: ``[..., N]``; ones for the paper's majority, `vote_weights` for a score-weighted consensus.
        target: ``[..., 4]``, the true box in the same unit.
        threshold: IoU that a box must exceed to join a cluster.
    """
    sums, consensus = box_votes(boxes, votes, threshold)
    right = box_iou(consensus, np.asarray(target, dtype=np.float64)[..., None, :]) > 0.5
    return np.where((sums > 0).any(-1), (winners(sums) * right).sum(-1), 0.0)


def winners(sums: ArrayLike) -> Floats:
    """Probability ``[..., N]`` that each cluster wins by its votes, ties at random; 0 where nobody votes."""
    sums = np.asarray(sums, dtype=np.float64)
    # Sums of the same votes in another order differ in their last bits.
    largest = (sums > 0) & (sums >= sums.max(-1, keepdims=True) * (1 - 1e-9))
    return np.where(largest.any(-1, keepdims=True), _uniform(largest), 0.0)


def majority_box(boxes: ArrayLike, target: ArrayLike, threshold: float = 0.5) -> Floats:
    """Expected correctness ``[...]`` of the majority box: the centroid of the largest cluster."""
    boxes = np.asarray(boxes, dtype=np.float64)
    return consensus_box(boxes, np.ones(boxes.shape[:-1]), target, threshold)


def _uniform(winners: NDArray[np.bool_]) -> Floats:
    """Equal weight on every winner; on everybody where there is none."""
    winners = winners | ~winners.any(-1, keepdims=True)
    return winners / winners.sum(-1, keepdims=True)


def _expected(weights: Floats, correct: ArrayLike) -> Floats:
    correct = np.asarray(correct, dtype=np.float64)
    if weights.shape != correct.shape:
        raise ValueError(f"candidates {weights.shape} and correctness {correct.shape} differ in shape")
    return (weights * correct).sum(-1)
