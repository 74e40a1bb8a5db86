"""Conversations that tests hold: a task without answers, an episode that talks, groups of both."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn, RolloutHook
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Trajectory
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import Rollout, rollout
from selfverify.tasks.base import Task, Verdict, user_turn

SAMPLING = SamplingConfig(group_size=3, max_new_tokens=10, top_p=1.0)
LONG = RolloutLimits(turns=4)


class Chat(Task):
    """Questions without an answer: what is said to them is what a test looks at."""

    name = "chat"
    summary = "test"
    limits = LONG

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        return Problem(f"chat/{index}", user_turn(f"Question {index}.", images=0))

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        return Verdict(0.0, False)


def picture(seed: int, size: tuple[int, int] = (56, 56)) -> Image.Image:
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))


class Talkative(Episode):
    """Replies with other words every time, to every second turn with an image."""

    channel = "words"

    def __init__(self, seed: int, images: bool = True, role: str = "user") -> None:
        self.rng, self.images, self.role = random.Random(seed), images, role
        self.heard: list[PolicyTurn] = []
        self.closed = 0

    def step(self, said: PolicyTurn) -> Observation:
        self.heard.append(said)
        words = "more " * self.rng.randrange(1, 9)
        if self.images and len(self.heard) % 2:
            parts = [{"type": "text", "text": words}, {"type": "image"}, {"type": "text", "text": "?"}]
            return Observation(parts, [picture(self.rng.randrange(5))], self.role)
        return Observation(words, role=self.role)  # type: ignore[arg-type]

    def result(self) -> EpisodeResult:
        return EpisodeResult({"answer": float(len(self.heard))})

    def release(self) -> None:
        self.closed += 1


def held(
    policy: Policy,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    begin: Callable[[Problem, int], Episode],
    limits: RolloutLimits = LONG,
    sampling: SamplingConfig = SAMPLING,
    hook: RolloutHook | None = None,
) -> Rollout:
    """A group of conversations about each problem, opened by ``begin``."""
    return rollout(
        PolicySampler(policy, sampling), Chat(), problems, seeds, sampling.group_size,
        open_episode=begin, limits=limits, hook=hook,
    )  # fmt: skip


def three(
    policy: Policy,
    middle: Callable[[], Any],
    others: Callable[[], Any],
    seed: int,
    limits: RolloutLimits = LONG,
    sampling: SamplingConfig = SAMPLING,
    problem: Problem | None = None,
) -> list[Trajectory]:
    """Three conversations about a problem; ``middle`` opens the second of them."""
    count = iter(range(3))
    asked = problem or Chat().problem("train", 0, 0)

    def begin(problem: Problem, seed: int) -> Any:
        return middle() if next(count) == 1 else others()

    return held(policy, [asked], [seed], begin, limits, sampling).groups[0].trajectories
