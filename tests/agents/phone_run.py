"""Training an agent on the phone with a judge behind a server, as a program, for tests that kill it.

Usage: phone_run.py MODEL OUTPUT URL [resume]
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tests.agents.chaos import GIVEN
from tests.agents.told import Told

from killed_runs import train
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method
from selfverify.policy.policy import Policy
from selfverify_phone.task import PhoneAgents, PhoneAgentsConfig
from tiny_models import boosted

STEPS, GROUPS, SIZE = 6, 2, 3


class Telling(PhoneAgents):
    """Agents do what an expert does; a third of them does half of it, and proves as much as there is.

    What is learnt is what the policy has said meanwhile.
    """

    limits = RolloutLimits(turns=16)

    def open(self, problem: Problem, seed: int) -> Episode:
        """See `Task.open`."""
        turns = [turn.text for turn in self.demonstrate_turns(problem, np.random.default_rng(0))]
        return Told(super().open(problem, seed), turns if seed % 3 else _half(turns))


def _half(turns: Sequence[str]) -> list[str]:
    """The first half of the turns, and a submission of the first round."""
    submit = '<tool_call>{"name": "submit", "arguments": {"message": "Done.", "evidences": [1]}}</tool_call>'
    return [*turns[: max(len(turns) // 2, 1)], submit]


def main() -> None:
    """Train, and save the model."""
    model, output, url, *words = sys.argv[1:]
    torch.set_num_threads(1)
    policy = boosted(Policy.load(model), 10.0)  # turns end by themselves
    judge = {"kind": "model", "server": {"url": url, "model": "m", "seed": 0}}
    config = TrainerConfig(
        steps=STEPS, groups_per_step=GROUPS, optim={"learning_rate": 1e-3},
        loss={"ratio": "trajectory", "denominator": "trajectory"}, batch={"micro_batch_groups": 1},
        checkpoint={"every": 2, "keep_last": 2},
    )  # fmt: skip
    task = Telling(PhoneAgentsConfig.model_validate(GIVEN | {"judge": judge}))
    sampling = SamplingConfig(group_size=SIZE, max_new_tokens=24)
    train(policy, task, make_method("smartsnap"), config, sampling, Path(output), "resume" in words)


if __name__ == "__main__":
    main()
