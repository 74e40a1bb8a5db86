"""Votes are logged with what was said: a run that is replayed, as one that is resumed, asks nobody again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agents.judges.test_model_judge import FAILURE, SUCCESS
from tests.agents.lamps import KITCHEN, OVEN, PROBLEM, episode, submit
from tests.agents.told import Told
from tests.policy.test_tool_templates import HERMES
from tests.rollouts.test_converse import ending_policy

from selfverify.agents.judges.config import ModelJudgeConfig
from selfverify.agents.judges.jury import Jury
from selfverify.agents.judges.make_judge import judge_prompt
from selfverify.agents.judges.model_judge import ModelJudge
from selfverify.core.config import EvaluationConfig, RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.evaluation.evaluate import evaluate
from selfverify.experiments.registry import make_method
from selfverify.methods.base import Training
from selfverify.policy.policy import Policy
from selfverify.tasks.base import Task, Verdict
from selfverify.trainer.trainer import Trainer
from serving_servers import FakeUpstream, Loop

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
def server() -> Iterator[tuple[FakeUpstream, str]]:
    """A judge who changes its mind with every message."""
    loop = Loop()
    fake = FakeUpstream(write=lambda body, i: (SUCCESS if odd(body) else FAILURE).replace("1", "2"))
    yield fake, loop.upstream(fake)
    loop.close()


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


def test_an_evaluation_that_is_done_again_asks_nobody(
    ending_policy: Callable[..., Policy], server: tuple[FakeUpstream, str], tmp_path: Path
) -> None:
    """As of a batch that was not stored any more when the process was killed."""
    fake, url = server
    policy = ending_policy()
    policy.tokenizer.chat_template = HERMES
    config, store = EvaluationConfig(problems=2, samples=3), tmp_path / "samples.jsonl"
    asked = []
    for _ in range(2):
        task = Lighting(Jury(ModelJudge(ModelJudgeConfig(url=url, model="m"), judge_prompt())))
        evaluate(policy, task, config, store, max_new_tokens=6)
        asked.append(len(fake.seen))
        store.unlink()
    assert asked[0] == asked[1] > 0


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
