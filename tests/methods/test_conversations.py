"""Figures of conversations, by hand."""

from __future__ import annotations

from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.methods.grpo import GRPO
from selfverify.methods.metrics import conversation_metrics


def conversation(turns: int, finish: Finish, **rewards: float) -> Trajectory:
    segments = []
    for turn in range(turns):
        if turn:
            segments.append(Segment("observation", [9, 9], author="environment", turn=turn))
        # A thought and an action are one turn.
        segments += [Segment("plan", [1], turn=turn), Segment("action", [2, 3], turn=turn)]
    segments[-1].finish = finish
    return Trajectory(segments, rewards=rewards)


def test_turns_and_endings() -> None:
    group = Group(
        Problem("p", []),
        [
            conversation(1, Finish.STOP, answer=1.0),
            conversation(4, Finish.STOP, answer=0.0),
            conversation(3, Finish.LENGTH, answer=0.5),
            conversation(2, Finish.ERROR),
        ],
    )
    found = {
        "conversation/turns": 2.5,
        "conversation/stop": 0.5,
        "conversation/length": 0.25,
        "conversation/error": 0.25,
    }
    assert conversation_metrics([group]) == found
    # A task may leave out rewards that answers with tags have.
    logged = GRPO().metrics([group])
    assert logged == found | {
        "reward/answer": 0.5, "tokens/response": 8.0, "truncated": 1 / 3, "groups/reward_spread": 0.5,
    }  # fmt: skip
