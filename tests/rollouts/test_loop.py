"""The one loop: what a batch depends on, when environments are given back, and what a hang costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from tests.rollouts.conversations import LONG, Chat, Talkative, held

from rounding import assert_close
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Trajectory
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout

SAMPLING = SamplingConfig(group_size=4, max_new_tokens=10, top_p=1.0)
PROBLEM = Chat().problem("train", 0, 0)


def hold(
    policy: Policy, problems: list[Problem], make: Callable[[int], Talkative], limits: RolloutLimits = LONG
) -> Rollout:
    return held(policy, problems, [3, 4][: len(problems)], lambda p, seed: make(seed), limits, SAMPLING)


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


class Numbered(Talkative):
    """Lasts as many turns as its seed says, and may be lost once.

    Args:
        seed: See `Talkative`.
        log: Gets what happens, in order.
        lost: Seeds whose first conversation is lost in its second turn.
    """

    def __init__(self, seed: int, log: list[tuple[str, int]], lost: set[int]) -> None:
        super().__init__(seed)
        self.seed, self.log, self.lost = seed, log, lost
        log.append(("open", seed))

    def step(self, said: PolicyTurn) -> Observation:
        reply = super().step(said)
        if said.turn == 1 and self.seed in self.lost:
            self.lost.remove(self.seed)
            raise OSError("the device is gone")
        reply.done = said.turn >= self.seed % 3
        return reply

    def release(self) -> None:
        self.log.append(("release", self.seed))


@pytest.mark.parametrize(("concurrent", "threads"), [(1, 0), (3, 0), (3, 4), (7, 0)])
def test_words_do_not_depend_on_slots(
    ending_policy: Callable[..., Policy], asked: list[Problem], concurrent: int, threads: int
) -> None:
    """A free slot is filled before the others are over, and each conversation says what it says in one go."""
    policy, log, all_at_once = ending_policy(), list[tuple[str, int]](), list[tuple[str, int]]()
    whole = hold(policy, asked, lambda seed: Numbered(seed, all_at_once, set()))
    limits = LONG.model_copy(update={"concurrent": concurrent, "step_threads": threads})
    parts = hold(policy, asked, lambda seed: Numbered(seed, log, set()), limits)
    for one, other in zip(flat(parts), flat(whole), strict=True):
        assert one.rewards == other.rewards
        for mine, theirs in zip(one.segments, other.segments, strict=True):
            assert mine.tokens == theirs.tokens
            assert_close(mine.logprobs, theirs.logprobs)
    kinds = [kind for kind, _ in log]
    open_now = [kinds[:end].count("open") - kinds[:end].count("release") for end in range(1, 17)]
    assert max(open_now) == concurrent and kinds.count("release") == 8
    assert set(parts.seconds) == set(whole.seconds)
    # Somebody begins while others of the first ones go on: nobody waits for the slowest of a wave.
    first = {seed for kind, seed in log[:concurrent]}
    later = next(number for number, (kind, seed) in enumerate(log) if kind == "open" and seed not in first)
    assert concurrent == 1 or kinds[:later].count("release") < concurrent


@pytest.mark.parametrize("concurrent", [None, 3])
def test_a_retried_conversation_says_what_it_said(
    ending_policy: Callable[..., Policy], asked: list[Problem], concurrent: int | None
) -> None:
    """It is counted; in training, where nothing is retried, it is lost and never drawn again."""
    policy, limits = ending_policy(), LONG.model_copy(update={"concurrent": concurrent})
    log = list[tuple[str, int]]()
    whole = hold(policy, asked, lambda seed: Numbered(seed, log, set()), limits)
    seeds = [seed for kind, seed in log if kind == "open"]
    turns = [sum(s.author == "policy" for s in t.segments) for t in flat(whole)]
    several = [seed for seed, count in zip(seeds, turns, strict=True) if count > 1]
    assert several

    def texts(made: Rollout) -> list[list[str]]:
        return [[segment.text for segment in t.segments] for t in flat(made)]

    lost = {*several}
    again = limits.model_copy(update={"retries": 1})
    retried = hold(policy, asked, lambda seed: Numbered(seed, log, lost), again)
    assert texts(retried) == texts(whole) and not retried.errors
    assert sorted(retried.retries) == sorted(divmod(seeds.index(seed), 4) for seed in several)
    log.clear()
    lost = {*several}
    trained = hold(policy, asked, lambda seed: Numbered(seed, log, lost), limits)
    assert len([kind for kind, _ in log if kind == "open"]) == 8 and not trained.retries
    assert [t.lost for t in flat(trained)] == [seed in several for seed in seeds]
