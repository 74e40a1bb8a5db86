"""The optimizer that a run's settings name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from selfverify.core.errors import ConfigError
from selfverify.core.learner_settings import LearnerConfig


def make_optimizer(config: LearnerConfig, named: Iterable[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
    """AdamW over those of the ``named`` parameters that are trained.

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
