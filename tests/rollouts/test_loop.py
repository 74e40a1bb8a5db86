"""The one loop: what a batch depends on, when environments are given back, and what a hang costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.rollouts.test_converse import LONG, Chat, Talkative, asked, ending_policy

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Trajectory
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import Rollout, rollout

__all__ = ["asked", "ending_policy"]  # fixtures

SAMPLING = SamplingConfig(group_size=4, max_new_tokens=10, top_p=1.0)
PROBLEM = Chat().problem("train", 0, 0)


def hold(
    policy: Policy, problems: list[Problem], make: Callable[[int], Talkative], limits: RolloutLimits = LONG
) -> Rollout:
    return rollout(
        PolicySampler(policy, SAMPLING), Chat(), problems, [3, 4][: len(problems)], SAMPLING.group_size,
        open_episode=lambda problem, seed: make(seed), limits=limits,
    )  # fmt: skip


def flat(made: Rollout) -> list[Trajectory]:
    return [trajectory for group in made.groups for trajectory in group.trajectories]


class Late(Talkative):
    """Replies after a time of its own."""

    def step(self, said: PolicyTurn) -> Observation:
        time.sleep(0.002 * (self.rng.randrange(6)))
        return super().step(said)


def test_threads_change_nothing(ending_policy: Callable[..., Policy], asked: list[Problem]) -> None:
    """The composition of each batch depends on the conversations, never on the clock: the same bits."""
    policy = ending_policy()
    inline = hold(policy, asked, Late)
    threads = hold(policy, asked, Late, LONG.model_copy(update={"step_threads": 8}))
    assert flat(inline) == flat(threads)


class Judged(Talkative):
    """Is over after two turns, and is judged for 0.2 s.

    Args:
        seed: See `Talkative`.
        log: Gets what happens, in order.
        judges: Where judges work.
    """

    def __init__(self, seed: int, log: list[str], judges: ThreadPoolExecutor) -> None:
        super().__init__(seed)
        self.log, self.judges = log, judges

    def step(self, said: PolicyTurn) -> Observation:
        self.log.append("step")
        return Observation("more", done=said.turn == 1)

    def release(self) -> None:
        self.log.append("release")

    def awaited(self) -> Future[Any]:
        def judge() -> None:
            self.log.append("judge")
            time.sleep(0.2)
            self.log.append("verdict")

        return self.judges.submit(judge)

    def result(self) -> EpisodeResult:
        self.log.append("result")
        return EpisodeResult({"answer": 1.0})


@pytest.mark.parametrize("threads", [0, 3])
def test_no_judge_holds_an_environment(
    ending_policy: Callable[..., Policy], asked: list[Problem], threads: int
) -> None:
    """Eight judges begin once their environments are free, and work at the same time."""
    log: list[str] = []
    limits = LONG.model_copy(update={"turns": 1, "step_threads": threads})
    with ThreadPoolExecutor(8) as judges:
        made = hold(ending_policy(), asked, lambda seed: Judged(seed, log, judges), limits)
    assert log == ["step"] * 8 + ["release"] * 8 + ["judge"] * 8 + ["verdict"] * 8 + ["result"] * 8
    assert all(t.rewards == {"answer": 1.0} for t in flat(made))


class Hangs(Talkative):
    """Hangs in its first step until a gate opens."""

    def __init__(self, seed: int, gate: threading.Event) -> None:
        super().__init__(seed)
        self.gate = gate

    def step(self, said: PolicyTurn) -> Observation:
        self.gate.wait(30.0)
        return super().step(said)


def test_a_hang_costs_one_deadline(ending_policy: Callable[..., Policy]) -> None:
    """Four conversations that hang are given up together, and the rollout ends without them."""
    gate = threading.Event()
    limits = LONG.model_copy(update={"step_threads": 4, "step_timeout_s": 1.0})
    try:
        made = hold(ending_policy(), [PROBLEM], lambda seed: Hangs(seed, gate), limits)
    finally:
        gate.set()
    assert {t.finish for t in flat(made)} == {Finish.ERROR} and made.seconds["reply"] < 3.0
    assert {type(error) for error in made.errors.values()} == {TimeoutError}
