"""Learning from one's own successes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.agents.test_agent_rollout import HERMES, group

from selfverify.core.trajectory import Group, valid_trajectories
from selfverify.experiments.registry import make_method
from selfverify.policy.policy import Policy


@pytest.fixture
def policy(load_policy: Any) -> Policy:
    made = load_policy()
    made.tokenizer.chat_template = HERMES
    return made


def kept(found: Group, **options: str) -> list[bool]:
    method = make_method("self-imitation", **options)
    [credit] = method.credit(found, valid_trajectories(found, True))
    assert credit.channel == "action" and method.objective == "likelihood" and method.measured
    taught = torch.as_tensor(credit.advantage) * torch.as_tensor(credit.valid)
    return [bool(value) for value in taught]


def test_only_successes_are_learnt(policy: Policy) -> None:
    found = group(policy)
    successes = [t.rewards.get("judged_success", 0) > 0 for t in found.trajectories]
    assert sum(successes) == 1 and kept(found) == successes
    truth = [t.rewards.get("correct", 0) > 0 and t.finish != "error" for t in found.trajectories]
    assert kept(found, keep="correct") == truth
    logged = make_method("self-imitation").metrics([found])
    assert logged["imitation/kept"] == sum(successes) / len(successes) and logged["agent/SR"] > 0


def test_a_success_that_was_never_handed_in_is_not_learnt(policy: Policy) -> None:
    found = group(policy)
    for trajectory in found.trajectories:
        trajectory.rewards |= {"correct": 1.0, "answer_format": 0.0}
    assert not any(kept(found, keep="correct"))
