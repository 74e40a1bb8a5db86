"""Policy losses per token, and the weights that turn them into one number.

Every method of this library has the same loss, ``(token_weights(...) * terms.loss).sum()``: ADPO Eq. 9's
masks are two channels with two advantages. Positions outside a response need finite log-probabilities (0,
say): their weight is 0, and 0 times infinity is not 0.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Denominator = Literal["sequence", "channel", "batch"]

UNTRAINED = -1
"""Channel id of tokens that are not trained: padding, prompts, whatever the environment wrote."""


class SurrogateTerms(NamedTuple):
    """``surrogate``'s loss and its diagnostics, all ``[N, R]``.

    Args:
        loss: What to weight, sum and minimise; the only field that carries a gradient.
        ratio: Importance ratio of the new to the old policy.
        clipped: True where clipping has removed the policy's gradient.
        kl: k3 estimate of KL(policy || reference) in nats, before its coefficient; 0 without a reference.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    kl: Tensor


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Low-variance estimate of KL(policy || reference) in nats per token: ``exp(d) - d - 1``, d = ref - new.

    Never negative, and unbiased for tokens sampled from the policy (Schulman's "k3", as GRPO and TRL use).

    Args:
        logprobs: ``[N, R]`` log-probabilities of the sampled tokens under the policy.
        ref_logprobs: ``[N, R]`` the same under the reference.

    Returns:
        ``[N, R]``.
    """
    distance = ref_logprobs - logprobs
    return torch.exp(distance) - distance - 1


def importance_weight(old_logprobs: Tensor, sampler_logprobs: Tensor, cap: float) -> Tensor:
    """``min(exp(old - sampler), cap)`` per token, without gradient: truncated importance sampling.

    For tokens that another engine has sampled: its kernels, precision and cut-offs give them other
    probabilities than the learner's model with the same weights. The weight corrects a token for its own
    probability only; that its prefix came from the other engine too stays (as in TRL's ``token_truncate``).

    Args:
        old_logprobs: ``[N, R]`` under the learner's model at the moment of sampling.
        sampler_logprobs: ``[N, R]`` as the engine reports them; where NaN (unknown) the weight is 1.
        cap: The largest weight, C.
    """
    return torch.exp((old_logprobs - sampler_logprobs).detach().nan_to_num(nan=0.0)).clamp(max=cap)


def surrogate(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantage: float | Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ref_logprobs: Tensor | None = None,
    kl_coef: float | Tensor = 0.0,
    weight: Tensor | None = None,
) -> SurrogateTerms:
    """Clipped surrogate plus KL per token: ``-min(r A, clip(r) A) + kl_coef * k3`` (ADPO Eq. 1 and 9).

    This is a loss, so the sign is the opposite of the papers' objective J. Gradients reach a token only
    through its own log-probability, ``advantage`` and ``kl_coef``: an advantage of 0 and a coefficient of 0
    give exactly zero gradient there.

    Args:
        logprobs: ``[N, R]`` under the policy, with gradient.
        old_logprobs: ``[N, R]`` under the policy that sampled; ``logprobs.detach()`` when that is the same.
        advantage: A number, ``[N, 1]`` or ``[N, R]``.
        clip_low: Ratios are clipped below at ``1 - clip_low``.
        clip_high: Ratios are clipped above at ``1 + clip_high``.
        ref_logprobs: ``[N, R]`` under the reference policy; needed when ``kl_coef`` is not 0.
        kl_coef: A number, ``[N, 1]`` or ``[N, R]``, in loss per nat.
        weight: ``[N, R]`` of `importance_weight`, for the first term alone. The KL term stays as it is, as in
            TRL's ``GRPOTrainer._compute_loss`` (1.16): it is a leash whose length is tuned by its
            coefficient, and nothing depends on its being an unbiased estimate.

    Raises:
        ValueError: ``kl_coef`` is not 0 without ``ref_logprobs``, or a stream does not have the shape above
            (``[N]`` is refused: with N = R it would be taken for one value per token).
    """
    whole, column = list(logprobs.shape), [*logprobs.shape[:-1], 1]
    for name, stream in (("advantage", advantage), ("kl_coef", kl_coef)):
        if isinstance(stream, Tensor) and stream.dim() > 0 and list(stream.shape) not in (whole, column):
            raise ValueError(
                f"surrogate: {name} is {tuple(stream.shape)}; with log-probs {tuple(whole)} it must be a "
                f"number, {column} or {whole}"
            )
    ratio = torch.exp(logprobs - old_logprobs.detach())
    loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    if weight is not None:
        loss = loss * weight.detach()
    if ref_logprobs is not None:
        kl = kl_k3(logprobs, ref_logprobs.detach())
        loss = loss + kl_coef * kl
    elif torch.as_tensor(kl_coef).any():
        raise ValueError("surrogate: kl_coef is not 0 but there are no ref_logprobs")
    else:
        kl = torch.zeros_like(logprobs)
    sign = torch.as_tensor(advantage, device=ratio.device)
    clipped = ((ratio < 1 - clip_low) & (sign < 0)) | ((ratio > 1 + clip_high) & (sign > 0))
    return SurrogateTerms(loss, ratio.detach(), clipped, kl.detach())


class ChoiceTerms(NamedTuple):
    """``choice_surrogate``'s loss ``[M]``, the only field with a gradient, and its diagnostics ``[M, K]``.

    Args:
        loss: What to weight, sum and minimise.
        ratio: Of the new to the old probability of each alternative; 1 at padding.
        clipped: The old probability of each alternative whose gradient clipping has removed, else 0.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def choice_probability(logprobs: Tensor, given: Tensor) -> Tensor:
    """Probabilities ``[M, K]`` of the alternatives against each other; 0 where not ``given``."""
    return logprobs.masked_fill(~given, -torch.inf).softmax(-1)


def choice_surrogate(
    logprobs: Tensor,
    probability: Tensor,
    advantage: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> ChoiceTerms:
    """``surrogate`` in expectation over the K tokens that could have been written, not for the one that was.

    ``-sum_k p_k min(r_k A_k, clip(r_k) A_k)`` with ``p_k`` the sampling policy's probability and ``r_k`` the
    ratio to it: the loss of ``surrogate`` averaged over samples from ``probability``. Both policies are
    normalised over the K alternatives, so their common share against all other tokens is not moved.

    No `importance_weight` belongs here, whichever engine wrote the token: no alternative was drawn from that
    engine's distribution, the expectation is over the learner's own.

    Args:
        logprobs: ``[M, K]`` of the alternatives under the policy, with gradient; any common offset cancels.
        probability: ``[M, K]`` under the policy that sampled, rows sum to 1; 0 marks padding.
        advantage: ``[M, K]``.
        clip_low: As in ``surrogate``.
        clip_high: As in ``surrogate``.
    """
    given = probability > 0
    new = choice_probability(logprobs, given)
    ratio = torch.where(given, new, 1.0) / torch.where(given, probability, 1.0)
    worth = torch.minimum(ratio * advantage, ratio.clamp(1 - clip_low, 1 + clip_high) * advantage)
    loss = -torch.where(given, probability * worth, 0.0).sum(-1)
    outside = ((ratio < 1 - clip_low) & (advantage < 0)) | ((ratio > 1 + clip_high) & (advantage > 0))
    return ChoiceTerms(loss, ratio.detach(), torch.where(outside, probability, 0.0))


def likelihood(logprobs: Tensor) -> Tensor:
    """Negative log-likelihood in nats per token, for SFT and STaR: ``[N, R]`` to ``[N, R]``."""
    return -logprobs


def token_weights(
    channel_ids: Tensor,
    channel_weights: Tensor,
    valid: Tensor | None = None,
    denominator: Denominator = "sequence",
) -> Tensor:
    """Weights for a **whole optimiser batch**, such that its loss is ``(weights * per_token_loss).sum()``.

    The denominators are taken here, once. So the batch can be split into micro-batches, or over processes
    whose gradients are summed, in any way: slice the rows of the result, and the sum stays the same.

    ``denominator`` says what a token's weight is divided by:

    - ``sequence``: its trajectory's trained tokens, then the trajectories that have any (ADPO Eq. 1, TRL's
      ``loss_type="grpo"``). A 3-token score behind a 300-token answer weighs 1 %.
    - ``channel``: the trained tokens of its channel in its trajectory, then the trajectories that have any.
      Every channel of a trajectory weighs as much as its ``channel_weights`` entry says.
    - ``batch``: all trained tokens of the batch (token mean; TRL's ``"dapo"``).

    A trained token counts in the denominators whatever its weight or advantage is. To take tokens out of the
    denominators too, make them untrained or invalid; a group that was dropped has no rows here at all.

    Args:
        channel_ids: ``[N, R]`` integer, the channel of each token, ``UNTRAINED`` (-1) for no channel.
        channel_weights: ``[num_channels]`` weight of each channel, or ``[N, R]`` weight of each token.
        valid: Bool ``[N]`` or ``[N, R]``; what is invalid is untrained. None means all valid.
        denominator: ``sequence``, ``channel`` or ``batch``.

    Returns:
        ``[N, R]`` in the dtype of ``channel_weights``, 0 where untrained; all 0 if nothing is trained.

    Raises:
        ValueError: an unknown denominator, a channel id without a weight, or a shape not listed above.
    """
    trained = channel_ids > UNTRAINED
    if valid is not None:
        trained = trained & (valid.bool().unsqueeze(-1) if valid.dim() == 1 else valid.bool())
    ids = torch.where(trained, channel_ids, 0).long()
    num_channels = int(ids.max()) + 1 if ids.numel() else 1
    if channel_weights.dim() == 1:
        if num_channels > len(channel_weights):
            raise ValueError(
                f"token_weights: channel id {num_channels - 1} has no weight among {len(channel_weights)}"
            )
        weight = channel_weights[ids]
    elif channel_weights.shape == channel_ids.shape:
        weight = channel_weights
    else:
        raise ValueError(
            f"token_weights: channel_weights is {tuple(channel_weights.shape)}; expected [num_channels] or "
            f"{list(channel_ids.shape)}"
        )
    if denominator == "sequence":
        tokens = trained.sum(-1, keepdim=True)
    elif denominator == "channel":
        counts = torch.zeros(len(ids), num_channels, dtype=torch.long, device=ids.device)
        tokens = counts.scatter_add_(1, ids, trained.long()).gather(1, ids)
    elif denominator == "batch":
        tokens = trained.sum()
    else:
        raise ValueError(f"token_weights: unknown denominator {denominator!r} (sequence, channel, batch)")
    trajectories = trained.any(-1).sum().clamp(min=1) if denominator != "batch" else 1
    return torch.where(trained, weight / (tokens.clamp(min=1) * trajectories), 0.0)
