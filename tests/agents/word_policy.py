"""Small text policies that know the words of calls, and two steps of training with them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from selfverify.core.config import SamplingConfig
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method
from selfverify.methods.base import Training
from selfverify.policy.policy import Policy
from selfverify.tasks.base import Task
from selfverify.trainer.trainer import Trainer
from selfverify_phone.fresh_model import text_tokenizer, write_tiny_text
from tiny_models import boosted

LoadPolicy = Callable[[], Policy]


def word_policy(folder: Path, texts: Sequence[str], context: int = 4096) -> LoadPolicy:
    """Write a policy to a folder; what is returned loads it."""
    write_tiny_text(folder, text_tokenizer(texts), hidden=32, layers=1, context=context)

    def load() -> Policy:
        """Most of its turns end within the limit."""
        return boosted(Policy.load(str(folder), device="cpu"), 6.0)

    return load


def two_steps(
    policy: Policy, task: Task, method: str, folder: Path, turns: int = 3, **options: Any
) -> list[dict[str, Any]]:
    """What two steps of training log: two problems of two samples each."""
    every, optim = {"every": 0}, {"learning_rate": 1e-3}
    learner = TrainerConfig(steps=2, groups_per_step=2, optim=optim, checkpoint=every)
    sampling = SamplingConfig(group_size=2, max_new_tokens=12)
    task.limits = task.limits.model_copy(update={"turns": turns})
    Trainer(Training(policy, task, make_method(method, **options), learner, sampling, folder)).run()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
