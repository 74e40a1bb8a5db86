"""Agents as trajectories: channels, what is learnt, what is left out, and what a log keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.agents.lamps import KITCHEN, LOOK, OVEN, PROBLEM, TASK, episode, submit
from tests.agents.test_agent_episode import EVIL, Asked
from tests.policy.test_tool_templates import HERMES, QWEN3

from sampled_threads import drawn
from selfverify.agents.judges.jury import Jury
from selfverify.core.trajectory import OBSERVATION, Finish, Group, Trajectory
from selfverify.experiments.registry import make_method
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks.tool_episode import ACTION


@pytest.fixture
def policy(load_policy: Callable[..., Policy]) -> Policy:
    policy = load_policy()
    policy.tokenizer.chat_template = HERMES
    return policy


def told(policy: Policy, *turns: str, cut: bool = False, **settings: Any) -> Trajectory:
    """What comes of it when the policy says ``turns``, the last of them perhaps cut off."""
    samples = [drawn(policy, turn, ends=not cut or n + 1 < len(turns)) for n, turn in enumerate(turns)]
    held = episode(**settings)
    return recite(policy, held.problem, held, samples)


DONE = (LOOK, KITCHEN, OVEN, submit(3))


def group(policy: Policy) -> Group:
    """Proven, not proven, improper, no verdict, cut off: R is 0.95, 0.15, -1, nothing, and -1."""
    return Group(
        PROBLEM,
        [
            told(policy, *DONE),
            told(policy, KITCHEN, submit(1)),
            told(policy, KITCHEN, "Done."),
            told(policy, *DONE, jury=Jury(Asked(None))),
            told(policy, LOOK, KITCHEN, cut=True),
        ],
    )


@pytest.mark.parametrize("template", [HERMES, QWEN3], ids=["hermes", "qwen3"])
def test_turns_are_actions_and_screens_are_observed_and_stay_what_they_are(
    policy: Policy, template: str
) -> None:
    policy.tokenizer.chat_template = template
    found, hostile = told(policy, *DONE), told(policy, *DONE, task=TASK | {"text": EVIL})
    assert [s.channel for s in found.segments] == [ACTION, OBSERVATION] * 3 + [ACTION]
    assert [s.text.removesuffix("<|im_end|>") for s in found.segments[::2]] == list(DONE)
    assert "## Round 3\nkitchen\noven: on" in found.segments[5].text
    assert found.finish == Finish.STOP and found.rewards["answer"] == pytest.approx(0.95)
    markup = {policy.tokenizer.convert_tokens_to_ids(mark) for mark in ("<|im_start|>", "<|im_end|>")}
    for segment, other in zip(hostile.segments, found.segments, strict=True):
        assert [t for t in segment.tokens if t in markup] == [t for t in other.tokens if t in markup]
    assert hostile.rewards == found.rewards


def test_what_smartsnap_logs(policy: Policy) -> None:
    logged = make_method("smartsnap").metrics([group(policy)])
    assert logged["reward/answer"] == pytest.approx((0.95 + 0.15 - 2.0) / 4)
    assert logged["reward/format_error"] == pytest.approx(-2 / 4)
    assert logged["reward/validity"] == pytest.approx(0.4 / 4)
    assert logged["reward/complete"] == pytest.approx(0.8 / 4)
    assert logged["reward/concise"] == pytest.approx(-0.1 / 4)
    assert logged["truncated"] == pytest.approx(1 / 4)
    # Two of the five have done it; of the two that were judged one is a success.
    assert logged["agent/SR"] == pytest.approx(2 / 5)
    assert logged["agent/judged-SR"] == pytest.approx(1 / 2)
    assert logged["agent/judge-precision"] == 1.0 and logged["agent/judge-false-positives"] == 0.0
    assert logged["conversation/error"] == pytest.approx(1 / 5)
    assert logged["conversation/length"] == pytest.approx(1 / 5)
