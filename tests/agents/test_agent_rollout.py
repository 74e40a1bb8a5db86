"""Agents as trajectories: channels, what is learnt, what is left out, and what a log keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from tests.agents.lamps import GOAL, KITCHEN, LOOK, OVEN, PROBLEM, RULES, TASK, Lamps, episode, submit
from tests.agents.test_agent_episode import EVIL, Asked
from tests.policy.test_tool_templates import HERMES, QWEN3

from selfverify.agents.episode import AgentConfig, AgentEpisode
from selfverify.agents.judges.jury import Jury
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.trajectory import OBSERVATION, Finish, Group, Trajectory, valid_trajectories
from selfverify.experiments.registry import make_method
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.rollouts.recording import play, record
from selfverify.rollouts.rollout import recite, rollout
from selfverify.tasks.answering import Verdict
from selfverify.tasks.digits import DigitsSum
from selfverify.tasks.tool_episode import ACTION
from selfverify.trainer.batch import make_streams


@pytest.fixture(params=[HERMES, QWEN3])
def policy(load_policy: Callable[..., Policy], request: pytest.FixtureRequest) -> Policy:
    policy = load_policy()
    policy.tokenizer.chat_template = request.param
    return policy


def told(policy: Policy, *turns: str, cut: bool = False, **settings: Any) -> Trajectory:
    """What comes of it when the policy says ``turns``, the last of them perhaps cut off."""
    samples = []
    for number, turn in enumerate(turns):
        short = cut and number + 1 == len(turns)
        ids = policy.tokenizer(turn if short else f"{turn}<|im_end|>", add_special_tokens=False)["input_ids"]
        samples.append(Sample(ids, [-0.5] * len(ids), Finish.LENGTH if short else Finish.STOP))
    held = episode(**settings)
    return recite(policy, held.problem, held, samples)


DONE = (LOOK, KITCHEN, OVEN, submit(3))


def group(policy: Policy) -> Group:
    """Proven, not proven, improper, no verdict, cut off: R is 0.95, 0.15, -1 and twice nothing."""
    return Group(
        PROBLEM,
        [
            told(policy, *DONE),
            told(policy, KITCHEN, submit(1)),
            told(policy, KITCHEN, "Done."),
            told(policy, *DONE, panel=Jury(Asked(None))),
            told(policy, LOOK, KITCHEN, cut=True),
        ],
    )


def test_the_agents_turns_are_actions_and_the_rest_is_observed(policy: Policy) -> None:
    found = told(policy, *DONE)
    assert [s.channel for s in found.segments] == [ACTION, OBSERVATION] * 3 + [ACTION]
    assert [s.text.removesuffix("<|im_end|>") for s in found.segments[::2]] == list(DONE)
    assert "## Round 3\nkitchen\noven: on" in found.segments[5].text
    assert found.finish == Finish.STOP and found.rewards["answer"] == pytest.approx(0.95)


def test_what_a_screen_says_stays_what_it_is(policy: Policy) -> None:
    found = told(policy, *DONE, task=TASK | {"text": EVIL})
    markup = {policy.tokenizer.convert_tokens_to_ids(mark) for mark in ("<|im_start|>", "<|im_end|>")}
    plain = told(policy, *DONE)
    for segment, other in zip(found.segments, plain.segments, strict=True):
        assert [t for t in segment.tokens if t in markup] == [t for t in other.tokens if t in markup]
    assert found.rewards == plain.rewards


def test_a_verdict_is_needed_to_take_part(policy: Policy) -> None:
    found = group(policy)
    assert valid_trajectories(found, drop_truncated=False).tolist() == [True, True, True, False, False]
    assert [t.finish for t in found.trajectories][3:] == [Finish.ERROR] * 2
    assert isinstance(found.trajectories[3].parsed, Verdict) and found.trajectories[3].parsed.unjudged


@pytest.mark.parametrize("name", ["smartsnap", "grpo"])
def test_advantages_by_hand(policy: Policy, name: str) -> None:
    """R is 0.95, 0.15, -1: mean 1/30, unbiased standard deviation 0.9805."""
    found = group(policy)
    valid = valid_trajectories(found, drop_truncated=False)
    method = make_method(name, kl=0.0)
    [credit] = [c for c in method.credit(found, valid) if c.channel == ACTION]
    rewards = torch.tensor([0.95, 0.15, -1.0], dtype=torch.float64)
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    assert credit.advantage[:3].tolist() == pytest.approx(expected.tolist())
    assert credit.advantage[3:].tolist() == [0.0, 0.0] and credit.kl_coef == 0.0
    [prompt] = policy.encode([PROBLEM])
    streams = make_streams(prompt, found, method.credit(found, valid), number=0)
    for row, trajectory in enumerate(found.trajectories):
        mask = torch.tensor(trajectory.channel_mask([ACTION]))
        trained = streams.channel_gr[row, : len(mask)] >= 0
        assert trained.tolist() == (mask & valid[row]).tolist()


def test_what_smartsnap_logs(policy: Policy) -> None:
    logged = make_method("smartsnap").metrics([group(policy)])
    assert logged["reward/answer"] == pytest.approx((0.95 + 0.15 - 1.0) / 3)
    assert logged["reward/format_error"] == pytest.approx(-1 / 3)
    assert logged["reward/validity"] == pytest.approx(0.4 / 3)
    assert logged["reward/complete"] == pytest.approx(0.8 / 3)
    assert logged["reward/concise"] == pytest.approx(-0.1 / 3)
    # Two of the five have done it; of the two that were judged one is a success.
    assert logged["agent/SR"] == pytest.approx(2 / 5)
    assert logged["agent/judged-SR"] == pytest.approx(1 / 2)
    assert logged["agent/judge-precision"] == 1.0 and logged["agent/judge-false-positives"] == 0.0
    assert logged["conversation/error"] == pytest.approx(2 / 5)


def test_a_log_keeps_votes_and_rewards(policy: Policy) -> None:
    found = group(policy)
    row = record(0, found, {})
    json.dumps(asdict(row), allow_nan=False)
    [played] = play([row], [PROBLEM], policy, lambda name: pytest.fail(name))
    for before, after in zip(found.trajectories, played.trajectories, strict=True):
        assert after.rewards == before.rewards and after.parsed == before.parsed
    votes = played.trajectories[0].segments[-1].parsed["judgement"]["ballots"]
    assert votes[0]["vote"]["success"] is True and votes[0]["vote"]["words"]


def test_conversations_are_held_and_a_lost_environment_ends_its_own_only(policy: Policy) -> None:
    """A model that cannot call anything says words: format errors, and one environment without power."""
    count = iter(range(4))

    def begin(problem: Any, seed: int) -> Any:
        lose = "reset" if next(count) == 1 else ""
        return episode(make=lambda: Lamps(lose=lose))

    sampling = SamplingConfig(group_size=4, max_new_tokens=4, top_p=1.0)
    limits = RolloutLimits(turns=3, step_threads=2)
    rolled = rollout(policy, DigitsSum(), [PROBLEM], [7], sampling, begin, limits)
    finishes = [t.finish for t in rolled.groups[0].trajectories]
    assert finishes[1] == Finish.ERROR and rolled.groups[0].trajectories[1].rewards == {}
    for trajectory in [t for n, t in enumerate(rolled.groups[0].trajectories) if n != 1]:
        assert trajectory.rewards["answer"] in (0.0, -1.0)


def test_of_31_turns_the_last_is_never_said(load_policy: Callable[..., Policy]) -> None:
    """At the limit nothing was handed in: a format error, with all that was done before."""
    policy = load_policy()
    policy.tokenizer.chat_template = HERMES
    policy.check_gradients()  # with the head that it has
    right, end = policy.head.logits, policy.tokenizer.eos_token_id
    only_end = torch.full((len(policy.tokenizer) + 64,), float("-inf")).index_fill(0, torch.tensor(end), 0.0)
    policy.head.logits = lambda hidden: right(hidden) + only_end[: right(hidden).shape[-1]]  # type: ignore
    heard: list[int] = []

    class Looks(AgentEpisode):
        def step(self, said: PolicyTurn) -> Observation:
            heard.append(said.turn)
            text = LOOK if said.turn < 30 else submit(1)
            return super().step(replace(said, text=text, finish=Finish.STOP))

    def begin(problem: Any, seed: int) -> AgentEpisode:
        return Looks(problem, Lamps, TASK, 3, RULES, AgentConfig(), RolloutLimits().turns, GOAL)

    sampling = SamplingConfig(group_size=1, max_new_tokens=2)
    rolled = rollout(policy, DigitsSum(), [PROBLEM], [7], sampling, begin, RolloutLimits())
    [found] = rolled.groups[0].trajectories
    assert heard == [*range(30)] and found.finish == Finish.STOP
    assert found.rewards["answer"] == -1.0 and found.rewards["tool_calls"] == 30.0
    assert found.segments[-1].parsed["why"] == "nothing was handed in"


def test_a_given_first_screen_is_heard_before_anything_is_said(policy: Policy) -> None:
    settings = AgentConfig(first_screen="given")
    problem = replace(PROBLEM, environment_begins=True)
    found = told(policy, KITCHEN, OVEN, submit(0, 2), settings=settings, problem=problem)
    assert found.segments[0].author == "environment" and "## Round 0\nhall" in found.segments[0].text
    assert found.rewards["answer"] == pytest.approx(0.9)
