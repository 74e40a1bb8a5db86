"""A training run whose environment never says the same again, as a program for tests that kill it.

Usage: random_episodes.py STEPS OUTPUT [REPLAY]. A run that OUTPUT holds is resumed; the log of the run in
REPLAY is learnt from.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import ANSWER
from selfverify.experiments.registry import make_method
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.digits import DigitsSum, DigitsSumConfig

CHANCE = random.SystemRandom()
"""What no seed decides."""


class Moody(SingleTurn):
    """Replies after a while, up to three times, with words and images that are drawn anew every time.

    It may show something first, and may be over at once.
    """

    def reset(self) -> Observation | None:
        if not self.problem.environment_begins or CHANCE.random() < 0.2:
            return None
        image = Image.frombytes("L", (32, 32), CHANCE.randbytes(1024))
        parts = [{"type": "text", "text": str(CHANCE.randrange(1000))}, {"type": "image"}]
        return Observation(parts, [image], done=CHANCE.random() < 0.2)

    def step(self, said: PolicyTurn) -> Observation:
        time.sleep(CHANCE.uniform(0.0, 0.02))
        # Generators that others share are moved on, too.
        torch.rand(CHANCE.randrange(3))
        random.random()
        if CHANCE.random() < 0.05:
            raise OSError("the environment is gone")
        done = said.turn == 3 or CHANCE.random() < 0.4
        cuts = self._read(said, ANSWER, split=done)
        words = " ".join(str(CHANCE.randrange(10)) for _ in range(CHANCE.randrange(1, 6)))
        if CHANCE.random() < 0.5:
            image = Image.frombytes("L", (32, 32), CHANCE.randbytes(1024))
            return Observation(
                [{"type": "text", "text": words}, {"type": "image"}], [image], done=done, channels=cuts
            )
        return Observation(words, done=done, channels=cuts)

    def result(self) -> EpisodeResult:
        ending = super().result()
        ending.rewards["answer"] = CHANCE.random()
        if self._answers:
            ending.turns = [ending.parsed, *[{"turn": n} for n in range(1, len(self._answers))]]
        return ending


class Random(DigitsSum):
    """`digits-sum` with a moody environment."""

    name = "random-sum"
    limits = RolloutLimits(turns=4, step_threads=2, step_timeout_s=10.0)
    repeatable = False

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        if index == 3:
            raise DataError("this problem is gone")
        return replace(super().problem(split, seed, index), environment_begins=index % 2 == 0)

    def open(self, problem: Problem, seed: int) -> Episode:
        return Moody(problem, self.tags, self.verdict)


def run(steps: int, output: Path, replay: Path | None = None, **changes: Any) -> None:
    settings: dict[str, Any] = {
        "steps": steps,
        "groups_per_step": 2,
        "micro_batch_groups": 2,
        "learning_rate": 1e-3,
        "checkpoint_every": 3,
        "drop_zero_advantage": False,
        "rollout_log": "all",
    }
    learn(
        Policy.load("builtin:digits"),
        Random(DigitsSumConfig(count=2)),
        make_method("adpo", verification_credit="expected"),
        TrainerConfig(**settings | changes),
        SamplingConfig(group_size=3, max_new_tokens=20),
        output=output,
        seed=5,
        resume=True,
        on_step=lambda step, steps, metrics, timing: print("step", step, flush=True),
        replay=replay,
    ).save(output / "model")


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
