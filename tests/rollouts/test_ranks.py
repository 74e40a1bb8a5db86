"""An engine that samples for all processes at once: each turn is one call that all of them make together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.rollouts.conversations import Chat, Talkative, held

from sampled_threads import drawn
from selfverify.core import ranks
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Observation, PolicyTurn, RolloutHook
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.recomputing_sessions import RecomputingSession
from selfverify.rollouts.rollout import Rollout

SAMPLING = SamplingConfig(
    group_size=2, max_new_tokens=8, engine="vllm", vllm={"server_base_url": "http://127.0.0.1:8000"}
)


class Ranks:
    """Stands for the processes of a run: threads that tell each other values."""

    def __init__(self, count: int) -> None:
        self.values: list[Any] = [None] * count
        self.barrier = threading.Barrier(count, timeout=60.0)
        self.own = threading.local()

    def gather(self, value: Any) -> list[Any]:
        self.values[self.own.index] = value
        self.barrier.wait()
        found = [*self.values]
        self.barrier.wait()
        return found


class Lasts(Talkative):
    """Goes on for so many turns."""

    def __init__(self, turns: int) -> None:
        super().__init__(0, images=False)
        self.turns = turns

    def step(self, said: PolicyTurn) -> Observation:
        reply = super().step(said)
        reply.done = said.turn + 1 >= self.turns
        return reply


class Breaks(RolloutHook):
    """Ends its rollout when the policy has spoken for the first time."""

    def begin(self, problems: Mapping[tuple[int, int], Problem]) -> None:
        return

    def said(self, said: Mapping[tuple[int, int], PolicyTurn]) -> None:
        raise ConfigError("no verifier")

    def shown(self, replies: Mapping[tuple[int, int], Observation]) -> None:
        return


@pytest.mark.parametrize("failing", [None, 1], ids=["unequal", "one fails"])
def test_processes_stay_in_step(
    load_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch, failing: int | None
) -> None:
    """Processes of 1, 2 and 4 turns call the engine equally often, also where one fails in the middle."""
    policy, processes = load_policy(), Ranks(3)
    calls = [0, 0, 0]

    def sample(prompts: Sequence[Prompt], sampling: SamplingConfig, *, seeds: Sequence[int]) -> Any:
        calls[processes.own.index] += 1
        assert sum(processes.gather(len(prompts))) >= 0
        return [[drawn(policy, "word")] * sampling.group_size for _ in prompts]

    def threads(
        prompts: Sequence[Prompt], sampling: SamplingConfig, *, seeds: Sequence[int]
    ) -> RecomputingSession:
        return RecomputingSession(
            sample, policy.logprobs, prompts, seeds, sampling, lambda prompt, piece: prompt
        )

    monkeypatch.setattr(policy, "threads", threads)
    monkeypatch.setattr(ranks, "gather", processes.gather)

    def run(index: int) -> Rollout | Exception:
        processes.own.index = index
        problems = [Chat().problem("train", 0, index)]
        try:
            return held(
                policy, problems, [index], lambda problem, seed: Lasts((1, 2, 4)[index]),
                RolloutLimits(turns=6), SAMPLING, Breaks() if index == failing else None,
            )  # fmt: skip
        except ConfigError as error:
            return error

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(run, range(3)))
    assert calls == [8, 8, 8]  # four turns, each two calls: of what has yet to begin, and of what goes on
    for index, made in enumerate(found):
        if index == failing:
            assert isinstance(made, ConfigError)
        else:
            assert isinstance(made, Rollout)
            turns = [sum(s.author == "policy" for s in t.segments) for t in made.groups[0].trajectories]
            assert turns == [(1, 2, 4)[index]] * 2
