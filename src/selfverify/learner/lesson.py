"""What one training step learns from its groups: it shares them out, then makes update after update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from selfverify.core import ranks
from selfverify.learner.channels import channel_names
from selfverify.learner.passes import Pass
from selfverify.learner.source import GroupSource
from selfverify.learner.streams import GroupStreams
from selfverify.learner.totals import UpdateTotals
from selfverify.learner.update import Updater
from selfverify.policy.generators import kept_generators
from selfverify.policy.sampling import derived_seed


class Lesson:
    """Learns from the groups of one step after another.

    Args:
        updater: Makes the gradients.
        source: Made the groups. It completes those that another process made.
        scheduler: Sets the learning rate after each update.
    """

    def __init__(self, updater: Updater, source: GroupSource, scheduler: Any) -> None:
        self.updater, self.source, self.scheduler = updater, source, scheduler
        self._settled = False

    def learn(self, groups: list[GroupStreams], makers: Sequence[int], step: int) -> UpdateTotals:
        """Make the updates of one step.

        Args:
            groups: The groups of all processes, the same in every process.
            makers: The process that sampled each group of the rollout.
            step: The step's number.

        Returns:
            The totals of all processes.
        """
        totals, config, policy = UpdateTotals(), self.updater.config, self.updater.policy
        if not groups:
            return totals
        if ranks.count() > 1:
            # An adapter may drop values: each process draws its own, and the same ones after a resumption.
            place = config.groups_per_step + ranks.index()
            torch.manual_seed(derived_seed(self.source.seed, step, place))
        parts = np.array_split(np.arange(len(groups)), config.updates_per_rollout)
        batches = [[groups[i] for i in part] for part in parts if len(part)]
        for batch in batches:
            _share_out(batch, makers)
        passes = self.updater.passes(groups)
        updates = [(batch, self.updater.passes(batch)) for batch in batches]
        # A pass that does not count may be of a group that another process learns from.
        learnt = [
            batch[i]
            for batch, own in [(groups, passes), *updates]
            for i in dict.fromkeys(part.group for each in own for part in each.slices)
        ]
        shown = self.source.shown([group.number for group in learnt])
        for group in learnt:
            group.pictures = shown.get(group.number, group.pictures)
            group.prompt = self.source.complete(group.number, group.prompt)
            group.prepare_images(policy.encoder)
        self._settle(groups[passes[0].slices[0].group])
        self.updater.fix_logprobs(groups, passes)
        policy.model.train()
        for _ in range(config.inner_epochs):
            for batch, own in updates:
                if config.log_channels_every and (step + 1) % config.log_channels_every == 0:
                    self._measure_channels(batch, own, totals)
                self._update(batch, own, totals)
                if policy.engine is not None:
                    policy.engine.stale = True
                self.scheduler.step()
        policy.model.eval()
        return totals.together()

    def _update(self, batch: Sequence[GroupStreams], own: Sequence[Pass], totals: UpdateTotals) -> None:
        """Make one update, as ``learner.channels`` says."""
        updater, config = self.updater, self.updater.config
        names = [] if config.channels == "joint" else channel_names(batch)
        if not names:
            updater.gradient(batch, own, totals)
            totals.grad_norms.append(updater.parallel.step())
            return
        if config.channels == "alternate":
            # The count of updates is part of a checkpoint, so turns go on through steps and resumptions.
            names = [names[self.scheduler.last_epoch % len(names)]]
            updater.gradient(batch, own, totals, channel=names[0])
        else:
            updater.gradient(batch, own, totals, apart=names)
        rates = config.channel_rates
        norms = {n: updater.parallel.step(n, rates.get(n, 1.0), sharers=len(names)) for n in names}
        totals.add_norms(norms)
        totals.grad_norms.append(math.hypot(*norms.values()))

    def _measure_channels(
        self, batch: Sequence[GroupStreams], own: Sequence[Pass], totals: UpdateTotals
    ) -> None:
        """Measure the norm of each channel's gradient. What is learnt and drawn after it stays the same."""
        if self.updater.config.channels != "joint":
            return  # `_update` measures them anyway
        with kept_generators(self.updater.policy.device):
            self.updater.gradient(batch, own, UpdateTotals(), apart=channel_names(batch))
        totals.add_norms(self.updater.parallel.apart_norms())

    def _settle(self, group: GroupStreams) -> None:
        """Have a policy check what it checks once, before wrappers make all processes work in step."""
        if ranks.count() > 1 and not self._settled:
            policy = self.updater.policy
            with torch.no_grad():
                policy.whole(lambda: policy.logprobs([group.prompt], [group.continuations[:2]]))
            self._settled = True


def _share_out(batch: Sequence[GroupStreams], makers: Sequence[int]) -> None:
    """Decide which process learns from which group, so that all have about the same to do."""
    costs = [group.token_count for group in batch]
    owners = ranks.balance(costs, [makers[group.number] for group in batch], ranks.count())
    for group, owner in zip(batch, owners, strict=True):
        group.owner = owner
