"""The task, method, episode and environment of docs/extend.md are complete: they run as written."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sampled_threads import drawn
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Call, StepResult
from selfverify.core.tags import parse_tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Group, Segment, Trajectory
from selfverify.experiments.registry import METHODS, TASKS, make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite
from tiny_models import boosted

PAGE = Path(__file__).parents[1] / "docs" / "extend.md"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    """The page's modules, saved, imported and registered as the page says."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules = []
    for kind, block in zip(("task", "method", "episode", "environment"), blocks, strict=True):
        name = f"written_{kind}"
        (tmp_path / f"{name}.py").write_text(block, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
        modules.append(importlib.import_module(name))
    task, method, episode, _ = modules
    monkeypatch.setitem(TASKS, "digits-count", task.DigitsCount)
    monkeypatch.setitem(METHODS, "rloo", method.RLOO)
    monkeypatch.setitem(TASKS, "guess", episode.Guess)
    return modules


def one_step(
    policy: Policy, method: str, output: Path, task: str = "digits-count", **options: Any
) -> dict[str, Any]:
    """The metrics of one training step on one of the page's tasks."""
    learn(
        policy,
        make_task(task),
        make_method(method, **options),
        TrainerConfig(
            steps=1, groups_per_step=2, loss={"drop_zero_advantage": False}, checkpoint={"every": 0}
        ),
        SamplingConfig(group_size=2, max_new_tokens=8),
        output=output,
    )
    row: dict[str, Any] = json.loads((output / "metrics.jsonl").read_text(encoding="utf-8"))
    return row


@pytest.mark.usefixtures("written")
def test_the_method_learns_on_the_task(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """All groups are kept; a right answer earns 1, a malformed one 0."""
    learnt = one_step(load_policy(), "rloo", tmp_path / "rloo")
    assert learnt["groups/kept"] == 2 and learnt["tokens/trained"] > 0
    task = make_task("digits-count")
    for index in range(20):
        problem = task.problem("train", 0, index)
        judged = [
            task.verdict(problem, parse_tagged(f"<think>?</think><answer>{text}</answer>", task.tags)).reward
            for text in (problem.target, problem.target + 1, "two")
        ]
        assert judged == [1.0, 0.0, 0.0]


@pytest.mark.usefixtures("written")
def test_the_episode_says_higher_or_lower(policy: Policy) -> None:
    """Until the number is found; what is no guess is told so."""
    task = make_task("guess")
    problem = task.problem("train", 0, 0)

    def hold(*guesses: object) -> Trajectory:
        texts = [f"<think>?</think><answer>{guess}</answer><score>1</score>" for guess in guesses]
        turns = [drawn(policy, text) for text in texts]
        return recite(policy, problem, task.open(problem, 0), turns)

    target = problem.target
    made = hold(target - 1, target + 1, "x", target, "too many")
    shown = [segment.text for segment in made.segments if segment.author == "environment"]
    assert [words in text for words, text in zip(("Higher.", "Lower.", "no number"), shown, strict=True)]
    assert made.rewards["correct"] == 1.0 and made.parsed.answer == target
    assert hold(target - 1).rewards["correct"] == 0.0


@pytest.mark.usefixtures("written")
def test_the_episode_is_learnt_from(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """Conversations of a policy whose turns end at once go through all turns, and a step trains on them."""
    policy = boosted(load_policy(), 8.0)
    learnt = one_step(policy, "grpo", tmp_path / "grpo", "guess")
    assert learnt["tokens/trained"] > 0 and learnt["tokens/response"] > 7


@pytest.mark.usefixtures("written")
def test_method_by_hand() -> None:
    """Rewards 1, 0, 0 and an invalid one: 1 - 0, then 0 - 1/2 twice, then nothing."""
    rows = [
        Trajectory([Segment("answer", [1])], rewards={"answer": reward}) for reward in (1.0, 0.0, 0.0, 1.0)
    ]
    group = Group(make_task("digits-count").problem("train", 0, 0), rows)
    for credit in make_method("rloo").credit(group, torch.tensor([True, True, True, False])):
        assert credit.advantage.tolist() == pytest.approx([1.0, -0.5, -0.5, 0.0])


def test_the_environment_ends_when_the_list_is_done(written: list[ModuleType]) -> None:
    """A fruit that is not on the list costs 1; the last one that is there earns 1."""

    async def play(*fruits: str) -> list[StepResult]:
        shop = written[-1].Shop()
        await shop.reset({"list": ["pear", "pear"]}, seed=0)
        return [await shop.step(Call("buy", {"fruit": fruit})) for fruit in fruits]

    seen = asyncio.run(play("pear", "apple", "pear"))
    assert [step.round for step in seen] == [1, 2, 3]
    assert [step.done for step in seen] == [False, False, True]
    assert [step.reward for step in seen] == [0.0, -1.0, 1.0]
    assert "apple is not on the list" in seen[1].error
