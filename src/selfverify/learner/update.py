"""One optimiser update from streams. It knows objectives, not methods.

Names of tensors end in their axes, as in `selfverify.learner.streams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from selfverify.core import ranks
from selfverify.core.credit import Alternatives
from selfverify.core.learner_settings import LearnerConfig
from selfverify.learner.mismatch import Mismatch
from selfverify.learner.parallel import Parallel
from selfverify.learner.streams import GroupStreams, batch_weights, stack, stack_choices, stack_known
from selfverify.objectives import (
    choice_probability,
    choice_surrogate,
    importance_weight,
    likelihood,
    surrogate,
)
from selfverify.policy.policy import Policy


@dataclass(slots=True)
class UpdateTotals:
    """Sums over trained tokens, for logging."""

    loss: float = 0.0
    tokens: int = 0
    kl: float = 0.0
    clipped: float = 0.0
    ratio_max: float = 1.0
    grad_norms: list[float] = field(default_factory=list)
    mismatch: Mismatch = field(default_factory=Mismatch)

    def together(self) -> UpdateTotals:
        """Those of all processes; every one of them has to call it."""
        parts = ranks.gather(self)
        return UpdateTotals(
            loss=sum(part.loss for part in parts),
            tokens=sum(part.tokens for part in parts),
            kl=sum(part.kl for part in parts),
            clipped=sum(part.clipped for part in parts),
            ratio_max=max(part.ratio_max for part in parts),
            grad_norms=self.grad_norms,  # of the summed gradient, so the same everywhere
            mismatch=Mismatch.together([part.mismatch for part in parts]),
        )

    def metrics(self) -> dict[str, float]:
        """Means per update or per trained token."""
        updates, tokens = max(len(self.grad_norms), 1), max(self.tokens, 1)
        return {
            "loss": self.loss / updates,
            "kl": self.kl / tokens,
            "clip_share": self.clipped / tokens,
            "ratio_max": self.ratio_max,
            "grad_norm": sum(self.grad_norms) / updates,
            "tokens/trained": float(self.tokens),
            **self.mismatch.metrics(),
        }


@dataclass(frozen=True, slots=True)
class Pass:
    """Groups that are forwarded together.

    Args:
        indices: Which groups of the batch.
        counts: False for a pass that only keeps the processes in step: its gradient and figures are dropped.
    """

    indices: list[int]
    counts: bool = True


def micro_batches(groups: Sequence[GroupStreams], owners: Sequence[int], size: int) -> list[Pass]:
    """This process's forward passes: like lengths together, so that little is padding.

    Wrappers make all processes work in step, so all get as many passes as the busiest one has. One that
    has fewer repeats a small pass, which does not count.

    Args:
        groups: Those of all processes.
        owners: The process that learns from each group.
        size: Groups in one pass.
    """
    lengths = [(len(group.prompt.ids), group.channel_gr.shape[1]) for group in groups]
    order = sorted(range(len(groups)), key=lambda i: lengths[i])
    own = [i for i in order if owners[i] == ranks.index()]
    passes = [Pass(own[start : start + size]) for start in range(0, len(own), size)]
    most = max(-(-owners.count(process) // size) for process in range(ranks.count()))
    return passes + [Pass((own or order)[:1], counts=False)] * (most - len(passes))


@torch.no_grad()
def fixed_logprobs(
    policy: Policy, groups: Sequence[GroupStreams], passes: Sequence[Pass], temperature: float
) -> list[Tensor]:
    """Per group ``[G, R]`` log-probabilities under a policy that does not learn, on the CPU.

    Those of groups that are in no pass are left empty.
    """
    results: list[Tensor] = [torch.empty(0, 0)] * len(groups)
    for each in passes:
        chosen = [groups[i] for i in each.indices]
        logprobs_bgr = policy.logprobs(
            [group.prompt for group in chosen],
            [group.tokens for group in chosen],
            temperature=temperature,
            needed=stack([group.trained_gr for group in chosen], policy.device),
        ).cpu()
        for i, group, logprobs_gr in zip(each.indices, chosen, logprobs_bgr, strict=True):
            g, r = group.channel_gr.shape
            results[i] = logprobs_gr[:g, :r]
    return results


class Updater:
    """Makes the gradients of one optimiser batch after another."""

    def __init__(self, policy: Policy, parallel: Parallel, config: LearnerConfig, objective: str) -> None:
        self.policy, self.parallel = policy, parallel
        self.config, self.objective = config, objective

    def gradient(
        self,
        groups: Sequence[GroupStreams],
        passes: Sequence[Pass],
        temperature: float,
        totals: UpdateTotals,
    ) -> None:
        """Accumulate the gradient of one optimiser batch.

        Args:
            groups: The batch, of all processes.
            passes: This process's share of it.
            temperature: That of sampling.
            totals: Added to, by this process's share.
        """
        weights = batch_weights(groups, self.config.denominator)
        trajectories = max(sum(group.trajectories for group in groups), 1)
        for number, each in enumerate(passes):
            last = number == len(passes) - 1
            chosen = [groups[i] if each.counts else _repeated(groups[i]) for i in each.indices]
            shares = [weights[i] for i in each.indices]
            counted = totals if each.counts else UpdateTotals()
            with self.parallel.one_pass(last):
                loss = self._loss(chosen, shares, trajectories, temperature, counted)
                self.parallel.backward(loss if each.counts else 0.0 * loss, last)

    def _loss(
        self,
        groups: Sequence[GroupStreams],
        weights: Sequence[Tensor],
        trajectories: int,
        temperature: float,
        totals: UpdateTotals,
    ) -> Tensor:
        """One pass's share of the batch's loss."""
        device = self.policy.device
        trained_bgr = stack([group.trained_gr for group in groups], device)
        choice_places_m3, choice_weight_m, choices = stack_choices(groups)
        logprobs_bgr, alternatives_mk = self.policy.logprobs_and_choices(
            [group.prompt for group in groups],
            [group.tokens for group in groups],
            choice_places_m3,
            choices.tokens,
            temperature=temperature,
            needed=trained_bgr,
        )
        if self.objective == "likelihood":
            loss_bgr = likelihood(logprobs_bgr)
        else:
            loss_bgr = self._surrogate(groups, logprobs_bgr, trained_bgr, totals)
        loss = (loss_bgr * stack(weights, device)).sum()
        if len(choice_places_m3):
            first = groups[0].old_logprobs_gr is None
            loss_m = self._choice_loss(choices, alternatives_mk, first, totals)
            loss = loss + (loss_m * choice_weight_m.to(device)).sum() / trajectories
        totals.loss += float(loss.detach())
        totals.tokens += int(trained_bgr.sum())
        return loss

    def _surrogate(
        self,
        groups: Sequence[GroupStreams],
        logprobs_bgr: Tensor,
        trained_bgr: Tensor,
        totals: UpdateTotals,
    ) -> Tensor:
        """Loss per token, ``[B, G, R]``."""
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
        )
        totals.kl += float(terms.kl[trained_bgr].sum())
        totals.clipped += float(terms.clipped[trained_bgr].sum())
        if trained_bgr.any():
            totals.ratio_max = max(totals.ratio_max, float(terms.ratio[trained_bgr].max()))
        return terms.loss

    def _importance(
        self, groups: Sequence[GroupStreams], old_bgr: Tensor, trained_bgr: Tensor, totals: UpdateTotals
    ) -> Tensor | None:
        """Weights ``[B, G, R]`` of what another engine has sampled; None where the learner's model did."""
        if not any(group.foreign for group in groups):
            return None
        sampler_bgr = stack([_foreign_logprobs(group) for group in groups], old_bgr.device)
        cap = self.config.importance_cap
        totals.mismatch.add(old_bgr, sampler_bgr, trained_bgr, cap)
        return None if cap is None else importance_weight(old_bgr, sampler_bgr, cap)

    def _choice_loss(
        self, choices: Alternatives, logprobs_mk: Tensor, first: bool, totals: UpdateTotals
    ) -> Tensor:
        """Loss of each token with choices, ``[M]``.

        ``first`` says that nothing has been learnt since sampling. The old probabilities are the new ones
        then; those read during the rollout may differ by rounding.
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
        totals.clipped += float(terms.clipped.sum())
        totals.ratio_max = max(totals.ratio_max, float(terms.ratio.max()))
        return terms.loss


def _repeated(group: GroupStreams) -> GroupStreams:
    """A group for a pass that does not count: other log-probs than the policy's may be unknown here."""
    kl_coef_gr = torch.zeros_like(group.kl_coef_gr)
    return replace(group, kl_coef_gr=kl_coef_gr, old_logprobs_gr=None, reference_logprobs_gr=None)


def _foreign_logprobs(group: GroupStreams) -> Tensor:
    """What another engine says of the group's tokens, ``[G, R]``; NaN where none says anything."""
    known = group.sampler_logprobs_gr if group.foreign else None
    return torch.full(group.channel_gr.shape, torch.nan) if known is None else known
