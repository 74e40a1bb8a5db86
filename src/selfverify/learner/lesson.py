"""What one step learns from its groups: who takes which, fixed log-probs, update after update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from selfverify.core import ranks
from selfverify.learner.source import GroupSource
from selfverify.learner.streams import GroupStreams
from selfverify.learner.update import Pass, Updater, UpdateTotals, fixed_logprobs, micro_batches
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import derived_seed


class Lesson:
    """Learns from the groups of one step after another.

    Args:
        policy: Learns.
        reference: Of the KL term; None where there is none.
        source: Made the groups; completes those that another process made.
        updater: Makes gradients, by its own settings.
        scheduler: Of the learning rate, by updates.
        temperature: That of sampling.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Policy | None,
        source: GroupSource,
        updater: Updater,
        scheduler: Any,
        temperature: float,
    ) -> None:
        self.policy, self.reference, self.source = policy, reference, source
        self.updater, self.scheduler, self.temperature = updater, scheduler, temperature
        self.config = updater.config
        self._settled = False

    def learn(self, groups: list[GroupStreams], makers: Sequence[int], step: int) -> UpdateTotals:
        """Make the updates of one step.

        Args:
            groups: Those of all processes, the same everywhere.
            makers: Which process sampled each group of the rollout.
            step: Its number.

        Returns:
            The sums over all processes.
        """
        totals = UpdateTotals()
        if not groups:
            return totals
        if ranks.count() > 1:
            # Dropout in an adapter: each process draws its own, the same after a resumption.
            place = self.config.groups_per_step + ranks.index()
            torch.manual_seed(derived_seed(self.source.seed, step, place))
        parts = [
            [int(i) for i in part]
            for part in np.array_split(np.arange(len(groups)), self.config.updates_per_rollout)
            if len(part)
        ]
        owners, size = self._share_out(groups, parts, makers), self.config.micro_batch_groups
        everything = micro_batches(groups, owners, size)
        plans = [micro_batches([groups[i] for i in part], [owners[i] for i in part], size) for part in parts]
        mine = {i for each in everything for i in each.indices}
        mine |= {
            part[i] for part, plan in zip(parts, plans, strict=True) for each in plan for i in each.indices
        }
        for i in mine:
            groups[i].prompt = self.source.complete(groups[i].number, groups[i].prompt)
        self._settle(groups[everything[0].indices[0]])
        self._set_reference_logprobs(groups, everything)
        self._set_old_logprobs(groups, everything)
        self.policy.model.train()
        for _ in range(self.config.inner_epochs):
            for part, plan in zip(parts, plans, strict=True):
                self.updater.gradient([groups[i] for i in part], plan, self.temperature, totals)
                totals.grad_norms.append(self.updater.parallel.step())
                if self.policy.engine is not None:
                    self.policy.engine.stale = True
                self.scheduler.step()
        self.policy.model.eval()
        return totals.together()

    def _settle(self, group: GroupStreams) -> None:
        """Have a policy check what it checks once, before wrappers make all processes work in step."""
        if ranks.count() > 1 and not self._settled:
            with torch.no_grad():
                self.policy.whole(lambda: self.policy.logprobs([group.prompt], [group.tokens[:2]]))
            self._settled = True

    def _share_out(
        self, groups: Sequence[GroupStreams], parts: Sequence[Sequence[int]], makers: Sequence[int]
    ) -> list[int]:
        """Which process learns from which group: in every part all have about the same to do."""
        owners = [makers[group.number] for group in groups]
        for part in parts:
            costs = [groups[i].token_count for i in part]
            shared = ranks.balance(costs, [owners[i] for i in part], ranks.count())
            for i, owner in zip(part, shared, strict=True):
                owners[i] = owner
        return owners

    def _set_reference_logprobs(self, groups: Sequence[GroupStreams], passes: Sequence[Pass]) -> None:
        if self.reference is None or not any(bool(group.kl_coef_gr.any()) for group in groups):
            return
        with self.updater.parallel.autocast():
            found = fixed_logprobs(self.reference, groups, passes, self.temperature)
        for group, logprobs_gr in zip(groups, found, strict=True):
            group.reference_logprobs_gr = logprobs_gr

    def _set_old_logprobs(self, groups: Sequence[GroupStreams], passes: Sequence[Pass]) -> None:
        """Where several updates follow a rollout; of a single one they are the update's own.

        Sampling gave them; what another engine or nobody has sampled has them computed.
        """
        several = self.config.updates_per_rollout * self.config.inner_epochs > 1
        if not several or self.updater.objective != "surrogate":
            return
        known = [None if group.foreign else group.sampler_logprobs_gr for group in groups]
        if any(logprobs_gr is None for logprobs_gr in known):
            known = [*fixed_logprobs(self.policy, groups, passes, self.temperature)]
        for group, logprobs_gr in zip(groups, known, strict=True):
            group.old_logprobs_gr = logprobs_gr
