"""Turns that are taken back: what is left is what would have been, to rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, pairwise
from typing import Any

import pytest
import torch
from tests.policy.test_threads import ending
from tests.rollouts.conversations import held, picture
from tests.rollouts.test_asides import apart

from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Trajectory
from selfverify.policy.policy import Policy
from selfverify.rollouts.score_reading import with_images
from selfverify.rollouts.wrappers import RecordingEpisode
from selfverify.tasks.base import user_turn

SAMPLING = SamplingConfig(group_size=5, max_new_tokens=5, top_p=1.0)
NOW = "Answer now."


class TakesBack(Episode):
    """Shows an image in each turn; takes one turn back, or asks at once where it would be taken back.

    Args:
        back: The turn that is taken back; -1 for none.
        instead: Whether it asks in place of what it showed before, without waiting for that turn.
    """

    def __init__(self, back: int, instead: bool = False) -> None:
        self.back, self.instead, self.asked = back, instead, False
        self.turns: list[int] = []

    def step(self, said: PolicyTurn) -> Observation:
        self.turns.append(said.turn)
        if self.asked:
            return Observation(done=True)
        if said.turn == self.back and not self.instead:
            self.asked = True
            if not said.turn:
                return Observation(NOW, undo=True)
            return self.shown(said.turn - 1, f" {NOW}", undo=True)
        self.asked = self.instead and said.turn == self.back - 1
        return self.shown(said.turn, f" {NOW}" if self.asked else "")

    def shown(self, turn: int, more: str, undo: bool = False) -> Observation:
        text = "more " * (turn + 1) + more
        parts = [{"type": "text", "text": text}, {"type": "image"}]
        return Observation(parts, [picture(turn)], undo=undo)

    def result(self) -> EpisodeResult:
        return EpisodeResult({"turns": float(len(self.turns))}, turns=["said"] * min(len(self.turns), 1))


PROBLEMS = [
    Problem("shown", user_turn("What is on it?"), [picture(3, (84, 56))]),
    Problem("plain", user_turn("Say 7.", images=0)),
]


def hold(policy: Policy, make: Callable[[int], Episode], sampling: SamplingConfig = SAMPLING) -> list[Group]:
    """Conversations; ``make`` is called with their numbers."""
    numbers = iter(range(100))
    return held(policy, PROBLEMS, [3, 4], lambda problem, seed: make(next(numbers)), sampling=sampling).groups


def flat(groups: Sequence[Group]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def prepared(load_policy: Any, kind: str) -> Policy:
    policy = ending(load_policy, by=5.5)
    if kind == "apart":
        policy.threads = apart(policy)  # type: ignore[method-assign]
    return policy


@torch.no_grad()
def read_anew(policy: Policy, group: Group, trajectory: Trajectory) -> list[float]:
    """Log-probabilities of all tokens behind the prompt, in one pass."""
    piece = with_images(policy, group.problem.id, trajectory, trajectory.tokens)
    row = policy.logprobs(policy.encode([group.problem]), [[piece]])[0, 0]
    return row[: len(trajectory.tokens)].tolist()


@pytest.mark.parametrize("kind", ["shared", "apart"])
def test_log_probabilities_are_those_of_a_fresh_prefill(load_policy: Any, kind: str) -> None:
    """Of every turn that is left; in one batch turns 0, 1, 2 and none are taken back."""
    policy = prepared(load_policy, kind)
    episodes: dict[int, TakesBack] = {}

    def make(number: int) -> Episode:
        return episodes.setdefault(number, TakesBack((number % 4) - 1))

    groups = hold(policy, make)
    plain = flat(hold(policy, lambda number: TakesBack(-1)))
    answered = 0
    for group in groups:
        for trajectory in group.trajectories:
            fresh = read_anew(policy, group, trajectory)
            sampled = [value for s in trajectory.segments for value in s.logprobs]
            own = [s.author == "policy" for s in trajectory.segments for _ in s.tokens]
            assert_close([*compress(sampled, own)], [*compress(fresh, own)])
    for number, (one, without) in enumerate(zip(flat(groups), plain, strict=True)):
        back, turns = (number % 4) - 1, episodes[number].turns
        said = [s for s in one.segments if s.author == "policy"]
        assert [s.turn for s in said] == [*range(len(said))]
        if back < 0:
            assert one.tokens == without.tokens, "who takes nothing back is not touched"
        elif len(turns) == back + 2:
            answered += 1
            # The turn was said, taken back, and said again: its number comes twice.
            assert turns == [*range(back + 1), back] and len(said) == back + 1
            before = ["policy", "environment"] * back if back else ["environment"]
            assert [s.author for s in one.segments] == [*before, "policy"]
            assert NOW in one.segments[-2].text
            kept = max(2 * back - 1, 0)
            assert [s.tokens for s in one.segments[:kept]] == [s.tokens for s in without.segments[:kept]]
    assert answered >= 4


@pytest.mark.parametrize("kind", ["shared", "apart"])
@pytest.mark.parametrize("back", [1, 2])
def test_what_is_said_is_what_would_have_been(load_policy: Any, kind: str, back: int) -> None:
    """Greedy, the answer is that of a conversation that was asked at once."""
    policy = prepared(load_policy, kind)
    greedy = SAMPLING.model_copy(update={"group_size": 1, "temperature": 0.0})
    taken = flat(hold(policy, lambda number: TakesBack(back), greedy))
    asked = flat(hold(policy, lambda number: TakesBack(back, instead=True), greedy))
    assert [t.tokens for t in taken] == [t.tokens for t in asked]
    texts = [[[s.text for s in one.segments] for one in few] for few in (taken, asked)]
    assert texts[0] == texts[1] and any(NOW in text for few in texts for one in few for text in one)


def test_nothing_of_it_is_noted() -> None:
    """A file of conversations holds what is left."""
    for back, roles in ((0, ["user", "user"]), (1, ["user", "assistant", "user"])):
        noted = RecordingEpisode(TakesBack(back), [{"role": "user", "content": "?"}], lambda image: "name")
        noted.reset()
        for turn in [*range(back + 1), back]:
            noted.step(PolicyTurn(f"turn {turn}", [], Finish.STOP, turn))
        assert [m["role"] for m in noted.messages] == [*roles, "assistant"]
        assert len(noted.cuts) == back + 1
        texts = [str(m["content"]) for m in noted.messages]
        assert NOW in texts[-2] and not any(NOW in one and NOW in two for one, two in pairwise(texts))
