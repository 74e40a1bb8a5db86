"""One optimiser update from streams. It knows objectives, not methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from selfverify import ranks
from selfverify.learner.config import LearnerConfig
from selfverify.learner.mismatch import Mismatch
from selfverify.learner.parallel import Parallel
from selfverify.learner.streams import GroupStreams, batch_weights, stack, stack_choices
from selfverify.objectives import (
    ChoiceTerms,
    choice_probability,
    choice_surrogate,
    importance_weight,
    likelihood,
    surrogate,
)
from selfverify.policy.policy import Policy
from selfverify.rollouts.types import Choices


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
    """Groups that are forwarded together; what does not ``count`` only keeps other processes company."""

    indices: list[int]
    counts: bool = True


def micro_batches(groups: Sequence[GroupStreams], owners: Sequence[int], size: int) -> list[Pass]:
    """This process's forward passes: like lengths together, so that little is padding.

    Wrappers make all processes work in step, so all get as many passes as the busiest one has. Who has fewer
    repeats a small one, which counts for nothing.

    Args:
        groups: Those of all processes.
        owners: Whose each of them is.
        size: Groups in one pass.
    """
    by_process: list[list[list[int]]] = []
    order = sorted(range(len(groups)), key=lambda i: (len(groups[i].prompt.ids), groups[i].channel.shape[1]))
    for process in range(ranks.count()):
        own = [i for i in order if owners[i] == process]
        by_process.append([own[start : start + size] for start in range(0, len(own), size)])
    mine = by_process[ranks.index()]
    missing = max(len(passes) for passes in by_process) - len(mine)
    filler = Pass((mine[0] if mine else order)[:1], counts=False)
    return [Pass(indices) for indices in mine] + [filler] * missing


@torch.no_grad()
def fixed_logprobs(
    policy: Policy, groups: Sequence[GroupStreams], passes: Sequence[Pass], temperature: float
) -> list[Tensor]:
    """Per group ``[G, R]`` log-probabilities under a policy that does not learn, on the CPU.

    Those of groups that are in no pass are left empty.
    """
    results: list[Tensor] = [torch.empty(0, 0)] * len(groups)
    for indices in (each.indices for each in passes):
        chosen = [groups[i] for i in indices]
        trained = stack([group.channel + 1 for group in chosen], policy.device) > 0
        values = policy.logprobs(
            [group.prompt for group in chosen],
            [group.tokens for group in chosen],
            temperature=temperature,
            needed=trained,
        ).cpu()
        for row, i in zip(values, indices, strict=True):
            results[i] = row[: groups[i].channel.shape[0], : groups[i].channel.shape[1]]
    return results


class Updater:
    """Gradient steps on one optimiser batch after another."""

    def __init__(self, policy: Policy, parallel: Parallel, config: LearnerConfig, objective: str) -> None:
        self.policy = policy
        self.parallel = parallel
        self.config = config
        self.objective = objective

    def gradient(
        self,
        groups: Sequence[GroupStreams],
        passes: Sequence[Pass],
        reference: Sequence[Tensor] | None,
        old: Sequence[Tensor] | None,
        temperature: float,
        totals: UpdateTotals,
    ) -> None:
        """Accumulate the gradient of one optimiser batch.

        Args:
            groups: The batch, of all processes.
            passes: This process's share of it.
            reference: Reference log-probs per group, None when no KL coefficient is above 0.
            old: Log-probs of the sampling policy; None when this update is the first after sampling,
                where the ratio is 1 by definition.
            temperature: That of sampling.
            totals: Added to, by this process's share.
        """
        weights = batch_weights(groups, self.config.denominator)
        trajectories = max(sum(group.trajectories for group in groups), 1)
        for number, each in enumerate(passes):
            last = number == len(passes) - 1
            with self.parallel.one_pass(last):
                counted = totals if each.counts else UpdateTotals()
                loss = self._loss(groups, each, weights, trajectories, reference, old, temperature, counted)
                self.parallel.backward(loss if each.counts else 0.0 * loss, last)

    def _loss(
        self,
        groups: Sequence[GroupStreams],
        each: Pass,
        weights: Sequence[Tensor],
        trajectories: int,
        reference: Sequence[Tensor] | None,
        old: Sequence[Tensor] | None,
        temperature: float,
        totals: UpdateTotals,
    ) -> Tensor:
        """One pass's share of the batch's loss."""
        device, indices = self.policy.device, each.indices
        chosen = [groups[i] for i in indices]
        if not each.counts:
            reference = old = None
            chosen = [replace(group, kl_coef=torch.zeros_like(group.kl_coef)) for group in chosen]
        trained = stack([group.channel + 1 for group in chosen], device) > 0
        weight = stack([weights[i] for i in indices], device)
        owners, choice_weight, choices = stack_choices(chosen)
        places = torch.stack([owners, choices.rows, choices.places], dim=1)
        logprobs, alternatives = self.policy.logprobs_and_choices(
            [group.prompt for group in chosen],
            [group.tokens for group in chosen],
            places,
            choices.tokens,
            temperature=temperature,
            needed=trained,
        )
        if self.objective == "likelihood":
            per_token = likelihood(logprobs)
        else:
            per_token = self._surrogate(chosen, indices, logprobs, reference, old, trained, totals)
        loss = (per_token * weight).sum()
        if len(places):
            terms = self._choice_terms(choices, alternatives, old is None, totals)
            loss = loss + (terms.loss * choice_weight.to(device)).sum() / trajectories
        totals.loss += float(loss.detach())
        totals.tokens += int(trained.sum())
        return loss

    def _choice_terms(
        self, choices: Choices, logprobs: Tensor, first: bool, totals: UpdateTotals
    ) -> ChoiceTerms:
        """``first``: nothing has been learnt since sampling, so the old probabilities are the new ones; those
        read during the rollout may differ by rounding."""
        probability = choices.probability.to(logprobs.device)
        if first:
            probability = choice_probability(logprobs.detach(), probability > 0)
        terms = choice_surrogate(
            logprobs,
            probability,
            choices.advantage.to(logprobs.device),
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
        )
        totals.clipped += float(terms.clipped.sum())
        totals.ratio_max = max(totals.ratio_max, float(terms.ratio.max()))
        return terms

    def _surrogate(
        self,
        chosen: Sequence[GroupStreams],
        indices: Sequence[int],
        logprobs: Tensor,
        reference: Sequence[Tensor] | None,
        old: Sequence[Tensor] | None,
        trained: Tensor,
        totals: UpdateTotals,
    ) -> Tensor:
        device, flat = logprobs.device, logprobs.flatten(0, 1)
        kl_coef = stack([group.kl_coef for group in chosen], device).flatten(0, 1)
        before = flat.detach() if old is None else stack([old[i] for i in indices], device).flatten(0, 1)
        rows = trained.flatten(0, 1)
        terms = surrogate(
            flat,
            before,
            stack([group.advantage for group in chosen], device).flatten(0, 1),
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            ref_logprobs=None
            if reference is None
            else stack([reference[i] for i in indices], device).flatten(0, 1),
            kl_coef=kl_coef,
            weight=self._importance(chosen, before, rows, totals),
        )
        totals.kl += float(terms.kl[rows].sum())
        totals.clipped += float(terms.clipped[rows].sum())
        if rows.any():
            totals.ratio_max = max(totals.ratio_max, float(terms.ratio[rows].max()))
        return terms.loss.view_as(logprobs)

    def _importance(
        self, chosen: Sequence[GroupStreams], old: Tensor, trained: Tensor, totals: UpdateTotals
    ) -> Tensor | None:
        """Weights ``[N, R]`` of what another engine has sampled; None where the learner's model did."""
        if not any(group.foreign for group in chosen):
            return None
        unknown = [torch.full(group.channel.shape, torch.nan) for group in chosen]
        sampler = stack(
            [
                other if group.sampler_logprobs is None or not group.foreign else group.sampler_logprobs
                for group, other in zip(chosen, unknown, strict=True)
            ],
            old.device,
        ).flatten(0, 1)
        cap = self.config.importance_cap
        totals.mismatch.add(old, sampler, trained, cap)
        return None if cap is None else importance_weight(old, sampler, cap)
