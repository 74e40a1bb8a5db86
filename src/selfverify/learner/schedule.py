"""The learning rate over a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from selfverify.core.learner_settings import LearnerConfig


def learning_rate_factor(config: LearnerConfig) -> Callable[[int], float]:
    """Factor on the peak learning rate by optimiser update: linear warm-up, then the schedule."""
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
