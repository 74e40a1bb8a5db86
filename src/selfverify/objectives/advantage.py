"""Group-relative advantages (GRPO), and a verifier's log-ratios to its base (VTS-V §3.3).

An advantage makes of a reward a comparison with the other samples of its problem. A log-ratio says how much
more likely a verifier finds a trajectory than its base does.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_float(values: Tensor) -> Tensor:
    """Return ``values`` in float32, or unchanged if they are float32 or float64 already."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def member_mask(values: Tensor, valid: Tensor | None) -> Tensor:
    """``[..., G]`` bool: True where a member is valid (None: all are) and its value is not NaN."""
    known = ~torch.isnan(values)
    return known if valid is None else known & torch.broadcast_to(valid.bool(), values.shape)


def rounding(rewards: Tensor) -> Tensor:
    """The distance up to which two rewards of a group count as equal, because it may come from rounding.

    It is 8 machine epsilons of the rewards' dtype (1e-6 in float32) times the largest magnitude, or times 1
    if that is larger, because a sum such as 0.3 - 0.3 carries the rounding of its terms.

    Args:
        rewards: ``[..., G]`` without NaN.

    Returns:
        ``[..., 1]``.
    """
    if not rewards.shape[-1]:
        return rewards.new_zeros((*rewards.shape[:-1], 1))
    return 8 * torch.finfo(rewards.dtype).eps * rewards.abs().amax(-1, keepdim=True).clamp(min=1.0)


def group_advantage(
    rewards: Tensor, valid: Tensor | None = None, eps: float = 1e-4, scale: bool = True
) -> Tensor:
    """Normalise rewards inside each group: ``(R - mean) / (std + eps)`` (ADPO, text after Eq. 1).

    The papers leave out two things. The standard deviation is the unbiased one (divisor n-1) and
    ``eps`` is 1e-4, both as in TRL, so that the two agree number for number; verl uses ``eps=1e-6``.

    A group whose valid rewards are all equal gets exactly 0, so that a caller can drop the group and switch
    its KL off. "Equal" allows for rounding (`rounding`): 0.1 + 0.2 and 0.3 are the same reward.

    An invalid member leaves before mean and standard deviation are taken, so both are over the n valid
    members. An advantage of 0 does not take tokens out of the loss's denominator (see ``token_weights``).

    Args:
        rewards: ``[..., G]``, one reward for each trajectory of a group. NaN means that it could not be
            scored, and counts as invalid.
        valid: Bool, broadcastable to ``[..., G]``; None means all.
        eps: Added to the standard deviation, in units of reward.
        scale: False leaves out the division by the standard deviation.

    Returns:
        ``[..., G]`` in float32 (float64 for float64 input), 0 where invalid. A group with fewer than
        two valid members is 0.

    Raises:
        ValueError: A valid reward is infinite.
    """
    rewards = as_float(rewards)
    member = member_mask(rewards, valid)
    kept = torch.where(member, rewards, 0.0)
    if torch.isinf(kept).any():
        raise ValueError("group_advantage: a reward is infinite; bound it, or mark it invalid")
    count = member.sum(-1, keepdim=True)
    mean = kept.sum(-1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(member, rewards - mean, 0.0)
    highest = torch.where(member, rewards, -torch.inf).amax(-1, keepdim=True)
    lowest = torch.where(member, rewards, torch.inf).amin(-1, keepdim=True)
    differs = (count >= 2) & (highest - lowest > rounding(kept))
    if scale:
        variance = centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)
        centred = centred / (variance.sqrt() + eps)
    return torch.where(differs & member, centred, 0.0)


def step_log_ratios(logprobs_t: Tensor, base_logprobs_t: Tensor, step_t: Tensor, steps: int) -> Tensor:
    """log V_φ/V_φ0 of each step, in float64: Δr of Lemma 3.1, or the answer's share of r(τ).

    The sum over the tokens of a step, plan t_h and action a_h, each token conditioned on everything before it
    (the paper writes V(a_h | t_h)). η is left out, as in Lemma 3.1, and Q(s_1), which is the same for all
    trajectories of a question. Δr of step h is the difference r(s_{h+1}) - r(s_h): observations have no part
    in it, nor has t_{H+1}.

    Args:
        logprobs_t: ``[T]`` log-probabilities of V_φ, nats.
        base_logprobs_t: ``[T]`` those of V_φ0.
        step_t: ``[T]`` the number of each token's step, from 0; negative for tokens that count nowhere, such
            as observations.
        steps: The number of steps.

    Returns:
        ``[steps]`` sums, nats; 0 for a step without tokens.

    Raises:
        ValueError: The shapes differ, or a step is not below ``steps``.
    """
    if not logprobs_t.shape == base_logprobs_t.shape == step_t.shape or logprobs_t.dim() != 1:
        shapes = [tuple(x.shape) for x in (logprobs_t, base_logprobs_t, step_t)]
        raise ValueError(f"log-probabilities, those of the base and steps have shapes {shapes}: need one [T]")
    if step_t.numel() and int(step_t.max()) >= steps:
        raise ValueError(f"a token is of step {int(step_t.max())}, and there are {steps}, from 0")
    counts = step_t >= 0
    ratio_t = logprobs_t.double() - base_logprobs_t.double()
    return ratio_t.new_zeros(steps).index_add(0, step_t[counts].long(), ratio_t[counts])
