"""The optimizer that a run's settings name, and its learning rate over the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from selfverify.core.errors import ConfigError
from selfverify.core.learner_settings import LearnerConfig


def make_optimizer(config: LearnerConfig, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """Make AdamW over those of the ``named`` parameters that are trained.

    Raises:
        ConfigError: ``learner.optimizer`` needs a package that is not installed.
    """
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "weight_decay": config.weight_decay,
    }
    if config.optimizer == "adamw":
        return torch.optim.AdamW(trained, **settings)
    try:
        from bitsandbytes.optim import AdamW8bit
    except ImportError as error:
        raise ConfigError(
            "learner.optimizer=adamw_8bit needs bitsandbytes: pip install 'selfverify[8bit]'"
        ) from error
    made: torch.optim.Optimizer = AdamW8bit(trained, **settings)
    return made


def learning_rate_factor(config: LearnerConfig) -> Callable[[int], float]:
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
        if config.schedule == "cosine":
            return float(0.5 * (1 + np.cos(np.pi * min(done, 1.0))))
        return 1.0

    return factor
