"""One update by the learner's own code, for tests that look at its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from selfverify.core.trainer_config import TrainerConfig
from selfverify.policy.policy import Policy
from selfverify.trainer.batch import TokenStreams
from selfverify.trainer.loss import LossComputer, UpdateMetrics, fixed_logprobs
from selfverify.trainer.parallel import Parallel, make_accelerator


def trainer_config(**settings: Any) -> TrainerConfig:
    """Make a config of one step, unless ``settings`` say otherwise; ``optim__name`` is `name` in `optim`."""
    blocks: dict[str, Any] = {"steps": 1}
    for name, value in settings.items():
        block, _, key = name.rpartition("__")
        (blocks.setdefault(block, {}) if block else blocks)[key] = value
    return TrainerConfig(**blocks)


def update(
    policy: Policy,
    groups: Sequence[TokenStreams],
    reference: Policy | None = None,
    old: Sequence[torch.Tensor] | None = None,
    temperature: float = 1.0,
    objective: str = "surrogate",
    **settings: object,
) -> UpdateMetrics:
    """Leave the gradient of one batch on ``policy``; ``settings`` are those of `trainer_config`."""
    config = trainer_config(**settings)
    policy.model.zero_grad()
    optimizer = torch.optim.AdamW(p for p in policy.model.parameters() if p.requires_grad)
    parallel = Parallel(make_accelerator(policy), policy, None, optimizer, config.optim.max_grad_norm)
    updater = LossComputer(parallel, config, objective, temperature)
    passes = updater.passes(groups)
    fixed = None if reference is None else fixed_logprobs(reference, groups, passes, temperature)
    groups = [
        replace(
            group,
            reference_logprobs_gr=None if fixed is None else fixed[i],
            old_logprobs_gr=None if old is None else old[i],
        )
        for i, group in enumerate(groups)
    ]
    totals = UpdateMetrics()
    updater.gradient(groups, passes, totals)
    return totals
