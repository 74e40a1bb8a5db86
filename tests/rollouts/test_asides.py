"""Asides: what the policy is asked beside a conversation leaves no trace in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.policy.test_threads import ending
from tests.rollouts.conversations import held, picture

from rounding import assert_close
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Trajectory
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.recomputing_sessions import RecomputingSession
from selfverify.tasks.base import user_turn

SAMPLING = SamplingConfig(group_size=5, max_new_tokens=5, top_p=1.0)
ASIDE = "Answer now."


class Asks(Episode):
    """Shows an image in each turn; asks aside in every turn, or instead of one of the images.

    Args:
        aside: Whether it asks aside.
        instead: The turn in which it asks instead; -1 for none.
    """

    def __init__(self, aside: bool, instead: int = -1) -> None:
        self.asks, self.instead = aside, instead
        self.heard: list[PolicyTurn] = []

    def step(self, said: PolicyTurn) -> Observation:
        words = "more " * (said.turn + 1)
        shown = Observation([{"type": "text", "text": words}, {"type": "image"}], [picture(said.turn)])
        asked = Observation(
            [{"type": "image"}, {"type": "text", "text": f"{words}{ASIDE}"}], [picture(said.turn)]
        )
        if said.turn == self.instead:
            return asked
        shown.probe = asked if self.asks else None
        return shown

    def probed(self, said: PolicyTurn) -> None:
        self.heard.append(said)

    def result(self) -> EpisodeResult:
        return EpisodeResult({"asides": float(len(self.heard))})


class Fails(Asks):
    """Fails when it hears an aside."""

    def probed(self, said: PolicyTurn) -> None:
        raise ValueError("no")


def apart(policy: Policy) -> Callable[..., Any]:
    """`Policy.threads` of a policy whose prompts cannot be shared."""

    def threads(
        prompts: Sequence[Prompt], sampling: SamplingConfig, *, seeds: Sequence[int]
    ) -> RecomputingSession:
        extended = policy.encoder.extended
        return RecomputingSession(policy.sample, policy.logprobs, prompts, seeds, sampling, extended)

    return threads


def hold(
    policy: Policy, make: Callable[[], Asks], turns: int = 3, sampling: SamplingConfig = SAMPLING
) -> tuple[list[Trajectory], list[Asks]]:
    """The conversations about two problems, of which one has an image."""
    problems = [
        Problem("shown", user_turn("What is on it?"), [picture(3, (84, 56))]),
        Problem("plain", user_turn("Say 7.", images=0)),
    ]
    episodes: list[Asks] = []

    def opened(problem: Problem, seed: int) -> Asks:
        episodes.append(make())
        return episodes[-1]

    groups = held(policy, problems, [3, 4], opened, RolloutLimits(turns=turns), sampling).groups
    return [trajectory for group in groups for trajectory in group.trajectories], episodes


@pytest.mark.parametrize("kind", ["shared", "apart"])
def test_an_aside_leaves_no_trace(load_policy: Any, kind: str) -> None:
    """All that is said with asides is what is said without, and each aside is heard."""
    policy = ending(load_policy, by=5.5)
    if kind == "apart":
        policy.threads = apart(policy)  # type: ignore[method-assign]
    plain, _ = hold(policy, lambda: Asks(aside=False))
    asked, episodes = hold(policy, lambda: Asks(aside=True))
    assert [t.tokens for t in asked] == [t.tokens for t in plain]
    for one, other in zip(asked, plain, strict=True):
        for mine, theirs in zip(one.segments, other.segments, strict=True):
            assert_close(mine.logprobs, theirs.logprobs)
    turns = [sum(s.author == "policy" for s in t.segments) for t in asked]
    # Nothing is asked behind the last turn, and nothing behind a turn that was cut off.
    assert [len(e.heard) for e in episodes] == [
        turn - 1 if turn == 3 else turn - (t.finish == Finish.LENGTH)
        for turn, t in zip(turns, asked, strict=True)
    ]
    assert sum(len(e.heard) for e in episodes) > 6 and len(set(turns)) > 1


@pytest.mark.parametrize("kind", ["shared", "apart"])
def test_an_aside_is_what_would_have_been_said(load_policy: Any, kind: str) -> None:
    """The words to an aside behind a turn are those of a conversation that is asked in that turn."""
    policy = ending(load_policy, by=5.5)
    if kind == "apart":
        policy.threads = apart(policy)  # type: ignore[method-assign]
    _, episodes = hold(policy, lambda: Asks(aside=True))
    compared = 0
    for turn in (0, 1):
        stopped, _ = hold(policy, lambda turn=turn: Asks(aside=False, instead=turn), turns=turn + 2)  # type: ignore[misc]
        for trajectory, episode in zip(stopped, episodes, strict=True):
            said = [segment for segment in trajectory.segments if segment.author == "policy"]
            if len(said) == turn + 2:
                assert said[-1].tokens == episode.heard[turn].tokens and episode.heard[turn].turn == turn + 1
                compared += 1
    assert compared > 6


def test_an_aside_that_fails(load_policy: Any) -> None:
    """Its conversation ends without a verdict."""
    trajectories, _ = hold(ending(load_policy, by=5.5), lambda: Fails(aside=True))
    answered = [t for t in trajectories if len(t.segments[0].tokens) < SAMPLING.max_new_tokens]
    assert answered and all(t.finish == Finish.ERROR and not t.rewards for t in answered)


def test_an_aside_that_does_not_fit(load_policy: Any) -> None:
    """It is left out, and the conversation goes on."""

    class Long(Asks):
        def step(self, said: PolicyTurn) -> Observation:
            found = super().step(said)
            found.probe = Observation("long " * 3000)
            return found

    trajectories, episodes = hold(ending(load_policy, by=5.5), lambda: Long(aside=True))
    plain, _ = hold(ending(load_policy, by=5.5), lambda: Asks(aside=False))
    assert [t.tokens for t in trajectories] == [t.tokens for t in plain]
    assert not any(episode.heard for episode in episodes)


def test_an_engine_for_all_processes_is_asked_aside(load_policy: Any) -> None:
    """vLLM samples for all processes at once; each turn and each probe is one call of all."""
    policy = ending(load_policy, by=5.5)
    policy.threads = apart(policy)  # type: ignore[method-assign]
    policy.sample = lambda prompts, sampling, seeds: Policy.sample(  # type: ignore[method-assign, assignment, misc]
        policy, prompts, sampling.model_copy(update={"engine": "own"}), seeds=seeds
    )
    sampling = SAMPLING.model_copy(update={"engine": "vllm"})
    plain, asked = (
        hold(policy, lambda aside=aside: Asks(aside), sampling=sampling) for aside in (False, True)
    )  # type: ignore[misc]
    assert [t.tokens for t in asked[0]] == [t.tokens for t in plain[0]]
    assert sum(len(episode.heard) for episode in asked[1]) > 6
