"""The optimizer that a run's settings name, and its learning rate over the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from selfverify.core.errors import ConfigError
from selfverify.core.trainer_config import TrainerConfig
from selfverify.learner.channel_optimizer import LOW_PRECISION, ChannelOptimizer

DECAYING = 0.2
"""The share of the updates in which the rate of `stable_decay` falls."""


def make_optimizer(
    config: TrainerConfig, named: Iterable[tuple[str, nn.Parameter]], master_weights: bool = False
) -> torch.optim.Optimizer:
    """Make AdamW over those of the ``named`` parameters that are trained.

    Args:
        config: Names the optimizer and its settings.
        named: The names and parameters of a model.
        master_weights: Whether trained weights of low precision have float32 masters.

    Raises:
        ConfigError: ``learner.optimizer`` needs a package that is not installed.
    """
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "weight_decay": config.weight_decay,
    }
    make = _optimizer_class(config.optimizer)
    low = any(parameter.dtype in LOW_PRECISION for _, parameter in trained)
    if config.channels != "joint" or (master_weights and low):
        return ChannelOptimizer(trained, make, settings, master_weights)
    return make(trained, **settings)


def _optimizer_class(name: str) -> Callable[..., torch.optim.Optimizer]:
    if name == "adamw":
        return torch.optim.AdamW
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise ConfigError(
            "learner.optimizer=adamw_8bit needs bitsandbytes: pip install 'selfverify[8bit]'"
        ) from error
    made: Callable[..., torch.optim.Optimizer] = AdamW8bit
    return made


def lost_steps(optimizer: torch.optim.Optimizer, learning_rate: float) -> str:
    """Say that steps are mostly lost in the rounding of weights; empty where they are not, or masters exist.

    AdamW changes a weight by about its learning rate. Rounding loses a change of less than half the distance
    to the next number, which is at least a quarter of the type's epsilon times the weight.
    """
    if isinstance(optimizer, ChannelOptimizer) and optimizer.masters:
        return ""
    low = [p for group in optimizer.param_groups for p in group["params"] if p.dtype in LOW_PRECISION]
    if not low:
        return ""
    typical = sum(float(p.detach().abs().sum(dtype=torch.float32)) for p in low) / sum(p.numel() for p in low)
    least = typical * torch.finfo(low[0].dtype).eps / 4
    if learning_rate >= least:
        return ""
    name = str(low[0].dtype).removeprefix("torch.")
    return (
        f"learner.learning_rate={learning_rate:g} is small for {name} weights without masters: a typical "
        f"weight is {typical:.2g}, and rounding loses changes of less than {least:.2g}, so that most weights "
        "will not move. Set policy.master_weights=true, policy.dtype=float32 or policy.lora={}"
    )


def learning_rate_factor(config: TrainerConfig) -> Callable[[int], float]:
    """Return a function from an update's number to its factor on the peak learning rate.

    The factor rises linearly during the warm-up; then it follows ``config.schedule``.
    """
    per_step = config.updates_per_rollout * config.inner_epochs
    total, warmup = config.steps * per_step, config.warmup_steps * per_step

    def factor(update: int) -> float:
        if update < warmup:
            return (update + 1) / warmup
        done = (update - warmup) / max(total - warmup, 1)
        if config.schedule == "linear":
            return max(1.0 - done, 0.0)
        if config.schedule == "stable_decay":
            return min(max((1.0 - done) / DECAYING, 0.0), 1.0)
        if config.schedule == "cosine":
            return float(0.5 * (1 + np.cos(np.pi * min(done, 1.0))))
        return 1.0

    return factor
