"""Holding conversations again that were lost, as evaluations do."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import HungError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from selfverify.rollouts.converse import OpenEpisode, Rollout, rollout
from selfverify.tasks.base import Task

logger = logging.getLogger(__name__)


def hold_again(
    policy: Policy,
    task: Task,
    first: Rollout,
    seeds: Sequence[int],
    sampling: SamplingConfig,
    times: int,
    open_episode: OpenEpisode | None = None,
    limits: RolloutLimits | None = None,
) -> None:
    """Hold the lost conversations of a rollout again, with `rollout`; whatever comes of them replaces them.

    A conversation draws what it drew before, so that it becomes what it would have been without the loss.
    One that ended without a verdict (`EpisodeResult.lost`) is not lost in this sense: it is left as it is.
    So are all, where too many threads hang.

    Args:
        policy: Speaks.
        task: As of the rollout.
        first: The rollout, changed in place; `Rollout.held_again` counts.
        seeds: One per problem, as of the rollout.
        sampling: As of the rollout.
        times: How often each conversation is held again at most.
        open_episode: As of the rollout.
        limits: As of the rollout.
    """
    for _ in range(times):
        lost = {
            (b, g)
            for b, group in enumerate(first.groups)
            for g, trajectory in enumerate(group.trajectories)
            if trajectory.lost
        }
        if not lost:
            break
        which = sorted({b for b, _ in lost})
        problems = [first.groups[b].problem for b in which]
        note(
            logger,
            "episodes_held_again",
            f"{len(lost)} lost conversations are held again",
            problems=[problem.id for problem in problems],
            count=len(lost),
        )
        wanted = [(b, g) in lost for b in which for g in range(sampling.group_size)]
        begin = _only(open_episode or task.open, wanted)
        again = [seeds[b] for b in which]
        try:
            made = rollout(policy, task, problems, again, sampling, begin, limits or task.limits)
        except HungError:
            return  # what has been said is kept; whoever asks for replies next is refused
        groups = dict(zip(which, made.groups, strict=True))
        for b, g in lost:
            first.groups[b].trajectories[g] = groups[b].trajectories[g]
        for name, seconds in made.seconds.items():
            first.seconds[name] = first.seconds.get(name, 0.0) + seconds
        first.held_again.update(lost)


def _only(open_episode: OpenEpisode, wanted: Iterable[bool]) -> OpenEpisode:
    """Opens those conversations that are ``wanted``; the driver opens them problem by problem."""
    turns = iter(wanted)

    def begin(problem: Problem, seed: int) -> Episode:
        return open_episode(problem, seed) if next(turns) else _Over()

    return begin


class _Over(Episode):
    """Stands for a conversation that was not lost: it is over before it begins."""

    def reset(self) -> Observation:
        return Observation(done=True)

    def step(self, said: PolicyTurn) -> Observation:
        raise AssertionError("nothing is said in a conversation that is over")

    def result(self) -> EpisodeResult:
        return EpisodeResult()
