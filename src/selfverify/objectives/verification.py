"""What a verification score is worth: rewards and credits for the scores of one group (ADPO, section 3.2).

In every function a score that could not be read is NaN: it earns 0 and nobody is compared with it. An
answer reward here is the correctness of the answer *without* any format part, else two right answers
would be contrasted for their markup.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .advantage import as_float, member_mask

Reading = Literal["pairwise", "class_mean"]


def binary_reward(scores: Tensor, answer_rewards: Tensor, tau_s: float = 0.5, tau_a: float = 0.5) -> Tensor:
    """Binary verification reward R^b: score and answer are on the same side of their thresholds (ADPO Eq. 4).

    The paper gives no thresholds; 0.5 and 0.5 here. Both inequalities are strict: a score or an answer
    reward exactly at its threshold earns 0.

    Args:
        scores: ``[..., G]`` verification scores in [0, 1], NaN where malformed.
        answer_rewards: ``[..., G]`` correctness in [0, 1].
        tau_s: Threshold for scores.
        tau_a: Threshold for answer rewards.

    Returns:
        ``[..., G]`` of 0 and 1.

    Raises:
        ValueError: the shapes differ.
    """
    scores, answer_rewards = _checked(scores, answer_rewards)
    # Two comparisons and not Eq. 4's product, which underflows to 0 for small distances.
    both_high = (scores > tau_s) & (answer_rewards > tau_a)
    both_low = (scores < tau_s) & (answer_rewards < tau_a)
    return (both_high | both_low).to(scores.dtype)


def contrastive_set(answer_rewards: Tensor, margin: float = 0.0, valid: Tensor | None = None) -> Tensor:
    """Whom each trajectory is compared with: C_i of ADPO Eq. 6 (``margin`` 0) or Eq. 7 (``margin`` > 0).

    Args:
        answer_rewards: ``[..., G]`` correctness; NaN counts as invalid.
        margin: gamma of Eq. 7 in units of answer reward: j is in C_i when ``|R_j - R_i| > margin``. With
            0 this is Eq. 6, ``R_j != R_i``.
        valid: Bool, broadcastable to ``[..., G]``; an invalid trajectory is in nobody's set and has none.

    Returns:
        ``[..., G, G]`` bool, symmetric with a False diagonal; ``[..., i, j]`` says that j is in C_i.

    Raises:
        ValueError: ``margin`` is negative.
    """
    if not margin >= 0:
        raise ValueError(
            f"contrastive_set: margin is {margin}; a distance between answer rewards is 0 or more"
        )
    answer_rewards = as_float(answer_rewards)
    member = member_mask(answer_rewards, valid)
    mine, other = answer_rewards.unsqueeze(-1), answer_rewards.unsqueeze(-2)
    differs = (mine - other).abs() > margin if margin > 0 else mine != other
    return differs & member.unsqueeze(-1) & member.unsqueeze(-2)


def preference_reward(
    scores: Tensor,
    answer_rewards: Tensor,
    margin: float = 0.0,
    reading: Reading = "pairwise",
    valid: Tensor | None = None,
) -> Tensor:
    """Preference verification reward R^p: does the score rank this answer rightly in its group? (ADPO Eq. 5)

    The paper describes it in two ways, and both are offered:

    - ``pairwise`` (Eq. 5): the share of C_i whose score is on the right side of s_i. Only the order of
      scores matters.
    - ``class_mean`` (abstract and the prose below Eq. 6): 1 if s_i is on the right side of the *mean* score
      of the other class. For right and wrong answers the other class is C_i. For continuous answers C_i
      holds up to two other classes, its members with better answers (s_i must be below their mean) and those
      with worse ones (s_i must be above); the reward is the mean over the classes that have members: 0, 1/2
      or 1.

    A tie earns 0 (strict inequality). For ``class_mean`` a distance below 4 machine epsilons is a tie, else
    the rounding of the mean would break ties between equal scores. An empty C_i earns 0, so a group that is
    all right or all wrong gets 0 everywhere.

    Args:
        scores: ``[..., G]`` verification scores in [0, 1], NaN where malformed.
        answer_rewards: ``[..., G]`` correctness, without the format part.
        margin: See ``contrastive_set``.
        reading: ``pairwise`` or ``class_mean``.
        valid: Bool, broadcastable to ``[..., G]``; an invalid trajectory earns 0 and is in nobody's set.

    Returns:
        ``[..., G]`` in [0, 1].

    Raises:
        ValueError: the shapes differ, ``margin`` is negative, or ``reading`` is unknown.
    """
    scores, answer_rewards = _checked(scores, answer_rewards)
    contrast = contrastive_set(answer_rewards, margin, member_mask(scores, valid))
    better = answer_rewards.unsqueeze(-1) > answer_rewards.unsqueeze(-2)
    higher = scores.unsqueeze(-1) > scores.unsqueeze(-2)
    lower = scores.unsqueeze(-1) < scores.unsqueeze(-2)
    if reading == "pairwise":
        concordant = contrast & torch.where(better, higher, lower)
        return concordant.sum(-1) / contrast.sum(-1).clamp(min=1).to(scores.dtype)
    if reading != "class_mean":
        raise ValueError(f"preference_reward: reading is {reading!r}; use 'pairwise' or 'class_mean'")
    gap = scores.unsqueeze(-1) - scores.unsqueeze(-2)
    tie = 4 * torch.finfo(scores.dtype).eps
    earned, classes = torch.zeros_like(scores), torch.zeros_like(scores)
    for members, sign in ((contrast & better, 1.0), (contrast & ~better, -1.0)):
        count = members.sum(-1)
        mean_gap = torch.where(members, gap, 0.0).sum(-1) / count.clamp(min=1)
        earned += (sign * mean_gap > tie).to(scores.dtype)
        classes += (count > 0).to(scores.dtype)
    return earned / classes.clamp(min=1)


def concordance_credit(
    scores: Tensor, answer_rewards: Tensor, margin: float = 0.0, valid: Tensor | None = None
) -> Tensor:
    """Drift-free credit for scores: an unbiased policy gradient of the group's AUC (ours, not the paper's).

    ``credit_i = sum over j in C_i of (1{concordant} - 1/2) / (n+ n-)``, where a tie contributes 0 and n+ n-
    is the number of contrastive pairs: right times wrong answers with a readable score, and for continuous
    answers the pairs that differ by more than ``margin``, each counted once, better before worse.

    Use it as the advantage of the score channel **as it is**, without ``group_advantage``:

    - The group's AUC is the mean over those pairs of 1 (concordant), 1/2 (tie) or 0. ``sum_i credit_i *
      grad log p(s_i)`` is its score-function gradient with baseline 1/2, hence unbiased. Summed over the
      group the credits are ``2 AUC - 1``.
    - When scores say nothing about correctness, ``E[sum_i credit_i * f(s_i)] = 0`` for every f: nothing
      pushes scores up or down. Eq. 5 offers every member of either class up to 1, so the larger class pushes
      harder, and all scores drift its way until they saturate.

    It is small: the sizes of a group's credits sum to at most 1, those of normalised advantages to about G.
    For the same strength give the score channel a weight of about G.

    Args:
        scores: ``[..., G]`` verification scores, NaN where malformed.
        answer_rewards: ``[..., G]`` correctness, without the format part.
        margin: See ``contrastive_set``.
        valid: Bool, broadcastable to ``[..., G]``; an invalid trajectory gets 0 and is in nobody's set.

    Returns:
        ``[..., G]``, each at most 1/2 in size; 0 where C_i is empty.

    Raises:
        ValueError: the shapes differ or ``margin`` is negative.
    """
    scores, answer_rewards = _checked(scores, answer_rewards)
    contrast = contrastive_set(answer_rewards, margin, member_mask(scores, valid))
    higher = scores.unsqueeze(-1) > scores.unsqueeze(-2)
    lower = scores.unsqueeze(-1) < scores.unsqueeze(-2)
    better = answer_rewards.unsqueeze(-1) > answer_rewards.unsqueeze(-2)
    concordant = (contrast & torch.where(better, higher, lower)).sum(-1)
    discordant = (contrast & torch.where(better, lower, higher)).sum(-1)
    pairs = contrast.sum((-2, -1)).unsqueeze(-1) // 2  # each stands in `contrast` twice
    return (concordant - discordant).to(scores.dtype) / 2 / pairs.clamp(min=1)


def expected_concordance(
    levels: Tensor,
    probabilities: Tensor,
    answer_rewards: Tensor,
    margin: float = 0.0,
    valid: Tensor | None = None,
) -> Tensor:
    """``concordance_credit`` of every score an answer could get, over all scores the others could get.

    ``value_ik = sum over j in C_i of (P(s_j on the right side of level k) - P(on the wrong side)) / 2 /
    (n+ n-)``, with s_j drawn from row j of ``probabilities``. Hence ``sum_k p_ik value_ik`` is what
    ``concordance_credit`` is in expectation, and ``sum_ik value_ik * grad p_ik`` is the gradient of the
    group's expected AUC itself, with nothing left to sampling but the answers (the "all-actions" policy
    gradient of Ciosek and Whiteson, Expected Policy Gradients, 2018; ours for scores).

    Args:
        levels: ``[K]`` score values.
        probabilities: ``[..., G, K]``, each row a distribution over ``levels``; one with a NaN has no score.
        answer_rewards: ``[..., G]`` correctness, without the format part.
        margin: See ``contrastive_set``.
        valid: Bool, broadcastable to ``[..., G]``; an invalid trajectory gets 0 and is in nobody's set.

    Returns:
        ``[..., G, K]``, each at most 1/2 in size; 0 where C_i is empty or there is no score.

    Raises:
        ValueError: the shapes do not fit, or ``margin`` is negative.
    """
    probabilities, answer_rewards = as_float(probabilities), as_float(answer_rewards)
    levels = levels.to(probabilities.dtype)
    if probabilities.shape != (*answer_rewards.shape, len(levels)):
        raise ValueError(
            f"expected_concordance: probabilities {tuple(probabilities.shape)} must be [..., G, K] with "
            f"answer_rewards {tuple(answer_rewards.shape)} [..., G] and {len(levels)} levels"
        )
    readable = probabilities.isfinite().all(-1)
    sums = probabilities.sum(-1)[readable]
    if not torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        raise ValueError(
            f"expected_concordance: a row of probabilities sums to {float(sums[(sums - 1).abs().argmax()])}, "
            "not to 1; give distributions over the levels, or NaN where there is no score"
        )
    contrast = contrastive_set(answer_rewards, margin, readable & member_mask(answer_rewards, valid))
    better = answer_rewards.unsqueeze(-1) > answer_rewards.unsqueeze(-2)
    sign = (contrast & better).to(probabilities.dtype) - (contrast & ~better).to(probabilities.dtype)
    above = torch.sign(levels[:, None] - levels[None, :])
    # [..., G, K]: how much likelier than not level k is above member j's score.
    lead = torch.where(readable.unsqueeze(-1), probabilities, 0.0) @ above.T
    pairs = contrast.sum((-2, -1))[..., None, None] // 2
    return sign @ lead / 2 / pairs.clamp(min=1)


def _checked(scores: Tensor, answer_rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Both in floating point; refuses shapes that would broadcast to something nobody meant."""
    if scores.shape != answer_rewards.shape:
        raise ValueError(
            f"scores {tuple(scores.shape)} and answer_rewards {tuple(answer_rewards.shape)} must have one "
            "shape, [..., G]"
        )
    return as_float(scores), as_float(answer_rewards)
