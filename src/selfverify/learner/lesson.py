"""What one training step learns from its groups: it shares them out, then makes update after update."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from selfverify.core import ranks
from selfverify.core.errors import SelfVerifyError
from selfverify.core.events import note
from selfverify.learner.channels import channel_names
from selfverify.learner.passes import MicroBatch
from selfverify.learner.source import RolloutSource
from selfverify.learner.streams import TokenStreams
from selfverify.learner.totals import UpdateMetrics
from selfverify.learner.update import LossComputer
from selfverify.policy.decoding import derived_seed, kept_generators

logger = logging.getLogger(__name__)

SKIPPED = 3
"""Training stops after so many updates in a row whose gradients were not finite."""
SKIPPED_WHILE_SCALING = 24
"""The same where float16's loss is scaled: the scale begins at 2^16 and halves until gradients are finite."""


class TrainStep:
    """Learns from the groups of one step after another.

    Args:
        updater: Makes the gradients.
        source: Made the groups. It completes those that another process made.
        scheduler: Sets the learning rate after each update.
    """

    def __init__(self, updater: LossComputer, source: RolloutSource, scheduler: Any) -> None:
        self.updater, self.source, self.scheduler = updater, source, scheduler
        self.skipped: dict[str, int] = {}
        """How many updates in a row were skipped up to now, by channel; "" where all step jointly."""
        self._settled = False

    def learn(self, groups: list[TokenStreams], makers: Sequence[int], step: int) -> UpdateMetrics:
        """Make the updates of one step.

        Args:
            groups: The groups of all processes, the same in every process.
            makers: The process that sampled each group of the rollout.
            step: The step's number.

        Returns:
            The totals of all processes.
        """
        totals, config, policy = UpdateMetrics(), self.updater.config, self.updater.policy
        if not groups:
            return totals
        # An adapter may drop values: each process draws its own, and the same ones whenever it begins.
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

    def _update(
        self, batch: Sequence[TokenStreams], own: Sequence[MicroBatch], totals: UpdateMetrics
    ) -> None:
        """Make one update, as ``learner.channels`` says."""
        updater, config = self.updater, self.updater.config
        names = [] if config.channels == "joint" else channel_names(batch)
        if not names:
            updater.gradient(batch, own, totals)
            totals.grad_norms.append(self._step(totals))
            return
        if config.channels == "alternate":
            # The count of updates is part of a checkpoint, so turns go on through steps and resumptions.
            names = [names[self.scheduler.last_epoch % len(names)]]
            updater.gradient(batch, own, totals, channel=names[0])
        else:
            updater.gradient(batch, own, totals, apart=names)
        rates = config.channel_rates
        norms = {n: self._step(totals, n, rates.get(n, 1.0), sharers=len(names)) for n in names}
        totals.add_norms(norms)
        totals.grad_norms.append(math.hypot(*norms.values()))

    def _step(self, totals: UpdateMetrics, channel: str = "", rate: float = 1.0, sharers: int = 1) -> float:
        """Make a channel's update, or skip it where its gradient is not finite; returns the norm.

        A skipped update counts as one: the schedule of the learning rate and the turns of channels go on.

        Raises:
            SelfVerifyError: So many were skipped in a row that nothing is learnt any more.
        """
        norm = self.updater.parallel.step(channel, rate, sharers)
        if math.isfinite(norm):
            self.skipped.pop(channel, None)
            return norm
        totals.skipped += 1
        row = self.skipped[channel] = self.skipped.get(channel, 0) + 1
        whose = f"the gradient of channel {channel}" if channel else "the gradient"
        if ranks.index() == 0:
            message = f"{whose} is not finite (its norm is {norm}); no update is made, and training goes on"
            note(logger, "update_skipped", message, channel=channel or "all", norm=str(norm))
        if row >= (SKIPPED_WHILE_SCALING if self.updater.parallel.scales_loss else SKIPPED):
            raise SelfVerifyError(
                f"{whose} was not finite in {row} updates in a row, so that nothing is learnt: training "
                "stops. The checkpoints are as they were. Resume from the newest one with a lower "
                f"learner.learning_rate (now {self.updater.config.learning_rate:g}) or in float32 "
                "(policy.dtype, mixed_precision). If that ends here again, the trouble began before it: "
                "move it away, so that an older one is taken"
            )
        return norm

    def _measure_channels(
        self, batch: Sequence[TokenStreams], own: Sequence[MicroBatch], totals: UpdateMetrics
    ) -> None:
        """Measure the norm of each channel's gradient. What is learnt and drawn after it stays the same."""
        if self.updater.config.channels != "joint":
            return  # `_update` measures them anyway
        with kept_generators(self.updater.policy.device):
            self.updater.gradient(batch, own, UpdateMetrics(), apart=channel_names(batch))
        totals.add_norms(self.updater.parallel.apart_norms())

    def _settle(self, group: TokenStreams) -> None:
        """Have a policy check what it checks once, before wrappers make all processes work in step."""
        if ranks.count() > 1 and not self._settled:
            policy = self.updater.policy
            with torch.no_grad():
                policy.whole(lambda: policy.logprobs([group.prompt], [group.continuations[:2]]))
            self._settled = True


def _share_out(batch: Sequence[TokenStreams], makers: Sequence[int]) -> None:
    """Decide which process learns from which group, so that all have about the same to do."""
    costs = [group.token_count for group in batch]
    owners = ranks.balance(costs, [makers[group.number] for group in batch], ranks.count())
    for group, owner in zip(batch, owners, strict=True):
        group.owner = owner
