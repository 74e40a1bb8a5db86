"""Our side of `train_step.py`: one training step with a reward that random text earns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import RESPONSE_TOKENS, PreparedTask

from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Segment
from selfverify.methods.adpo import ADPO
from selfverify.methods.base import Training
from selfverify.methods.grpo import GRPO
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.trainer.trainer import Trainer

BETA, LEARNING_RATE = 0.01, 1e-5


@dataclass(frozen=True, slots=True)
class Setting:
    """What both sides get: ``per_step`` of the ``problems`` and ``group`` samples of each in every step."""

    folder: str
    problems: Sequence[Problem]
    per_step: int
    group: int
    repeats: int
    seed: int
    processor: Callable[[Any], Any]
    """Makes TRL's processor of a tokenizer."""
    clock: Callable[[], float] = time.perf_counter


def checksum(tokens: Sequence[int]) -> float:
    """A reward in [0, 1] that random text earns: it differs between nearly all samples."""
    return sum((n + 1) * token for n, token in enumerate(tokens)) % 101 / 100


def regrade(rollout: Rollout) -> Rollout:
    """Checksums instead of the task's rewards; the last quarter of each response is its score."""
    for group in rollout.groups:
        for trajectory in group.trajectories:
            tokens, logprobs, finish = trajectory.tokens, trajectory.logprobs, trajectory.finish
            cut = max(1, len(tokens) * 3 // 4)
            trajectory.segments = [Segment("answer", tokens[:cut], logprobs[:cut])]
            if cut < len(tokens):
                trajectory.segments.append(Segment("score", tokens[cut:], logprobs[cut:]))
            trajectory.segments[-1].finish = finish
            reward = checksum(tokens)
            trajectory.scores = {"sampled": checksum(tokens[cut:])}
            trajectory.rewards.update(
                answer=reward, correct=float(reward > 0.5), answer_format=1, score_format=1, score_opened=1
            )
    return rollout


class ChecksumGRPO(GRPO):
    """GRPO with rewards that random text earns."""

    def rollout(self, *args: Any) -> Rollout:
        """See `Method.rollout`."""
        return regrade(super().rollout(*args))


class ChecksumADPO(ADPO):
    """ADPO with rewards that random text earns."""

    def rollout(self, *args: Any) -> Rollout:
        """See `Method.rollout`."""
        return regrade(super().rollout(*args))


def make_learner(setting: Setting, method: Any, rate: float, out: str) -> Trainer:
    """Ours, with TRL's settings."""
    config = TrainerConfig(
        steps=1000,
        groups_per_step=setting.per_step,
        micro_batch_groups=setting.per_step,
        learning_rate=rate,
        betas=(0.9, 0.999),
        max_grad_norm=1.0,
    )
    sampling = SamplingConfig(group_size=setting.group, top_p=0.99, max_new_tokens=RESPONSE_TOKENS)
    policy = Policy.load(setting.folder, device="cpu")
    task = PreparedTask(setting.problems)
    return Trainer(Training(policy, task, method, config, sampling, Path(out), setting.seed))


def timed_step(learner: Trainer, clock: Callable[[], float]) -> tuple[float, int]:
    """Seconds and generated tokens of one of our steps."""
    start = clock()
    metrics, _ = learner.train_step()
    seconds = clock() - start
    learner.step += 1
    count = learner.config.groups_per_step
    if metrics["groups/kept"] != count:
        raise SystemExit(f"only {metrics['groups/kept']} of {count} groups taught something")
    rows = count * learner.training.sampling.group_size
    return seconds, round(metrics["tokens/response"] * rows)
