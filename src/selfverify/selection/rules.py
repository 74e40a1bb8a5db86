"""Candidate answers, and rules that choose one of N of them, as pure functions over arrays.

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

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def elect(keys: ArrayLike, votes: ArrayLike) -> Floats:
    """Probability ``[..., N]`` that a vote picks each candidate.

    The answer with the largest sum of ``votes`` ``[..., N]`` wins; ties between answers, and the choice among
    those who gave the winning answer, are random. A candidate without a readable answer has no vote and never
    wins, unless no candidate has one.
    """
    keys = np.asarray(keys)
    same = _same(keys)
    sums = _summed(same, votes)
    # Sums of the same votes in another order differ in their last bits.
    top = (sums > 0) & (sums >= sums.max(-1, keepdims=True) * (1 - 1e-9))
    # Of tied answers the one with more holders must not win more often: each holder gets its share.
    share = np.where(top, 1.0 / np.maximum(same.sum(-1), 1), 0.0)
    total = share.sum(-1, keepdims=True)
    voted = total > 0
    if voted.all():
        return share / total
    return np.where(voted, share / np.where(voted, total, 1.0), _uniform(keys >= 0))


def best_weights(score: ArrayLike) -> Floats:
    """Probability ``[..., N]`` that best-of-N picks each candidate: the highest score, ties at random.

    A candidate without a score loses to every candidate with one; if none has a score, the choice is random.
    """
    score = np.asarray(score, dtype=np.float64)
    scored = ~np.isnan(score)
    top = np.where(scored, score, -np.inf).max(-1, keepdims=True)
    return _uniform(scored & (score == top))


def first_weights(keys: ArrayLike) -> Floats:
    """Probability ``[..., N]`` of taking the first candidate: what sampling once would have given."""
    weights = np.zeros(np.shape(keys))
    weights[..., 0] = 1.0
    return weights


def vote_weights(score: ArrayLike, temperature: float) -> Floats:
    """How much each candidate's vote counts ``[..., N]``: softmax(score / temperature), which adds up to 1.

    A candidate without a score has no vote beside others that have one; if none has a score, all votes count
    the same. A small temperature leaves only the highest score's vote, a large one makes them equal. (CISC,
    arXiv:2502.06233.)

    Raises:
        ValueError: The temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"a temperature above 0 is needed, not {temperature}")
    score = np.asarray(score, dtype=np.float64)
    filled = np.where(np.isnan(score), -np.inf, np.minimum(score, np.finfo(np.float64).max))
    top = filled.max(-1, keepdims=True)
    scored = top > -np.inf
    if not scored.all():
        filled, top = np.where(scored, filled, 0.0), np.where(scored, top, 0.0)
    power = np.exp((filled - top) / temperature)
    return power / power.sum(-1, keepdims=True)


def support(keys: ArrayLike, votes: ArrayLike) -> Floats:
    """The sum ``[..., N]`` of the ``votes`` for the same answer; 0 for unreadable answers."""
    return _summed(_same(keys), votes)


def _same(keys: ArrayLike) -> NDArray[np.bool_]:
    """Which candidates ``[..., N, N]`` gave the same readable answer."""
    keys = np.asarray(keys)
    same: NDArray[np.bool_] = (keys[..., :, None] == keys[..., None, :]) & (keys[..., :, None] >= 0)
    return same


def _summed(same: NDArray[np.bool_], votes: ArrayLike) -> Floats:
    """The sum ``[..., N]`` of the ``votes`` of those who gave the same answer."""
    sums: Floats = np.where(same, np.asarray(votes, dtype=np.float64)[..., None, :], 0.0).sum(-1)
    return sums


def best_of_majority_weights(keys: ArrayLike, score: ArrayLike, share: float = 0.25) -> Floats:
    """Probability ``[..., N]`` that best-of-majority (arXiv:2510.03199) picks each candidate.

    Among the answers that at least ``share`` of the readable candidates gave, the one with the highest score
    wins; where no answer is that frequent, the most frequent ones compete. A rare answer cannot win by one
    lucky score, so that, unlike with best-of-N, more samples do not make it worse. With ``share`` 0 it is
    `best_weights` among readable answers; with 1 it is a vote whose ties the score decides.

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
    """Probability ``[..., N]`` of picking a right candidate where there is one, else any of them.

    It needs the truth and is for analysis only.
    """
    return _uniform(np.asarray(correct, dtype=np.float64) > 0.5)


def best_of_subsets(score: ArrayLike, n: int) -> Floats:
    """Probability ``[..., G]`` that best-of-n picks each of G candidates, over all their size-n subsets.

    With L(i) candidates not above candidate i and l(i) below it, the best of a random subset is among the
    L(i) − l(i) candidates tied with i with probability [C(L, n) − C(l, n)] / C(G, n), and each of them
    equally often. A candidate without a score (NaN) is below all others.
    """
    score = np.asarray(score, dtype=np.float64)
    filled = np.where(np.isnan(score), -np.inf, score)
    below = (filled[..., None, :] < filled[..., :, None]).sum(-1)
    tied = (filled[..., None, :] == filled[..., :, None]).sum(-1)
    choose = _share_of_subsets(score.shape[-1], n)
    share: Floats = (choose[below + tied] - choose[below]) / tied
    return share


def oracle_of_subsets(correct: ArrayLike, n: int) -> Floats:
    """Probability ``[..., G]`` that a perfect choice picks each of G candidates, over their size-n subsets.

    It picks a right candidate of the subset at random, else any of it. With W wrong candidates the share of
    subsets with a right one is 1 − C(W, n) / C(G, n).
    """
    right = np.asarray(correct, dtype=np.float64) > 0.5
    wrongs = (~right).sum(-1, keepdims=True)
    miss = _share_of_subsets(right.shape[-1], n)[wrongs]
    rights = right.sum(-1, keepdims=True)
    return np.where(right, (1 - miss) / np.maximum(rights, 1), miss / np.maximum(wrongs, 1))


def _share_of_subsets(total: int, n: int) -> Floats:
    """C(k, n) / C(total, n) for k = 0..total: the share of size-n subsets that lie inside k candidates."""
    return np.array([math.comb(k, n) for k in range(total + 1)], dtype=np.float64) / math.comb(total, n)


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


def consensus_boxes(keys: ArrayLike, boxes: ArrayLike, votes: ArrayLike) -> Floats:
    """Return the box that each box's cluster stands for, ``[..., N, 4]``: the mean of its boxes, weighted by
    their votes.

    With equal votes that is the centroid. NaN for unreadable answers, and where no box of the cluster has a
    vote.

    Args:
        keys: ``[..., N]``, the cluster of each box (`cluster_boxes`); -1 for unreadable answers.
        boxes: ``[..., N, 4]``; NaN for unreadable answers.
        votes: ``[..., N]``, not negative.
    """
    same, boxes = _same(keys), np.nan_to_num(np.asarray(boxes, dtype=np.float64))
    parts = np.where(same, np.asarray(votes, dtype=np.float64)[..., None, :], 0.0)
    sums, weight = np.einsum("...ij,...jk->...ik", parts, boxes), parts.sum(-1, keepdims=True)
    return np.divide(sums, weight, out=np.full(sums.shape, np.nan), where=weight > 0)


def _uniform(winners: NDArray[np.bool_]) -> Floats:
    """Equal weight on every winner; on all where there is no winner."""
    winners = winners | ~winners.any(-1, keepdims=True)
    return winners / winners.sum(-1, keepdims=True)


@dataclass(slots=True)
class Candidate:
    """One sampled answer to one problem, on its way from the sampler to the choice.

    Sampling for training has trajectories; code that chooses, serves or shows answers has candidates.

    Args:
        answer: The parsed answer as a JSON value; None if it could not be read.
        key: The task's canonical form (`Verdict.key`): equal for equivalent answers. None for unreadable
            answers and for boxes, which are compared by IoU.
        score: A verifier's score, higher is better; None where there is no readable score.
        logprob: Mean log-probability of the answer's tokens, where there is one.
        tokens: Tokens it took to write.
        text: Everything that was written.
        first: The answer of the first of two turns, as ``answer`` is that of the second; None in one turn.
    """

    answer: Any = None
    key: str | None = None
    score: float | None = None
    logprob: float | None = None
    tokens: int = 0
    text: str = ""
    first: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """N candidates of each of any number of problems, as arrays.

    Args:
        keys: int ``[..., N]``, equal inside a problem exactly for equal answers; -1 for unreadable ones. For
            boxes the number of the box's cluster.
        score: ``[..., N]``, NaN where there is none.
        boxes: ``[..., N, 4]``, NaN for unreadable answers; None unless the answers are boxes.
        correct: ``[..., N]`` in {0, 1}; known in analysis only.
    """

    keys: NDArray[np.int64]
    score: Floats
    boxes: Floats | None = None
    correct: Floats | None = None

    @classmethod
    def of(cls, candidates: Sequence[Candidate], iou: float = 0.5) -> Self:
        """Return the arrays ``[N]`` of one problem's candidates; ``iou`` decides which boxes share a cluster.

        Answers are boxes when no candidate has a key and every readable answer is a list of four numbers.
        """
        score = np.array([np.nan if c.score is None else c.score for c in candidates], dtype=np.float64)
        boxes = box_array([c.answer for c in candidates], [c.key for c in candidates])
        if boxes is not None:
            return cls(cluster_boxes(boxes, iou)[0], score, boxes)
        return cls(np.array(number_keys([c.key for c in candidates]), dtype=np.int64), score)

    def rows(self, rows: slice) -> Candidates:
        """Return the candidates of some of the problems."""
        arrays = (self.keys, self.score, self.boxes, self.correct)
        return Candidates(*(None if array is None else array[rows] for array in arrays))  # type: ignore[arg-type]

    def take(self, columns: NDArray[np.int64], iou: float = 0.5) -> Candidates:
        """Return some candidates of every problem: ``columns`` ``[S, n]`` makes ``[P, S, n]`` of ``[P, G]``.

        Boxes are clustered anew, since their order matters.
        """
        boxes = None if self.boxes is None else self.boxes[..., columns, :]
        return Candidates(
            self.keys[..., columns] if boxes is None else cluster_boxes(boxes, iou)[0],
            self.score[..., columns],
            boxes,
            None if self.correct is None else self.correct[..., columns],
        )


UNIT_MARK = "\u2009"
"""The mark before a unit in a key: ``5`` and ``5 cm`` are one answer, unless another one is in metres."""


def number_keys(keys: Sequence[str | None]) -> list[int]:
    """Return keys as numbers in order of first appearance; -1 for None.

    A number without a unit counts as the one with a unit, where all that have one agree on it.
    """
    units: dict[str, set[str]] = {}
    for key in keys:
        if key is not None and UNIT_MARK in key:
            units.setdefault(key.partition(UNIT_MARK)[0], set()).add(key)
    only = {bare: next(iter(full)) for bare, full in units.items() if len(full) == 1}
    numbers: dict[str, int] = {}
    return [-1 if key is None else numbers.setdefault(only.get(key, key), len(numbers)) for key in keys]


def box_array(answers: Sequence[Any], keys: Sequence[str | None]) -> Floats | None:
    """Return answers as boxes ``[N, 4]``, NaN for unreadable ones; None if they are not boxes."""
    readable = [answer for answer in answers if answer is not None]
    if not readable or any(key is not None for key in keys) or not all(map(is_box, readable)):
        return None
    return np.array([[np.nan] * 4 if answer is None else answer for answer in answers], dtype=np.float64)


def is_box(answer: Any) -> bool:
    """Whether an answer is a list of four numbers."""
    return (
        isinstance(answer, (list, tuple))
        and len(answer) == 4
        and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in answer)
    )


Kind = Literal["text", "set", "box"]
"""How answers are compared. ``text``: case, spaces, a final point and the way a number is written do not
matter. ``set``: the order of the words or numbers does not matter either. ``box``: answers are four numbers,
and the overlap of the boxes counts."""

LONGEST = 2000
"""The most characters of an answer; a longer one counts as unreadable."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?%?|[+-]?\.[0-9]+%?")
_BRACKETS = str.maketrans(dict.fromkeys("[](){}", " "))


def read_answer(text: str, kind: Kind) -> tuple[Any, str | None]:
    """Return the answer as a JSON value, and its key; ``(None, None)`` where it cannot be read. Never raises.

    This is for questions that come without a task; a task says itself which answers are the same
    (`Verdict.key`). Equal answers have equal keys. A box has no key (None), because boxes are clustered.
    """
    text = text.strip()
    if not text or len(text) > LONGEST:
        return None, None
    if kind == "box":
        return _box(text), None
    if kind == "set":
        words = [_canonical(word) for word in text.translate(_BRACKETS).replace(",", " ").split()]
        return (text, " ".join(sorted(words))) if words else (None, None)
    return text, _canonical(text)


def _canonical(text: str) -> str:
    text = " ".join(text.casefold().split()).removesuffix(".")
    if len(text) > 32 or not _NUMBER.fullmatch(text):
        return text
    value = float(text.replace(",", "").removesuffix("%"))
    return f"{value:.12g}" + ("%" if text.endswith("%") else "")


def _box(text: str) -> list[float] | None:
    words = text.translate(_BRACKETS).replace(",", " ").split()
    if len(words) != 4 or not all(len(w) <= 16 and re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", w) for w in words):
        return None
    box = [float(word) for word in words]
    fine = all(map(math.isfinite, box)) and box[2] > box[0] and box[3] > box[1]
    return box if fine else None
