"""Episodes whose environments are asynchronous, and share an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from tests.rollouts.conversations import held
from tests.rollouts.test_hung import hung

from selfverify.core import event_loop
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.policy.policy import Policy
from selfverify.rollouts.episode_runner import HungThreads
from selfverify.tasks.base import user_turn

__all__ = ["hung"]  # a fixture

MANY = 64
PROBLEM = Problem("remote", user_turn("Say 7.", images=0), environment_begins=True)


T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """The result of a coroutine, which is cancelled where it takes longer."""
    future = event_loop.start(work)
    try:
        return future.result(seconds)
    except TimeoutError:
        future.cancel()
        raise


class Desk:
    """A remote environment in which all conversations of a rollout have to be at work at the same time."""

    def __init__(self, everyone: int) -> None:
        self.everyone = asyncio.Barrier(everyone)
        self.open, self.cancelled = 0, 0

    async def enter(self) -> str:
        self.open += 1
        await self.everyone.wait()
        return "Welcome."

    async def act(self, words: str, hangs: bool) -> str:
        try:
            await (asyncio.Event().wait() if hangs else asyncio.sleep(0.01))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return f"You said {len(words)} characters."

    async def leave(self) -> None:
        self.open -= 1


class Remote(Episode):
    """Waits for a coroutine in every reply; not long where that hangs."""

    channel = "words"

    def __init__(self, desk: Desk, hangs: bool) -> None:
        self.desk, self.hangs = desk, hangs

    def reset(self) -> Observation | None:
        return Observation(run(self.desk.enter(), 20.0))

    def step(self, said: PolicyTurn) -> Observation:
        words = run(self.desk.act(said.text, self.hangs), 0.2 if self.hangs else 20.0)
        return Observation(words, done=said.turn == 1)

    def result(self) -> EpisodeResult:
        return EpisodeResult({"answer": 1.0})

    def release(self) -> None:
        run(self.desk.leave(), 5.0)


def test_many_conversations_wait_at_once(ending_policy: Callable[..., Policy], hung: HungThreads) -> None:
    """With as many reply threads as conversations none waits for another; one that hangs is cancelled, loses
    its own conversation, and leaves no thread behind."""
    desk = Desk(MANY)
    count = iter(range(MANY))
    limits = RolloutLimits(turns=3, step_threads=MANY, step_timeout_s=30.0, hung_threads=1)
    sampling = SamplingConfig(group_size=MANY, max_new_tokens=12, top_p=1.0)
    policy, begin = ending_policy(), lambda p, seed: Remote(desk, next(count) == 5)
    made = held(policy, [PROBLEM], [3], begin, limits, sampling).groups[0].trajectories
    assert desk.everyone.n_waiting == 0 and desk.open == 0
    lost = [t.finish == Finish.ERROR for t in made]
    assert lost == [number == 5 for number in range(MANY)] and desk.cancelled == 1
    assert all(t.segments[0].text.count("Welcome.") == 1 for t in made)
    assert sum("characters." in s.text for t in made for s in t.segments) > MANY // 2
    assert hung.count() == 0 and not any("remote" in t.name for t in threading.enumerate())


@pytest.mark.parametrize(("needed", "enter_s", "step_timeout_s"), [(3, 0.1, 30.0), (4, 20.0, 0.1)])
def test_too_few_threads_are_no_deadlock(
    ending_policy: Callable[..., Policy],
    hung: HungThreads,
    needed: int,
    enter_s: float,
    step_timeout_s: float,
) -> None:
    """Conversations that wait for each other and cannot all wait at once reach their deadlines: the
    environment's, at which they stop waiting, or the driver's, after which they wait on without anybody.

    With the driver's deadline one more is needed than there are: a third that begins beside two abandoned
    ones would complete three, and a second that is still within its deadline would then reply in time.
    """
    desk = Desk(needed)
    limits = RolloutLimits(turns=2, step_threads=2, step_timeout_s=step_timeout_s)
    sampling = SamplingConfig(group_size=3, max_new_tokens=12, top_p=1.0)

    class Impatient(Remote):
        def reset(self) -> Observation | None:
            return Observation(run(self.desk.enter(), enter_s))

    rolled = held(ending_policy(), [PROBLEM], [3], lambda p, seed: Impatient(desk, False), limits, sampling)
    assert [t.finish for t in rolled.groups[0].trajectories] == [Finish.ERROR] * 3
    if enter_s < step_timeout_s:
        assert hung.count() == desk.everyone.n_waiting == 0
    else:
        assert hung.count() >= 3  # on a busy machine those that close may be late as well
