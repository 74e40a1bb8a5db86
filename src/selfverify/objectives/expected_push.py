"""Which way credits push, in expectation: the gradient of a method, worked out before anything is trained.

A push is a derivative of the objective, without its KL term, in one direction that a policy can move in:
more first answers right, all scores higher, right answers' scores higher than wrong ones'. It is written for
one group, as ``mean_i A_i * d log p_i``, so that its mean over groups that were sampled from a policy is what
the method pushes this policy by, up to the learning rate. Nothing here is in the papers; AdaPO's Fig. 2 and
ADPO's Fig. 2 and Section 3.2 show what follows from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from .adaptive import RewardShape, error_rate, reward_table, trajectory_reward
from .advantage import as_float, group_advantage
from .verification import contrastive_set


def erring_gain(table: Tensor, kept: float | Tensor, corrected: float | Tensor) -> Tensor:
    """Return by how much more a wrong first answer earns than a right one: E[R | first wrong] - E[R | first
    right].

    With c = P(second right | first wrong) and k = P(second right | first right) it is ``c R_{0->1} + (1 - c)
    R_{0->0} - k R_{1->1} - (1 - k) R_{1->0}``. Where both wrong ends cost 1 that is ``(R_{0->1} + 1) c -
    (R_{1->1} + 1) k``: erring pays where correcting it is paid so well that it makes up for failing to more
    often. k and c are those of *one* problem, since a group compares the answers to one.

    Args:
        table: ``[..., 2, 2]`` of `reward_table`.
        kept: k, a number or ``[...]``.
        corrected: c, likewise.

    Returns:
        ``[...]``. The policy gradient moves the log-odds of a right first answer by ``-p (1 - p)`` times
        this, p being their share, before the group's standard deviation divides it.
    """
    wrong = corrected * table[..., 0, 1] + (1 - corrected) * table[..., 0, 0]
    right = kept * table[..., 1, 1] + (1 - kept) * table[..., 1, 0]
    return wrong - right


def breakeven_gap(kept: float, corrected: float, positive: float = 1.0, negative: float = -1.0) -> float:
    """The gap R_{0->1} - R_{1->1} of fixed rewards above which erring pays (`erring_gain` is 0 there).

    ``(positive - negative) (k / c - 1)``: 2 (k / c - 1) with the rewards 1 and -1.

    Args:
        kept: k = P(second right | first right), in [0, 1].
        corrected: c = P(second right | first wrong), in [0, 1].
        positive: R_{1->1}.
        negative: R_{1->0} and R_{0->0}.

    Returns:
        The gap; infinite where nothing is corrected. Below 0 where more is corrected than kept.
    """
    return math.inf if corrected == 0 else (positive - negative) * (kept / corrected - 1)


def first_turn_push(
    first: Tensor,
    second: Tensor,
    shape: RewardShape,
    eps: float = 1e-4,
    scale: bool = True,
    agreeing: bool = False,
) -> Tensor:
    """How a group's advantages push the log-odds of a right first answer, ``mean_i A_i (x_i - p)``.

    x_i is 1 where first answer i is right. Advantages of a group add up to 0, so that p drops out and what is
    left is known from the group: its mean over groups is an unbiased estimate. As in AdaPO, P is the group's
    own.

    Args:
        first: ``[..., G]``, 1 where the first answer is right, else 0.
        second: ``[..., G]``, the same of the second answer.
        shape: The rewards.
        eps: Added to the standard deviation.
        scale: Whether to divide by it.
        agreeing: Whether a group teaches whose second answers are all right or all wrong. By default it does
            not (Appendix A.2).

    Returns:
        ``[...]``; below 0 the group teaches to err first.
    """
    first, second = as_float(first), as_float(second)
    reward = trajectory_reward(reward_table(error_rate(first), shape), first, second)
    push = (group_advantage(reward, eps=eps, scale=scale) * first).mean(-1)
    mixed = (second > 0.5).any(-1) & ~(second > 0.5).all(-1)
    return push if agreeing else torch.where(mixed, push, 0.0)


def score_push(
    advantage: Tensor, scores: Tensor, expected: Tensor, answer_rewards: Tensor
) -> tuple[Tensor, Tensor]:
    """How a group's advantages push its scores: all of them up, and right above wrong ones.

    The directions are tilts of the policy's score distributions, p_k proportional to ``exp(t k)``, whose
    derivative is ``s_i - E[s_i]``: what was written less what was expected. So nothing but sampled scores and
    their expectations is needed.

    Args:
        advantage: ``[..., G]``, the score channel's.
        scores: ``[..., G]``, the scores as written; NaN (malformed) takes no part.
        expected: ``[..., G]``, the expectation of each under the policy at the temperature of sampling.
        answer_rewards: ``[..., G]``, correctness in [0, 1], or any reward of the answers.

    Returns:
        Two tensors ``[...]``: ``drift`` = ``mean_i A_i (s_i - E[s_i])``, and ``separation``, in which each
        term is weighed by the answer's reward less the group's mean: above 0 better answers' scores rise and
        worse ones' fall.
    """
    surprise = torch.nan_to_num(as_float(scores) - as_float(expected), nan=0.0)
    worth = as_float(answer_rewards)
    pushed = advantage * surprise
    return pushed.mean(-1), (pushed * (worth - worth.mean(-1, keepdim=True))).mean(-1)


@dataclass(frozen=True, slots=True)
class BinaryEnd:
    """The shares of answers with a high score to which the binary reward leads (`binary_end`).

    Args:
        high_right: Share of the right answers whose score is high.
        high_wrong: Share of the wrong ones.
        auc: Of such scores, ties counting one half: ``(1 + high_right - high_wrong) / 2``.
    """

    high_right: float
    high_wrong: float
    auc: float


def binary_end(right: float, auc: float) -> BinaryEnd:
    """The scores that earn most under ADPO's binary reward (Eq. 4), by what a policy can tell.

    A score above the threshold earns its answer's chance of being right, one below it the rest. So a policy
    does best that scores high all that is right more likely than not, and low all else. Its knowledge is
    taken as one number for each answer, normally distributed with equal variances among right and wrong ones,
    whose AUC is ``auc``: with d = sqrt(2) Phi^-1(auc) its log-likelihood ratio is N(d^2 / 2, d^2) among right
    answers and N(-d^2 / 2, d^2) among wrong ones, and scores are high where it exceeds ln((1 - p) / p). The
    preference reward (Eq. 5) compares scores of one group, in which p does not stand: what earns most there
    keeps the order, and ``auc`` with it.

    Args:
        right: p, the share of answers that are right, within (0, 1).
        auc: Area under the ROC curve of what the policy can tell, within (1/2, 1).

    Raises:
        ValueError: A number is out of its range.
    """
    if not 0 < right < 1 or not 0.5 < auc < 1:
        raise ValueError(f"binary_end: right is {right} and auc {auc}; they lie in (0, 1) and (0.5, 1)")
    normal = NormalDist()
    distance = math.sqrt(2) * normal.inv_cdf(auc)
    threshold = math.log((1 - right) / right)
    high_right = normal.cdf(distance / 2 - threshold / distance)
    high_wrong = normal.cdf(-distance / 2 - threshold / distance)
    return BinaryEnd(high_right, high_wrong, (1 + high_right - high_wrong) / 2)


def entangled_margin(right: float, ranked: float, group: int) -> float:
    """How much an answer must be worth, for ADPO's entangled reward (Eq. 8) to prefer it to a worse one.

    A group of G answers, of which each is right with probability p and a right one outscores a wrong one
    with probability u. A right answer's R^p is u where the group has a wrong one, with probability
    ``1 - p^(G-1)``, and a wrong answer's is u where it has a right one, ``1 - (1 - p)^(G-1)``. The wrong
    one's is larger by ``u (p^(G-1) - (1 - p)^(G-1))``: in groups that are nearly all right, a wrong answer
    with a low score is what ranks well. The answers' rewards have to differ by more, else erring pays.

    Args:
        right: p in [0, 1].
        ranked: u in [0, 1]; ties do not count.
        group: G.

    Returns:
        Less than 1 unless p = u = 1, so that answers that are right (1) or wrong (0) are never traded; but of
        the 1 that a right answer is worth so much is gone. Negative where most answers are wrong.
    """
    return ranked * (right ** (group - 1) - (1 - right) ** (group - 1))


def margin_signal(answer_rewards: Tensor, margin: float) -> tuple[float, float]:
    """Return the share of pairs that the margin of a contrastive set (ADPO Eq. 7) keeps, and the signal in
    them.

    A weak verifier ranks a pair rightly more often the more its answers differ; to first order the surplus
    over one half grows with the difference, while the noise of a pair does not depend on it. So the mean
    over n pairs has a signal-to-noise ratio in proportion to ``sum |R_i - R_j| / sqrt(n)``, sums and n being
    over the pairs that differ by more than the margin.

    Args:
        answer_rewards: ``[..., G]`` of groups.
        margin: gamma.

    Returns:
        The share that stays of the pairs that differ at all, and the ratio relative to a margin of 0. Both
        are NaN where no pair differs.
    """
    rewards = as_float(answer_rewards)
    rows, columns = torch.triu_indices(rewards.shape[-1], rewards.shape[-1], 1)
    distance = (rewards[..., rows] - rewards[..., columns]).abs().double()
    every, far = (distance[contrastive_set(rewards, m)[..., rows, columns]] for m in (0.0, margin))
    if not len(every):
        return math.nan, math.nan
    share = len(far) / len(every)
    return share, float(far.sum() / every.sum()) / math.sqrt(share) if share else 0.0
