"""Rewards and credits for the verification scores of one group (ADPO, section 3.2).

In every function a score that could not be read is NaN: it earns 0, and no other score is compared with it.
An answer reward here is the correctness of the answer *without* any format part. With one, two right answers
would be contrasted for their markup.

Names of tensors end in their axes: G trajectories of a group, K levels of a score. Every function takes any
number of axes before these, such as one for several groups.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .advantage import as_float, member_mask, rounding

Reading = Literal["pairwise", "class_mean"]


def binary_reward(scores: Tensor, answer_rewards: Tensor, tau_s: float = 0.5, tau_a: float = 0.5) -> Tensor:
    """Binary verification reward R^b: score and answer are on the same side of their thresholds (ADPO Eq. 4).

    The paper gives no thresholds; here they are 0.5 and 0.5. Both inequalities are strict: a score or an
    answer reward exactly at its threshold earns 0.

    Args:
        scores: ``[..., G]`` verification scores in [0, 1], NaN where malformed.
        answer_rewards: ``[..., G]`` correctness in [0, 1].
        tau_s: The threshold for scores.
        tau_a: The threshold for answer rewards.

    Returns:
        ``[..., G]`` of 0 and 1.

    Raises:
        ValueError: The shapes differ.
    """
    scores, answer_rewards = _checked(scores, answer_rewards)
    # Two comparisons and not Eq. 4's product, which underflows to 0 for small distances.
    both_high = (scores > tau_s) & (answer_rewards > tau_a)
    both_low = (scores < tau_s) & (answer_rewards < tau_a)
    return (both_high | both_low).to(scores.dtype)


def contrastive_set(answer_rewards: Tensor, margin: float = 0.0, valid: Tensor | None = None) -> Tensor:
    """Which trajectories each one is compared with: C_i of ADPO Eq. 6 (``margin`` 0) or 7 (``margin`` > 0).

    Args:
        answer_rewards: ``[..., G]`` correctness; NaN counts as invalid.
        margin: gamma of Eq. 7 in units of answer reward: j is in C_i when ``|R_j - R_i| > margin``. With
            0 this is Eq. 6, ``R_j != R_i``. A distance that exceeds it by rounding only does not
            count (`rounding`): 0.1 + 0.2 and 0.3 are the same reward.
        valid: Bool, broadcastable to ``[..., G]``. An invalid trajectory is in no set, and its own is empty.

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
    member_g = member_mask(answer_rewards, valid)
    mine, other = answer_rewards.unsqueeze(-1), answer_rewards.unsqueeze(-2)
    slack = rounding(torch.where(member_g, answer_rewards, 0.0)).unsqueeze(-1)
    differs_gg = (mine - other).abs() > margin + slack
    return differs_gg & member_g.unsqueeze(-1) & member_g.unsqueeze(-2)


def _order(values: Tensor) -> Tensor:
    """``[..., G]`` to ``[..., G, G]``: 1 where i has more than j, -1 where less, 0 at a tie or NaN."""
    mine, other = values.unsqueeze(-1), values.unsqueeze(-2)
    return (mine > other).int() - (mine < other).int()


def preference_reward(
    scores: Tensor,
    answer_rewards: Tensor,
    margin: float = 0.0,
    reading: Reading = "pairwise",
    valid: Tensor | None = None,
) -> Tensor:
    """Preference verification reward R^p: does a score rank its answer rightly in the group? (ADPO Eq. 5)

    The paper describes this reward in two ways, and both are offered:

    - ``pairwise`` (Eq. 5): the share of C_i whose score is on the right side of s_i. Only the order of
      scores matters.
    - ``class_mean`` (abstract and the prose below Eq. 6): 1 if s_i is on the right side of the *mean* score
      of the other class. For right and wrong answers the other class is C_i. For continuous answers C_i
      holds up to two other classes: members with better answers (s_i must be below their mean) and members
      with worse answers (s_i must be above). The reward is the mean over the classes that have members: 0,
      1/2 or 1.

    A tie earns 0 (strict inequality). For ``class_mean`` a distance below 4 machine epsilons is a tie.
    Otherwise the rounding of the mean would break ties between equal scores. An empty C_i earns 0, so a group
    that is all right or all wrong gets 0 everywhere.

    Args:
        scores: ``[..., G]`` verification scores in [0, 1], NaN where malformed.
        answer_rewards: ``[..., G]`` correctness, without the format part.
        margin: As in ``contrastive_set``.
        reading: ``pairwise`` or ``class_mean``.
        valid: Bool, broadcastable to ``[..., G]``; an invalid trajectory earns 0 and is in no set.

    Returns:
        ``[..., G]`` in [0, 1].

    Raises:
        ValueError: The shapes differ, ``margin`` is negative, or ``reading`` is unknown.
    """
    scores, answer_rewards = _checked(scores, answer_rewards)
    contrast_gg = contrastive_set(answer_rewards, margin, member_mask(scores, valid))
    better_gg = _order(answer_rewards)
    if reading == "pairwise":
        concordant_gg = contrast_gg & (_order(scores) == better_gg)
        return concordant_gg.sum(-1) / contrast_gg.sum(-1).clamp(min=1).to(scores.dtype)
    if reading != "class_mean":
        raise ValueError(f"preference_reward: reading is {reading!r}; use 'pairwise' or 'class_mean'")
    gap_gg = scores.unsqueeze(-1) - scores.unsqueeze(-2)
    tie = 4 * torch.finfo(scores.dtype).eps
    earned_g, classes_g = torch.zeros_like(scores), torch.zeros_like(scores)
    for sign in (1, -1):
        members_gg = contrast_gg & (better_gg == sign)
        count_g = members_gg.sum(-1)
        mean_gap_g = torch.where(members_gg, gap_gg, 0.0).sum(-1) / count_g.clamp(min=1)
        earned_g += (sign * mean_gap_g > tie).to(scores.dtype)
        classes_g += (count_g > 0).to(scores.dtype)
    return earned_g / classes_g.clamp(min=1)


def concordance_credit(
    scores: Tensor, answer_rewards: Tensor, margin: float = 0.0, valid: Tensor | None = None
) -> Tensor:
    """Drift-free credit for scores: an unbiased policy gradient of the group's AUC (ours, not the paper's).

    ``credit_i = sum over j in C_i of (1{concordant} - 1/2) / (n+ n-)``, where a tie contributes 0, and n+ n-
    is the number of contrastive pairs. With right and wrong answers, these are the right times the wrong ones
    that have a readable score. With continuous answers they are the pairs that differ by more than
    ``margin``, each counted once.

    Use it as the advantage of the score channel **as it is**, without ``group_advantage``:

    - The group's AUC is the mean over those pairs of 1 (concordant), 1/2 (tie) or 0. ``sum_i credit_i *
      grad log p(s_i)`` is its score-function gradient with baseline 1/2, hence unbiased. Summed over the
      group the credits are ``2 AUC - 1``.
    - When scores say nothing about correctness, ``E[sum_i credit_i * f(s_i)] = 0`` for every f: nothing
      pushes scores up or down. Eq. 5 offers every member of either class up to 1, so the larger class pushes
      harder, and all scores drift its way until they saturate.

    The credit is small: the sizes of a group's credits sum to at most 1, and those of normalised advantages
    to about G. For the same strength, give the score channel a weight of about G.

    Args:
        scores: ``[..., G]`` verification scores, NaN where malformed.
        answer_rewards: ``[..., G]`` correctness, without the format part.
        margin: As in ``contrastive_set``.
        valid: Bool, broadcastable to ``[..., G]``; an invalid trajectory gets 0 and is in no set.

    Returns:
        ``[..., G]``, each at most 1/2 in size; 0 where C_i is empty.

    Raises:
        ValueError: The shapes differ or ``margin`` is negative.
    """
    scores, answer_rewards = _checked(scores, answer_rewards)
    contrast_gg = contrastive_set(answer_rewards, margin, member_mask(scores, valid))
    agreement_gg = contrast_gg * _order(scores) * _order(answer_rewards)
    pairs = contrast_gg.sum((-2, -1)).unsqueeze(-1) // 2  # each pair stands in `contrast_gg` twice
    return agreement_gg.sum(-1).to(scores.dtype) / 2 / pairs.clamp(min=1)


def expected_concordance(
    levels: Tensor,
    probabilities: Tensor,
    answer_rewards: Tensor,
    margin: float = 0.0,
    valid: Tensor | None = None,
) -> Tensor:
    """The expected ``concordance_credit`` of every score that an answer could get.

    The expectation is over all scores that the other answers of the group could get.


    ``value_ik = sum over j in C_i of (P(s_j on the right side of level k) - P(s_j on the wrong side)) / 2 /
    (n+ n-)``, with s_j drawn from row j of ``probabilities``. Hence ``sum_k p_ik value_ik`` is what
    ``concordance_credit`` is in expectation, and ``sum_ik value_ik * grad p_ik`` is the gradient of the
    group's expected AUC itself, with nothing left to sampling but the answers (the "all-actions" policy
    gradient of Ciosek and Whiteson, Expected Policy Gradients, 2018; ours for scores).

    Args:
        levels: ``[K]`` score values.
        probabilities: ``[..., G, K]``, each row a distribution over ``levels``. A row with a NaN is no score.
        answer_rewards: ``[..., G]`` correctness, without the format part.
        margin: As in ``contrastive_set``.
        valid: Bool, broadcastable to ``[..., G]``; an invalid trajectory gets 0 and is in no set.

    Returns:
        ``[..., G, K]``, each at most 1/2 in size; 0 where C_i is empty or there is no score.

    Raises:
        ValueError: The shapes do not fit, or ``margin`` is negative.
    """
    probabilities, answer_rewards = as_float(probabilities), as_float(answer_rewards)
    levels = levels.to(probabilities.dtype)
    if probabilities.shape != (*answer_rewards.shape, len(levels)):
        raise ValueError(
            f"expected_concordance: probabilities {tuple(probabilities.shape)} must be [..., G, K] with "
            f"answer_rewards {tuple(answer_rewards.shape)} [..., G] and {len(levels)} levels"
        )
    readable_g = probabilities.isfinite().all(-1)
    sums = probabilities.sum(-1)[readable_g]
    if not torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
        raise ValueError(
            f"expected_concordance: a row of probabilities sums to {float(sums[(sums - 1).abs().argmax()])}, "
            "not to 1; give distributions over the levels, or NaN where there is no score"
        )
    contrast_gg = contrastive_set(answer_rewards, margin, readable_g & member_mask(answer_rewards, valid))
    sign_gg = (contrast_gg * _order(answer_rewards)).to(probabilities.dtype)
    above_kk = _order(levels).to(probabilities.dtype)
    # How much likelier than not level k is above member j's score.
    lead_gk = torch.where(readable_g.unsqueeze(-1), probabilities, 0.0) @ above_kk.T
    pairs = contrast_gg.sum((-2, -1))[..., None, None] // 2
    return sign_gg @ lead_gk / 2 / pairs.clamp(min=1)


def _checked(scores: Tensor, answer_rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Both in floating point. Two shapes are refused, because they might broadcast to something else than is
    meant."""
    if scores.shape != answer_rewards.shape:
        raise ValueError(
            f"scores {tuple(scores.shape)} and answer_rewards {tuple(answer_rewards.shape)} must have one "
            "shape, [..., G]"
        )
    return as_float(scores), as_float(answer_rewards)
