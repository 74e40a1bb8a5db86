"""Lost conversations are held again and become what they would have been; evaluations count both ways."""

from __future__ import annotations

from typing import Any

import pytest
from tests.agents.lamps import GOAL, KITCHEN, OVEN, PROBLEM, RULES, TASK, Lamps, submit
from tests.policy.test_tool_templates import HERMES

from sampled_threads import drawn, sampled_threads
from selfverify.agents.episode import AgentConfig, AgentEpisode
from selfverify.agents.reward import METRICS, summarise_parts
from selfverify.core.config import EvaluationConfig, RolloutLimits, SamplingConfig
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Finish
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import read_samples
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import Rollout, rollout
from selfverify.tasks.base import Task, Verdict
from tiny_models import boosted

SAMPLING = SamplingConfig(group_size=3, max_new_tokens=16)
DONE = [KITCHEN, OVEN, submit(2)]


class Given(AgentEpisode):
    """Does what is given, whatever the policy says; the first attempts may lose their environment."""

    def __init__(self, turns: list[str], lose: str) -> None:
        super().__init__(PROBLEM, lambda: Lamps(lose=lose), TASK, 3, RULES, AgentConfig(), 3, GOAL)
        self.given = turns

    def step(self, said: PolicyTurn) -> Observation:
        return super().step(PolicyTurn(self.given[said.turn], said.tokens, Finish.STOP, said.turn))


class Lighting(Task):
    """Two problems in turn are done and are not; some attempts at each conversation are lost.

    Args:
        lost: By the seed's place among all that were asked for, what loses its environment how often.
    """

    name = "lighting"
    summary = "test"
    limits = RolloutLimits(turns=3)
    metrics = METRICS

    def __init__(self, lost: dict[int, tuple[str, int]]) -> None:
        super().__init__()
        self.lost = lost
        self.seeds: list[int] = []

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        return Problem(f"lighting/{index}", PROBLEM.messages, tools=PROBLEM.tools)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        return Verdict(0.0, False)

    def open(self, problem: Problem, seed: int) -> Given:
        self.seeds.append(seed)
        place = list(dict.fromkeys(self.seeds)).index(seed)
        what, times = self.lost.get(place, ("", 0))
        lose = what if self.seeds.count(seed) <= times else ""
        done = problem.id.endswith("0")
        return Given(DONE if done else [KITCHEN, submit(1), ""], lose)


def rolled(policy: Policy, task: Lighting, retries: int, sampling: SamplingConfig = SAMPLING) -> Rollout:
    """Two groups of three conversations."""
    problems = [task.problem("test", 0, n) for n in range(2)]
    limits = task.limits.model_copy(update={"retries": retries})
    return rollout(PolicySampler(policy, sampling), task, problems, [7, 8], 3, limits=limits)


@pytest.fixture(scope="module")
def endless(load_policy: Any) -> Policy:
    """Its turns are cut off."""
    policy = load_policy()
    policy.tokenizer.chat_template = HERMES
    return policy


@pytest.fixture(scope="module")
def policy(load_policy: Any) -> Policy:
    """Its turns are short and end by themselves."""
    policy = boosted(load_policy(), 10.0)
    policy.tokenizer.chat_template = HERMES
    return policy


def test_what_was_lost_becomes_what_it_would_have_been(policy: Policy) -> None:
    """At the beginning, in the middle, and again; the others are neither opened nor changed."""
    whole = rolled(policy, Lighting({}), 2)
    task = Lighting({1: ("reset", 1), 2: ("switch", 2), 5: ("go", 1)})
    again = rolled(policy, task, 2)
    assert again.retries == {(0, 1): 1, (0, 2): 2, (1, 2): 1}
    assert len(task.seeds) == 6 + 3 + 1
    for one, other in zip(whole.groups, again.groups, strict=True):
        for left, right in zip(one.trajectories, other.trajectories, strict=True):
            assert left.tokens == right.tokens and left.text == right.text
            assert left.rewards == right.rewards and left.finish == right.finish
    assert whole.retries == {} and again.seconds.keys() == whole.seconds.keys()


def test_a_turn_that_an_engine_gave_up_is_drawn_again(policy: Policy, monkeypatch: Any) -> None:
    """The first turns of a group are drawn together; what was given up among them is no answer to keep."""
    asked = 0

    def sample(prompts: Any, sampling: SamplingConfig, *, seeds: Any) -> list[list[Sample]]:
        nonlocal asked
        made = [[drawn(policy, f"{seed} {g}") for g in range(sampling.group_size)] for seed in seeds]
        asked += 1
        if asked == 1:
            made[0][1] = Sample([], [], Finish.ERROR)
        return made

    monkeypatch.setattr(policy, "threads", sampled_threads(policy, sample))
    again = rolled(policy, Lighting({}), 2)
    assert again.retries == {(0, 1): 1} and not any(
        t.lost for group in again.groups for t in group.trajectories
    )
    assert [t.segments[0].text[:3] for t in again.groups[0].trajectories] == ["7 0", "7 1", "7 2"]
    asked = 0
    lost = rolled(policy, Lighting({}), 0)
    assert [[t.lost for t in group.trajectories] for group in lost.groups] == [
        [False, True, False],
        [False] * 3,
    ]


def test_what_is_lost_every_time_stays_lost(policy: Policy) -> None:
    task = Lighting({0: ("reset", 99), 1: ("reset", 1)})
    found = rolled(policy, task, 3)
    first, second, _ = found.groups[0].trajectories
    assert first.lost and first.finish == Finish.ERROR and first.rewards == {}
    assert not second.lost and found.retries == {(0, 0): 3, (0, 1): 1}
    assert rolled(policy, Lighting({0: ("reset", 1)}), 0).groups[0].trajectories[0].lost


def test_a_conversation_that_was_cut_off_is_not_lost(endless: Policy) -> None:
    """Its end is the policy's own fault; to hold it again would change nothing."""
    task = Lighting({})
    short = SAMPLING.model_copy(update={"max_new_tokens": 1})
    found = rolled(endless, task, 2, short)
    for trajectory in found.groups[0].trajectories:
        assert trajectory.finish == Finish.LENGTH and trajectory.truncated and not trajectory.lost
        assert trajectory.rewards["format_error"] == -1.0 and not trajectory.parsed.unjudged
    assert found.retries == {} and len(task.seeds) == 6


def test_evaluations_tell_both_denominators(policy: Policy, tmp_path: Any) -> None:
    """Of three conversations about each problem one is lost for good: those that remain, and all."""
    lost = {0: ("reset", 99), 3: ("go", 99), 4: ("go", 1)}
    config = EvaluationConfig(problems=2, samples=3, retries=1)
    store = tmp_path / "samples.jsonl"
    summary = evaluate(policy, Lighting(lost), config, store, max_new_tokens=16)
    samples = read_samples(store)[1]
    assert [s.lost for s in samples] == [True, False, False, True, False, False]
    assert [s.retries for s in samples] == [1, 0, 0, 1, 1, 0]
    curves = {name: figure["curves"]["pass@1"][-1] for name, figure in summary["metrics"].items()}
    assert curves["SR"] == pytest.approx(2 / 4) and curves["SR-all"] == pytest.approx(2 / 6)
    assert summary["pass@1"] == pytest.approx(2 / 6)
    assert summary["conversations"]["lost"] == pytest.approx(2 / 6)
    assert summary["conversations"]["retries"] == pytest.approx(3 / 6)
    assert "conversations.lost" in summary["intervals"]
    rows: list[dict[str, float]] = [{"truth": 1.0}, {"truth": 0.0}, {}, {}]
    assert summarise_parts(rows) == {"SR": 0.5, "SR-all": 0.25}
