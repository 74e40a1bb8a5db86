"""Agents as trajectories: channels, what is learnt, what is left out, and what a log keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.agents.judges.test_model_judge import FAILURE, SUCCESS
from tests.agents.lamps import KITCHEN, LOOK, OVEN, PROBLEM, TASK, episode, submit
from tests.agents.test_agent_episode import EVIL, Asked
from tests.agents.told import Told
from tests.policy.test_tool_templates import HERMES, QWEN3
from tests.rollouts.test_converse import ending_policy

from sampled_threads import drawn
from selfverify.agents.judges.config import ModelJudgeConfig
from selfverify.agents.judges.jury import Jury
from selfverify.agents.judges.make_judge import judge_prompt
from selfverify.agents.judges.model_judge import ModelJudge
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import OBSERVATION, Finish, Group, Trajectory, valid_trajectories
from selfverify.experiments.registry import make_method
from selfverify.methods.base import Training
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks.base import Task, Verdict
from selfverify.tasks.tool_episode import ACTION
from selfverify.trainer.batch import make_streams
from selfverify.trainer.trainer import Trainer
from serving_servers import FakeUpstream, Loop


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


@pytest.mark.parametrize("template", [HERMES, QWEN3], ids=["hermes", "qwen3"])
def test_the_agents_turns_are_actions_and_the_rest_is_observed(policy: Policy, template: str) -> None:
    policy.tokenizer.chat_template = template
    found = told(policy, *DONE)
    assert [s.channel for s in found.segments] == [ACTION, OBSERVATION] * 3 + [ACTION]
    assert [s.text.removesuffix("<|im_end|>") for s in found.segments[::2]] == list(DONE)
    assert "## Round 3\nkitchen\noven: on" in found.segments[5].text
    assert found.finish == Finish.STOP and found.rewards["answer"] == pytest.approx(0.95)


@pytest.mark.parametrize("template", [HERMES, QWEN3], ids=["hermes", "qwen3"])
def test_what_a_screen_says_stays_what_it_is(policy: Policy, template: str) -> None:
    policy.tokenizer.chat_template = template
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


__all__ = ["ending_policy"]  # a fixture


class Lighting(Task):
    name = "lighting"
    summary = "test"
    limits = RolloutLimits(turns=3)
    repeatable = False

    def __init__(self, jury: Jury) -> None:
        super().__init__()
        self.jury, self.opened = jury, 0

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        return replace(PROBLEM, id=f"lighting/{index}")

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        return Verdict(0.0, False)

    def open(self, problem: Problem, seed: int) -> Episode:
        self.opened += 1
        turns = [KITCHEN, OVEN, submit(2, message=f"Lamp {self.opened} is on.")]  # no two messages alike
        return Told(episode(panel=self.jury), turns)

    def set_cache_folder(self, folder: Path) -> None:
        self.jury.judge.set_cache_folder(folder)


@pytest.fixture
def server(servers: Loop) -> tuple[FakeUpstream, str]:
    """A judge who changes its mind with every message."""
    fake = FakeUpstream(write=lambda body, i: (SUCCESS if odd(body) else FAILURE).replace("1", "2"))
    return fake, servers.upstream(fake)


def odd(body: dict[str, Any]) -> bool:
    return int(body["messages"][1]["content"].split("Lamp ")[1].split(" ")[0]) % 2 == 1


def learn(
    ending_policy: Callable[..., Policy], url: str, folder: Path, replay: Path | None
) -> tuple[int, str]:
    policy = ending_policy()
    policy.tokenizer.chat_template = HERMES
    judge = ModelJudge(ModelJudgeConfig(url=url, model="m"), judge_prompt())
    task = Lighting(Jury(judge))
    config = TrainerConfig(steps=2, groups_per_step=2, rollout_log="all", checkpoint_every=0)
    sampling = SamplingConfig(group_size=3, max_new_tokens=6)
    training = Training(policy, task, make_method("smartsnap"), config, sampling, folder, replay=replay)
    Trainer(training).run()
    return task.opened, (folder / "metrics.jsonl").read_text()


def test_nobody_is_asked_again(
    ending_policy: Callable[..., Policy], server: tuple[FakeUpstream, str], tmp_path: Path
) -> None:
    fake, url = server
    opened, metrics = learn(ending_policy, url, tmp_path / "run", None)
    lines = [json.loads(line) for line in metrics.splitlines()]
    asked = len(fake.seen)
    # Conversations whose sampled turns were cut off by the limit did not get as far as handing in.
    assert opened == 12 and 0 < asked <= 36 and asked % 3 == 0
    assert any(line["groups/kept"] for line in lines)
    again, repeated = learn(ending_policy, url, tmp_path / "again", tmp_path / "run")
    assert (again, len(fake.seen)) == (0, asked) and repeated == metrics
