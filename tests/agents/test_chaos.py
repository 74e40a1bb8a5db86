"""Environments are killed while agents work in them: all are accounted for, and nobody has failed for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agents.chaos import Experts, Vandal
from tests.agents.word_policy import word_policy

from environment_servers import serve
from selfverify.connectors.openenv import RemoteConfig
from selfverify.connectors.pool import Source
from selfverify.connectors.sources import ProcessSource, ServerSource
from selfverify.core.config import EvaluationConfig, RolloutLimits, SamplingConfig
from selfverify.core.trajectory import Finish, Trajectory, valid_trajectories
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import read_samples
from selfverify.experiments.registry import make_method
from selfverify.policy.policy import Policy
from selfverify.rollouts.episode_runner import HUNG
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import Rollout, rollout
from serving_servers import Loop
from terse_phone import phone
from tiny_models import boosted

TURNS = 16


@pytest.fixture
def speaker(tmp_path: Path) -> Policy:
    """A policy whose turns end at once; agents say what they are told."""
    return boosted(word_policy(tmp_path / "words", ["tap type launch submit"], context=8192)(), 60.0)


@contextmanager
def experts(sources: Sequence[Source], threads: int) -> Iterator[Experts]:
    """Afterwards nothing is lent and no thread hangs."""
    hung = HUNG.count()
    limits = RolloutLimits(turns=TURNS, step_threads=threads, step_timeout_s=120)
    task = Experts(lambda: sources, limits)
    try:
        yield task
        pool = task.lender._pool
        assert pool is not None and pool._lent == {}
        assert HUNG.count() == hung
    finally:
        task.lender.close()


def account(rollout: Rollout, events: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """How many have finished and how many were lost; nobody has done anything else.

    What was lost has no reward, takes no part in its group, and an event says why.
    """
    finished = lost = 0
    method = make_method("smartsnap")
    for group in rollout.groups:
        valid = valid_trajectories(group, drop_truncated=False)
        [credit] = method.credit(group, valid)
        for trajectory, counts, advantage in zip(group.trajectories, valid, credit.advantage, strict=True):
            if trajectory.lost:
                assert trajectory.finish == Finish.ERROR and trajectory.rewards == {} and not counts
                assert float(advantage) == 0.0
                lost += 1
            else:
                assert counts and succeeded(trajectory), trajectory.rewards
                finished += 1
    reasons = [event["reason"] for event in events if event["event"] == "episode_failed"]
    assert len(reasons) == lost and all(reasons)
    return finished, lost


def succeeded(trajectory: Trajectory) -> bool:
    """Whether somebody has done the task and proven it.

    Of an environment that was lost between the submission and the end nobody knows the ground truth.
    """
    rewards = trajectory.rewards
    return trajectory.finish == Finish.STOP and rewards.get("truth", 1.0) == 1.0 and rewards["answer"] >= 0.8


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The events that were noted."""
    found = [record.__dict__ for record in caplog.records if "event" in record.__dict__]
    return [{"event": one["event"], **one["fields"]} for one in found]


def rolled(policy: Policy, task: Experts, problems: int, group: int) -> Rollout:
    asked = [task.problem("train", 0, number) for number in range(problems)]
    sampling = SamplingConfig(group_size=group, max_new_tokens=4)
    return rollout(PolicySampler(policy, sampling), task, asked, [*range(problems)], sampling.group_size)


def test_connections_that_are_cut_lose_their_own_conversations(
    speaker: Policy, servers: Loop, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    _, url = servers.run(serve(servers.stack, phone=phone))
    source = ServerSource(RemoteConfig(url, act_s=10.0), sessions=12)
    with experts([source], threads=12) as task:
        with Vandal(task, [], ["connection"], pause_s=0.02, seed=1, most=10) as vandal:
            rollout = rolled(speaker, task, 3, 4)
        finished, lost = account(rollout, told(caplog))
        assert finished + lost == 12 and 0 < lost <= vandal.done["connection"] and finished
        caplog.clear()
        config = EvaluationConfig(problems=3, samples=4, retries=5)
        with Vandal(task, [], ["connection"], pause_s=0.05, seed=2):
            summary = evaluate(speaker, task, config, tmp_path / "samples.jsonl", max_new_tokens=4)
        check_evaluation(summary, tmp_path / "samples.jsonl", 12)


def check_evaluation(summary: dict[str, Any], store: Path, episodes: int) -> tuple[int, int]:
    """How many were lost and how often some were held again; both denominators are those of the samples."""
    samples = read_samples(store)[1]
    lost = [sample for sample in samples if sample.lost]
    unknown = [sample for sample in samples if "truth" not in sample.rewards]
    assert len(samples) == episodes and len(lost) <= len(unknown)
    figures = {name: figure["curves"]["pass@1"][0] for name, figure in summary["metrics"].items()}
    assert figures["SR"] == 1.0, "a loss has counted as a failure"
    assert figures["SR-all"] == pytest.approx(1 - len(unknown) / episodes)
    assert summary["conversations"]["lost"] == pytest.approx(len(lost) / episodes)
    again = sum(sample.retries for sample in samples)
    assert summary["conversations"]["retries"] == pytest.approx(again / episodes)
    return len(lost), again


@pytest.mark.slow
def test_80_phones_at_once(speaker: Policy, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Five servers, killed and started anew, and connections that are cut."""
    caplog.set_level(logging.INFO)
    settings = RemoteConfig("http://127.0.0.1", act_s=60.0, connect_s=30.0, health_s=10.0)
    sources = [ProcessSource("terse_phone:phone", 16, settings) for _ in range(5)]
    harms = ["connection", "connection", "server"]
    with experts(sources, threads=80) as task:
        rolled(speaker, task, 1, 8)  # the pool and its servers start
        with Vandal(task, sources, harms, pause_s=0.6, seed=3) as vandal:
            rollout = rolled(speaker, task, 10, 8)
        finished, lost = account(rollout, told(caplog))
        assert finished + lost == 80 and finished >= 16 and lost >= 5
        assert sum(vandal.done.values()) >= 5
        print(f"{finished} finished, {lost} lost by {dict(vandal.done)}")
        caplog.clear()
        config = EvaluationConfig(problems=10, samples=8, batch_problems=10, retries=3)
        with Vandal(task, sources, harms, pause_s=1.5, seed=4) as vandal:
            summary = evaluate(speaker, task, config, tmp_path / "samples.jsonl", max_new_tokens=4)
        lost, again = check_evaluation(summary, tmp_path / "samples.jsonl", 80)
        assert again > 0 and any(event["event"] == "episodes_held_again" for event in told(caplog))
        print(f"{again} held again, {lost} lost by {dict(vandal.done)}")
    assert not [thread for thread in threading.enumerate() if "sample" in thread.name]
