"""Policy losses per token, and the weights that turn them into one number.

Every method of this library has the same loss, ``(token_weights(...) * terms.loss).sum()``: ADPO Eq. 9's
masks are two channels with two advantages. Positions outside a response need finite log-probabilities, such
as 0. Their weight is 0, and 0 times infinity is not 0.

Names of tensors end in their axes: N rows (responses) of R tokens, M tokens with K alternatives each. The
functions that work token by token take any other shape as well, as long as all tensors have it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Denominator = Literal["sequence", "channel", "batch", "trajectory"]
Ratio = Literal["token", "trajectory"]

UNTRAINED = -1
"""Channel id of tokens that are not trained: padding, prompts, all that the environment wrote."""
LARGEST_EXPONENT = 20.0
"""Log-ratios are cut here before `exp`, in nats: float32 overflows at 88, and infinity times 0 is not 0."""


class SurrogateTerms(NamedTuple):
    """The loss of ``surrogate`` and its diagnostics, all ``[N, R]``.

    Args:
        loss: Values to weight, sum and minimise. No other field carries a gradient.
        ratio: The importance ratio of the new to the old policy: the token's or its trajectory's.
        clipped: True where clipping has removed the policy's gradient.
        kl: The k3 estimate of KL(policy || reference) in nats, before its coefficient; 0 without a reference.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor
    kl: Tensor


def _bounded_exp(exponent: Tensor) -> Tensor:
    """Return ``exp(min(exponent, LARGEST_EXPONENT))``. Above the bound the gradient is the value, too, not 0:
    what is far off is still to be brought back."""
    above = LARGEST_EXPONENT + (exponent - exponent.detach()).nan_to_num(nan=0.0)
    return torch.exp(torch.where(exponent > LARGEST_EXPONENT, above, exponent))


def kl_k3(logprobs_nr: Tensor, ref_logprobs_nr: Tensor) -> Tensor:
    """Estimate KL(policy || reference) in nats per token: ``exp(d) - d - 1`` with d = ref - new.

    The estimate is never negative, varies little, and is unbiased for tokens sampled from the policy. It is
    Schulman's "k3", which GRPO and TRL use. The exponent is cut at `LARGEST_EXPONENT`; the gradient there
    still points to the reference.

    Args:
        logprobs_nr: ``[N, R]`` log-probabilities of the sampled tokens under the policy.
        ref_logprobs_nr: ``[N, R]`` log-probabilities of the same tokens under the reference.

    Returns:
        ``[N, R]``.
    """
    distance_nr = ref_logprobs_nr - logprobs_nr
    return _bounded_exp(distance_nr) - distance_nr - 1


def importance_weight(old_logprobs_nr: Tensor, sampler_logprobs_nr: Tensor, cap: float) -> Tensor:
    """``min(exp(old - sampler), cap)`` per token, without gradient: truncated importance sampling.

    It is for tokens that another engine has sampled. The kernels, the precision and the cut-offs of that
    engine give tokens other probabilities than the trainer's model gives them with the same weights. The
    weight corrects a token for its own probability only, and not for its prefix, which came from the other
    engine, too (as in TRL's ``token_truncate``).

    Args:
        old_logprobs_nr: ``[N, R]`` under the trainer's model at the moment of sampling.
        sampler_logprobs_nr: ``[N, R]`` as the engine reports them. Where NaN (unknown), the weight is 1.
        cap: The largest weight, C.

    Returns:
        ``[N, R]``.
    """
    distance_nr = (old_logprobs_nr - sampler_logprobs_nr).detach().nan_to_num(nan=0.0)
    return _bounded_exp(distance_nr).clamp(max=cap)


def surrogate(
    logprobs_nr: Tensor,
    old_logprobs_nr: Tensor,
    advantage: float | Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ref_logprobs: Tensor | None = None,
    kl_coef: float | Tensor = 0.0,
    weight: Tensor | None = None,
    trajectories: Tensor | None = None,
) -> SurrogateTerms:
    """Clipped surrogate plus KL per token: ``-min(r A, clip(r) A) + kl_coef * k3`` (ADPO Eq. 1 and 9).

    This is a loss, so its sign is the opposite of the papers' objective J. Gradients reach a token only
    through its own log-probability, ``advantage`` and ``kl_coef``: an advantage of 0 and a coefficient of 0
    give exactly zero gradient there.

    With ``trajectories`` there is one ratio per trajectory, ``r = exp(sum_t (new_t - old_t))`` over its T
    trained tokens (SmartSnap Eq. 1). Its term is spread over the tokens: the loss of a token has the value
    ``-min(r A, clip(r) A) / T`` and, where clipping has not removed it, the gradient ``-r A`` to the token's
    own log-probability. So with ``denominator="trajectory"`` the value and the gradient are those of Eq. 1.
    While r is 1, the gradient is that of token-level ratios, with any denominator. With it, a token still
    learns from its own advantage alone.

    The exponent of a ratio is cut at `LARGEST_EXPONENT`: a token that has all but vanished since sampling, or
    a few thousand tokens together, could make it overflow. The KL term is left out where its coefficient is
    0, also where the reference is not finite there.

    Args:
        logprobs_nr: ``[N, R]`` under the policy, with gradient.
        old_logprobs_nr: ``[N, R]`` under the policy that sampled. Where that is the same policy, it is
            ``logprobs_nr.detach()``.
        advantage: A number, ``[N, 1]`` or ``[N, R]``.
        clip_low: Ratios are clipped below at ``1 - clip_low``.
        clip_high: Ratios are clipped above at ``1 + clip_high``.
        ref_logprobs: ``[N, R]`` under the reference policy; needed when ``kl_coef`` is not 0.
        kl_coef: A number, ``[N, 1]`` or ``[N, R]``, in loss per nat.
        weight: ``[N, R]`` of `importance_weight`, for the first term alone. The KL term stays as it is, as in
            TRL's ``GRPOTrainer._compute_loss`` (1.16): it holds the policy near the reference, its
            coefficient is tuned, and nothing depends on its being an unbiased estimate.
        trajectories: ``[N, R]`` bool, the trained tokens, whose log-ratios make up the ratio of their row;
            None gives every token its own ratio.

    Raises:
        ValueError: ``kl_coef`` is not 0 without ``ref_logprobs``, or a stream has none of the shapes above.
            ``[N]`` is refused, because with N = R it would be taken for one value per token.
    """
    whole, column = list(logprobs_nr.shape), [*logprobs_nr.shape[:-1], 1]
    for name, stream in (("advantage", advantage), ("kl_coef", kl_coef)):
        if isinstance(stream, Tensor) and stream.dim() > 0 and list(stream.shape) not in (whole, column):
            raise ValueError(
                f"surrogate: {name} is {tuple(stream.shape)}; with log-probs {tuple(whole)} it must be a "
                f"number, {column} or {whole}"
            )
    distance_nr = logprobs_nr - old_logprobs_nr.detach()
    if trajectories is None:
        ratio_nr = _bounded_exp(distance_nr)
        worth_nr, clipped_nr = _clipped(ratio_nr, advantage, clip_low, clip_high)
    else:
        apart_n1 = torch.where(trajectories, distance_nr, 0.0).detach().sum(-1, keepdim=True)
        ratio_nr = _bounded_exp(apart_n1).expand_as(distance_nr)
        worth_nr, clipped_nr = _clipped(ratio_nr, advantage, clip_low, clip_high)
        # 0, whose gradient is the token's share of the gradient of the ratio.
        rising_nr = ratio_nr * (logprobs_nr - logprobs_nr.detach())
        tokens_n1 = trajectories.sum(-1, keepdim=True).clamp(min=1)
        worth_nr = worth_nr / tokens_n1 + torch.where(clipped_nr, 0.0, rising_nr * advantage)
    loss_nr = -worth_nr
    if weight is not None:
        loss_nr = loss_nr * weight.detach()
    kl_nr = torch.zeros_like(logprobs_nr)
    if ref_logprobs is not None:
        held_nr = torch.as_tensor(kl_coef, device=logprobs_nr.device) != 0
        kl_nr = kl_k3(torch.where(held_nr, logprobs_nr, logprobs_nr.detach()), ref_logprobs.detach())
        loss_nr = loss_nr + torch.where(held_nr, kl_coef * kl_nr, 0.0)
    elif torch.as_tensor(kl_coef).any():
        raise ValueError("surrogate: kl_coef is not 0 but there are no ref_logprobs")
    return SurrogateTerms(loss_nr, ratio_nr.detach(), clipped_nr, kl_nr.detach())


def _clipped(ratio: Tensor, advantage: float | Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """``min(r A, clip(r) A)``, and whether clipping has removed its gradient."""
    worth = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    return worth, ((ratio < 1 - low) & (advantage < 0)) | ((ratio > 1 + high) & (advantage > 0))


class ChoiceTerms(NamedTuple):
    """The loss of ``choice_surrogate``, ``[M]``, and its diagnostics, ``[M, K]``.

    Args:
        loss: Values to weight, sum and minimise. No other field carries a gradient.
        ratio: The ratio of the new to the old probability of each alternative; 1 at padding.
        clipped: The old probability of each alternative whose gradient clipping has removed, else 0.
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def choice_probability(logprobs_mk: Tensor, given_mk: Tensor) -> Tensor:
    """Probabilities ``[M, K]`` of the alternatives against each other; 0 where not ``given_mk``."""
    return logprobs_mk.masked_fill(~given_mk, -torch.inf).softmax(-1)


def choice_surrogate(
    logprobs_mk: Tensor,
    probability_mk: Tensor,
    advantage_mk: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> ChoiceTerms:
    """``surrogate`` in expectation over the K tokens that could have been written at a place.

    The loss is ``-sum_k p_k min(r_k A_k, clip(r_k) A_k)``, with ``p_k`` the sampling policy's probability and
    ``r_k`` the ratio to it. It is the loss of ``surrogate`` averaged over samples from ``p``. Both policies
    are normalised over the K alternatives, so the loss does not move the share that the alternatives have
    together against all other tokens.

    No `importance_weight` belongs here, whichever engine wrote the token: the expectation is over the
    trained model's own distribution, and no alternative was drawn from the engine's.

    Args:
        logprobs_mk: ``[M, K]`` of the alternatives under the policy, with gradient. A constant added to a
            whole row cancels.
        probability_mk: ``[M, K]`` under the policy that sampled. Rows sum to 1, and 0 marks padding.
        advantage_mk: ``[M, K]``.
        clip_low: As in ``surrogate``.
        clip_high: As in ``surrogate``.
    """
    given_mk = probability_mk > 0
    new_mk = choice_probability(logprobs_mk, given_mk)
    # Division by a probability below the smallest normal number may overflow.
    smallest = torch.finfo(probability_mk.dtype).tiny
    ratio_mk = torch.where(given_mk, new_mk, 1.0) / torch.where(given_mk, probability_mk, 1.0).clamp(smallest)
    worth_mk, outside_mk = _clipped(ratio_mk, advantage_mk, clip_low, clip_high)
    loss_m = -torch.where(given_mk, probability_mk * worth_mk, 0.0).sum(-1)
    return ChoiceTerms(loss_m, ratio_mk.detach(), torch.where(outside_mk, probability_mk, 0.0))


def likelihood(logprobs_nr: Tensor) -> Tensor:
    """Negative log-likelihood in nats per token, ``[N, R]``, for SFT and STaR."""
    return -logprobs_nr


class PairTerms(NamedTuple):
    """The loss of `pairwise` and its diagnostic, ``[B]`` each.

    Args:
        loss: Values to weight, sum and minimise.
        margin: How much more the chosen trajectory is preferred than the rejected one, the argument of the
            sigmoid. It carries no gradient.
    """

    loss: Tensor
    margin: Tensor


def pairwise(
    logprobs_bgr: Tensor, ref_logprobs_bgr: Tensor, preference_bgr: Tensor, beta: float | Tensor
) -> PairTerms:
    """Direct preference optimisation of B pairs: ``-log sigmoid(r(chosen) - r(rejected))``.

    The reward of a trajectory is ``r = beta * sum_t (new_t - ref_t)`` over its trained tokens: all that the
    policy wrote, each token conditioned on the whole history before it (DPO; VTS-V Eq. 4, 5 and 10, where
    beta is called eta, and the tokens are those of all plans and all actions). VTS-V's Eq. 11 misprints one
    numerator, so Eq. 10 is what is computed. Sums are not divided by lengths. A part that both trajectories
    share cancels, so it may as well stand in the prompt.

    Args:
        logprobs_bgr: ``[B, G, R]`` under the policy, with gradient. G is 2: chosen and rejected.
        ref_logprobs_bgr: ``[B, G, R]`` under the reference policy.
        preference_bgr: ``[B, G, R]``, 1 at the trained tokens of the chosen trajectory, -1 at those of the
            rejected one, 0 elsewhere.
        beta: How closely the policy is held to the reference, a number or ``[B, G, R]``.
    """
    gain_bgr = logprobs_bgr - ref_logprobs_bgr.detach()
    margin_b = torch.where(preference_bgr != 0, preference_bgr * beta * gain_bgr, 0.0).sum((-2, -1))
    return PairTerms(-F.logsigmoid(margin_b), margin_b.detach())


def token_weights(channel_nr: Tensor, weight_nr: Tensor, denominator: Denominator = "sequence") -> Tensor:
    """Weights for a **whole optimiser batch**, such that its loss is ``(weights * per_token_loss).sum()``.

    The denominators are taken here, once. So the batch can be split into micro-batches, or over processes
    whose gradients are summed, in any way: slice the rows of the result, and the sum stays the same.

    ``denominator`` says what a token's weight is divided by:

    - ``sequence``: by its trajectory's trained tokens, then by the number of trajectories that have any (ADPO
      Eq. 1, TRL's ``loss_type="grpo"``). A 3-token score behind a 300-token answer weighs 1 %.
    - ``channel``: by the trained tokens of its channel in its trajectory, then by the number of trajectories
      that have any. Every channel of a trajectory weighs as much as its tokens' ``weight_nr`` says.
    - ``batch``: by all trained tokens of the batch (token mean; TRL's ``"dapo"``).
    - ``trajectory``: by the number of trajectories that have any trained tokens. A trajectory's tokens are
      summed, so that a long one weighs more (VTS-V Eq. 3, whose 1/(H+1) is the weight of a trajectory's
      tokens; SmartSnap Eq. 1).

    A trained token counts in the denominators also where its weight or advantage is 0. To take tokens out of
    the denominators too, make them untrained. A group that was dropped has no rows here at all.

    Args:
        channel_nr: ``[N, R]`` integer, the channel of each token, ``UNTRAINED`` (-1) for no channel.
        weight_nr: ``[N, R]`` weight of each token.
        denominator: ``sequence``, ``channel``, ``batch`` or ``trajectory``.

    Returns:
        ``[N, R]`` in the dtype of ``weight_nr``, 0 where untrained; all 0 if nothing is trained.

    Raises:
        ValueError: The denominator is unknown, or the shapes differ.
    """
    if weight_nr.shape != channel_nr.shape:
        raise ValueError(
            f"token_weights: {list(weight_nr.shape)} weights for {list(channel_nr.shape)} tokens; there has "
            "to be one weight per token"
        )
    trained_nr = channel_nr > UNTRAINED
    trajectories = trained_nr.any(-1).sum().clamp(min=1)
    if denominator == "sequence":
        tokens = trained_nr.sum(-1, keepdim=True)
    elif denominator == "channel":
        ids_nr = torch.where(trained_nr, channel_nr, 0).long()
        channels = int(ids_nr.max()) + 1 if ids_nr.numel() else 1
        counts = torch.zeros(len(ids_nr), channels, dtype=torch.long, device=ids_nr.device)
        tokens = counts.scatter_add_(1, ids_nr, trained_nr.long()).gather(1, ids_nr)
    elif denominator == "batch":
        tokens, trajectories = trained_nr.sum(), torch.ones_like(trajectories)
    elif denominator == "trajectory":
        tokens = torch.ones_like(trajectories)
    else:
        raise ValueError(
            f"token_weights: unknown denominator {denominator!r} (sequence, channel, batch, trajectory)"
        )
    return torch.where(trained_nr, weight_nr / (tokens.clamp(min=1) * trajectories), 0.0)
