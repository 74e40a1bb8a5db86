"""The gradient of an optimiser update, from streams. This module knows objectives and no methods.

Names of tensors end in their axes, as in `selfverify.learner.streams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from selfverify.core.errors import ConfigError
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Alternatives
from selfverify.learner.channels import chosen_alternatives, only
from selfverify.learner.parallel import Parallel
from selfverify.learner.passes import MicroBatch, micro_batches
from selfverify.learner.streams import (
    TokenStreams,
    batch_weights,
    pair_weights,
    stack,
    stack_choices,
    stack_known,
)
from selfverify.learner.totals import UpdateMetrics
from selfverify.objectives import (
    choice_probability,
    choice_surrogate,
    importance_weight,
    likelihood,
    pairwise,
    surrogate,
)
from selfverify.policy.policy import Policy

OBJECTIVES = ("surrogate", "likelihood", "pairwise")
"""What tokens may learn by; `selfverify.objectives` has a function of each name."""


@torch.no_grad()
def fixed_logprobs(
    policy: Policy, groups: Sequence[TokenStreams], passes: Sequence[MicroBatch], temperature: float
) -> list[Tensor]:
    """Return each group's log-probabilities ``[G, R]`` under a policy that does not learn, on the CPU.

    A group that is in no pass gets an empty tensor.
    """
    results: list[Tensor] = [torch.empty(0, 0)] * len(groups)
    for each in passes:
        chosen = [groups[part.group].take(part.rows) for part in each.slices]
        logprobs_bgr = policy.logprobs(
            [group.prompt for group in chosen],
            [group.continuations for group in chosen],
            temperature=temperature,
            needed=stack([group.trained_gr for group in chosen], policy.device),
        ).cpu()
        for part, group, logprobs_gr in zip(each.slices, chosen, logprobs_bgr, strict=True):
            if not results[part.group].numel():
                results[part.group] = logprobs_gr.new_zeros(groups[part.group].channel_gr.shape)
            results[part.group][part.rows, : group.width] = logprobs_gr[: len(part.rows), : group.width]
    return results


class LossComputer:
    """Makes the gradients of one optimiser batch after another.

    Args:
        parallel: Holds the policy that learns and its reference.
        config: The settings of the loss.
        objective: The method's, one of `OBJECTIVES`.
        temperature: The temperature of sampling.

    Raises:
        ConfigError: There is no such objective, or the settings part the channels of pairs.
    """

    def __init__(
        self, parallel: Parallel, config: TrainerConfig, objective: str, temperature: float = 1.0
    ) -> None:
        if objective not in OBJECTIVES:
            raise ConfigError(f"there is no objective {objective!r}; there are: {', '.join(OBJECTIVES)}")
        if objective == "pairwise" and (config.channels != "joint" or config.log_channels_every):
            raise ConfigError(
                "learner: the objective pairwise compares whole trajectories, whose channels cannot be told "
                "apart; set channels: joint and log_channels_every: 0"
            )
        self.parallel, self.policy = parallel, parallel.policy
        self.config, self.objective, self.temperature = config, objective, temperature

    def passes(self, groups: Sequence[TokenStreams]) -> list[MicroBatch]:
        """Return this process's forward passes of a batch of all processes; see `micro_batches`."""
        whole = self.objective == "pairwise"
        return micro_batches(groups, self.config.micro_batch_groups, self.config.micro_batch_tokens, whole)

    def fix_logprobs(self, groups: Sequence[TokenStreams], passes: Sequence[MicroBatch]) -> None:
        """Give groups the log-probabilities that stay as they are while the policy learns from the groups.

        Those of the reference are computed where any token has a KL coefficient. Those of the policy that
        sampled are needed where several updates follow a rollout. Sampling gave them already, unless another
        engine or nobody has sampled. In the first update they are the new ones.

        Args:
            groups: A step's groups, of all processes.
            passes: This process's share of them.
        """
        reference = self.parallel.reference
        if reference is not None and any(bool(group.kl_coef_gr.any()) for group in groups):
            with self.parallel.autocast():
                found = fixed_logprobs(reference, groups, passes, self.temperature)
            for group, reference_gr in zip(groups, found, strict=True):
                group.reference_logprobs_gr = reference_gr
        if self.config.updates_per_rollout * self.config.inner_epochs == 1 or self.objective != "surrogate":
            return
        known = [None if group.foreign else group.sampler_logprobs_gr for group in groups]
        if any(logprobs_gr is None for logprobs_gr in known):
            known = [*fixed_logprobs(self.policy, groups, passes, self.temperature)]
        for group, logprobs_gr in zip(groups, known, strict=True):
            group.old_logprobs_gr = logprobs_gr

    def gradient(
        self,
        groups: Sequence[TokenStreams],
        passes: Sequence[MicroBatch],
        totals: UpdateMetrics,
        channel: str | None = None,
        apart: Sequence[str] = (),
    ) -> None:
        """Accumulate the gradient of one optimiser batch.

        A channel's gradient is its part of the batch's: the denominators are those of all channels' tokens.

        Args:
            groups: The batch, of all processes.
            passes: This process's share of it.
            totals: This process's share is added to it.
            channel: The only channel that is learnt; None is all of them.
            apart: The channels whose gradients are kept apart (`Parallel.apart`). They share the forward
                passes, and each has its own backward passes.
        """
        weights = batch_weights(groups, self.config.denominator)
        if self.objective == "pairwise":
            weights = pair_weights(groups)
        trajectories = max(sum(group.trajectories for group in groups), 1)
        for number, each in enumerate(passes):
            last = number == len(passes) - 1
            chosen, shares = [], []
            for part in each.slices:
                group = groups[part.group]
                chosen.append((group if each.counts else _repeated(group)).take(part.rows))
                shares.append(weights[part.group][part.rows, : chosen[-1].width])
            counted = totals if each.counts else UpdateMetrics()
            scale = 1.0 if each.counts else 0.0
            if channel is not None:
                chosen = [only(group, channel) for group in chosen]
            with self.parallel.one_pass(last and not apart):
                logprobs_bgr, alternatives_mk = self._forward(chosen)
                for name in apart:
                    parts = [only(group, name) for group in chosen]
                    own_mk = alternatives_mk[chosen_alternatives(chosen, parts).to(alternatives_mk.device)]
                    loss = self._loss(parts, shares, trajectories, logprobs_bgr, own_mk, counted)
                    self.parallel.backward(scale * loss, last, name, more=name != apart[-1])
                if not apart:
                    loss = self._loss(chosen, shares, trajectories, logprobs_bgr, alternatives_mk, counted)
                    self.parallel.backward(scale * loss, last)

    def _forward(self, groups: Sequence[TokenStreams]) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of a pass: of its tokens ``[B, G, R]`` and of choices ``[M, K]``."""
        choice_places_m3, _, choices = stack_choices(groups)
        return self.policy.logprobs_and_choices(
            [group.prompt for group in groups],
            [group.continuations for group in groups],
            choice_places_m3,
            choices.tokens,
            temperature=self.temperature,
            needed=stack([group.trained_gr for group in groups], self.policy.device),
        )

    def _loss(
        self,
        groups: Sequence[TokenStreams],
        weights: Sequence[Tensor],
        trajectories: int,
        logprobs_bgr: Tensor,
        alternatives_mk: Tensor,
        totals: UpdateMetrics,
    ) -> Tensor:
        """Return one pass's share of the batch's loss, of the tokens that ``groups`` train."""
        device = self.policy.device
        trained_bgr = stack([group.trained_gr for group in groups], device)
        choice_places_m3, choice_weight_m, choices = stack_choices(groups)
        weight_bgr = stack(weights, device) * trained_bgr
        if self.objective == "pairwise":
            loss = self._pairwise(groups, logprobs_bgr, weight_bgr, totals)
        elif self.objective == "likelihood":
            loss = (likelihood(logprobs_bgr) * weight_bgr).sum()
        else:
            loss = (self._surrogate(groups, logprobs_bgr, trained_bgr, totals) * weight_bgr).sum()
        if len(choice_places_m3):
            first = groups[0].old_logprobs_gr is None
            loss_m = self._choice_loss(choices, alternatives_mk, first, totals)
            loss = loss + (loss_m * choice_weight_m.to(device)).sum() / trajectories
        totals.sums["loss"] += float(loss.detach())
        totals.sums["tokens"] += int(trained_bgr.sum())
        return loss

    def _pairwise(
        self, groups: Sequence[TokenStreams], logprobs_bgr: Tensor, weight_bgr: Tensor, totals: UpdateMetrics
    ) -> Tensor:
        """Return the loss of the pairs among ``groups``."""
        device = logprobs_bgr.device
        beta_bgr = stack([group.kl_coef_gr for group in groups], device)
        reference_bgr = stack_known([group.reference_logprobs_gr for group in groups], device)
        if reference_bgr is None:
            if bool(beta_bgr.any()):
                raise ValueError("pairwise: there are no log-probabilities of a reference")
            reference_bgr = logprobs_bgr.detach()
        preference_bgr = stack([group.advantage_gr for group in groups], device)
        terms = pairwise(logprobs_bgr, reference_bgr, preference_bgr, beta_bgr)
        weight_b = weight_bgr.amax((-2, -1))
        margin_p = terms.margin[weight_b > 0]
        totals.sums["pairs"] += len(margin_p)
        totals.sums["pairs/right"] += int((margin_p > 0).sum())
        totals.sums["pairs/margin"] += float(margin_p.sum())
        return (terms.loss * weight_b).sum()

    def _surrogate(
        self,
        groups: Sequence[TokenStreams],
        logprobs_bgr: Tensor,
        trained_bgr: Tensor,
        totals: UpdateMetrics,
    ) -> Tensor:
        """Return the loss per token, ``[B, G, R]``."""
        device = logprobs_bgr.device
        old_bgr = stack_known([group.old_logprobs_gr for group in groups], device)
        if old_bgr is None:
            old_bgr = logprobs_bgr.detach()
        terms = surrogate(
            logprobs_bgr,
            old_bgr,
            stack([group.advantage_gr for group in groups], device),
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            ref_logprobs=stack_known([group.reference_logprobs_gr for group in groups], device),
            kl_coef=stack([group.kl_coef_gr for group in groups], device),
            weight=self._importance(groups, old_bgr, trained_bgr, totals),
            trajectories=trained_bgr if self.config.ratio == "trajectory" else None,
        )
        totals.sums["kl"] += float(terms.kl[trained_bgr].sum())
        totals.sums["clipped"] += float(terms.clipped[trained_bgr].sum())
        totals.note_largest("ratio", terms.ratio[trained_bgr])
        return terms.loss

    def _importance(
        self, groups: Sequence[TokenStreams], old_bgr: Tensor, trained_bgr: Tensor, totals: UpdateMetrics
    ) -> Tensor | None:
        """Return weights ``[B, G, R]`` of tokens that another engine sampled; None where no engine did."""
        if not any(group.foreign for group in groups):
            return None
        sampler_bgr = stack([_foreign_logprobs(group) for group in groups], old_bgr.device)
        cap = self.config.importance_cap
        totals.add_mismatch(old_bgr, sampler_bgr, trained_bgr, cap)
        return None if cap is None else importance_weight(old_bgr, sampler_bgr, cap)

    def _choice_loss(
        self, choices: Alternatives, logprobs_mk: Tensor, first: bool, totals: UpdateMetrics
    ) -> Tensor:
        """Return the loss of each token with choices, ``[M]``.

        ``first`` says that nothing has been learnt since sampling. In this case the old probabilities are the
        new ones. The probabilities that were read during the rollout may differ from them by rounding.
        """
        probability_mk = choices.probability.to(logprobs_mk.device)
        if first:
            probability_mk = choice_probability(logprobs_mk.detach(), probability_mk > 0)
        terms = choice_surrogate(
            logprobs_mk,
            probability_mk,
            choices.advantage.to(logprobs_mk.device),
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        totals.sums["clipped"] += float(terms.clipped.sum())
        totals.note_largest("ratio", terms.ratio)
        return terms.loss


def _repeated(group: TokenStreams) -> TokenStreams:
    """Return ``group`` for a pass that does not count, without log-probabilities that may be unknown here."""
    kl_coef_gr = torch.zeros_like(group.kl_coef_gr)
    return replace(group, kl_coef_gr=kl_coef_gr, old_logprobs_gr=None, reference_logprobs_gr=None)


def _foreign_logprobs(group: TokenStreams) -> Tensor:
    """Return another engine's log-probabilities of a group, ``[G, R]``; NaN where there are none."""
    known = group.sampler_logprobs_gr if group.foreign else None
    return torch.full(group.channel_gr.shape, torch.nan) if known is None else known
