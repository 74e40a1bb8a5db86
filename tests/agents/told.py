"""Agents whose words or calls are given."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.core.episode import Call, Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.rollouts.wrappers import EpisodeWrapper
from selfverify.tasks.base import Task
from selfverify.tasks.tool_calls import written_call


class Told(EpisodeWrapper):
    """An agent at work that says these turns, whatever the policy says, and nothing behind them."""

    def __init__(self, inner: Episode, turns: Sequence[str]) -> None:
        super().__init__(inner)
        self.turns = turns

    def step(self, said: PolicyTurn) -> Observation:
        told = self.turns[said.turn] if said.turn < len(self.turns) else ""
        return super().step(PolicyTurn(told, said.tokens, Finish.STOP, said.turn))


def held(task: Task, problem: Problem, *said: Call | str) -> EpisodeResult:
    """What comes of a conversation with these calls or words, of which the last one ends it."""
    episode = task.open(problem, 0)
    try:
        episode.reset()
        for number, one in enumerate(said):
            text = one if isinstance(one, str) else written_call(one, "tagged")
            reply = episode.step(PolicyTurn(text, [], Finish.STOP, number))
            assert reply.done == (number + 1 == len(said)), reply
        return episode.result()
    finally:
        episode.release()
