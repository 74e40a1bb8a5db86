"""MiniWoB++ as a task of recipes, in a real Chromium."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.agents.word_policy import two_steps, word_policy
from tests.experiments.test_smartsnap_recipes import run

from selfverify.agents.reward import summarise_parts
from selfverify.core.episode import Call, Observation, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.experiments.registry import make_task
from selfverify.tasks.tool_calls import written_call
from selfverify_miniwob.chromium import missing
from selfverify_miniwob.task import BrowserAgents, BrowserAgentsConfig

LACKING = missing() or ("" if importlib.util.find_spec("miniwob") else "MiniWoB++ is not installed")
chromium = pytest.mark.skipif(bool(LACKING), reason=LACKING)

TEXT: dict[str, Any] = {"observations": "text", "address": "ids"}


def task(**options: Any) -> BrowserAgents:
    return make_task("browser", **{"pages": ["click-test-2"], "browser": TEXT, **options})


def text_of(reply: Observation | None) -> str:
    return "".join(part.get("text", "") for part in reply.content if isinstance(part, dict))


def id_of(shown: str, words: str) -> str:
    [line] = [line for line in shown.splitlines() if words in line and line.startswith("[")]
    return line[1 : line.index("]")]


def play(made: BrowserAgents, problem: Problem, right: bool | None) -> Any:
    """Click the button that click-test-2 asks for, or the other one, or none, then hand in."""
    episode = made.open(problem, 0)
    try:
        shown = text_of(episode.reset())
        [asked] = re.findall(r'Task: "Click button (ONE|TWO)\."', shown)
        assert shown.startswith("## Round 0")
        button = asked if right else {"ONE": "TWO", "TWO": "ONE"}[asked]
        click = Call("click", {"id": id_of(shown, f'"{button}"')})
        if right is not None:
            reply = episode.step(PolicyTurn(written_call(click, "tagged"), [], Finish.STOP, 0))
            assert "The task is over" in text_of(reply)
        submit = Call("submit", {"message": "Done.", "evidences": [0 if right is None else 1]})
        assert episode.step(PolicyTurn(written_call(submit, "tagged"), [], Finish.STOP, 1)).done
        return episode.result(), episode
    finally:
        episode.release()


@chromium
def test_the_pages_own_reward_is_the_truth() -> None:
    made = task()
    problem = made.problem("test", 0, 1)  # in which no button lies over the other
    right, episode = play(made, problem, right=True)
    assert right.rewards["truth"] == 1.0 and right.rewards["answer"] == pytest.approx(0.95)
    assert episode._question().startswith("Do what the page asks for.\nClick button ")
    wrong, _ = play(made, problem, right=False)
    assert wrong.rewards["truth"] == 0.0 and wrong.rewards["answer"] == pytest.approx(-0.05)
    unfinished, _ = play(made, problem, right=None)
    assert unfinished.rewards["truth"] == 0.0
    # A page has no sub-goals, and nobody knows how few calls it takes.
    assert not {"sub_goals", "rrr"} & right.rewards.keys()
    assert summarise_parts([right.rewards, wrong.rewards])["SR"] == 0.5


@chromium
def test_problems_are_pure_and_splits_apart() -> None:
    made = task(pages=["click-test", "click-link"], test_pages=["click-dialog"])
    assert [made.problem("train", 0, n).meta["category"] for n in range(3)] == [
        "click-test", "click-link", "click-test",
    ]  # fmt: skip
    test = made.problem("test", 0, 4)
    assert test.meta["category"] == "click-dialog" and test == made.problem("test", 0, 4)
    seeds = {
        split: {made.problem(split, 0, n).target["seed"] for n in range(50)} for split in ("train", "test")
    }
    assert not seeds["train"] & seeds["test"]
    assert "ids" not in test.messages[0]["content"][0]["text"] and test.environment_begins
    assert "web page" in test.messages[0]["content"][0]["text"]
    everything = task(pages=None)
    assert len(everything.pages["test"]) == 128 == len(everything.pages["train"])
    assert len(task(pages=None, test_pages=["click-test"]).pages["train"]) == 127


@chromium
def test_two_steps_of_training(tmp_path: Path) -> None:
    made = task(prompt="task", browser={**TEXT, "steps": 4})
    texts = [written_call(Call("click", {"id": "naaa2"}), "tagged"), 'Task: "Click button ONE."']
    lines = two_steps(word_policy(tmp_path / "model", texts)(), made, "smartsnap", tmp_path, turns=2)
    assert len(lines) == 2 and lines[0]["reward/answer"] == -1.0 and lines[0]["agent/SR"] == 0.0
    assert lines[0]["conversation/error"] == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agent": {"first_screen": "asked"}}, "only the first page says what is asked"),
        ({"judge": {"kind": "rules"}}, "nobody knows a page's goal but itself"),
        ({"browser": {"observations": "png", "address": "ids"}}, "a picture shows no ids"),
        ({"pages": ["a"], "test_pages": ["a"]}, "a is in pages and in test_pages"),
        ({"done_from": 0}, "greater than 0"),
    ],
)
def test_settings_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BrowserAgentsConfig(**options)


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfverify_miniwob.task.missing", lambda _: "there is no Chromium")
    with pytest.raises(ConfigError, match="task browser: there is no Chromium"):
        task()


@pytest.mark.slow
@chromium
def test_two_steps_of_the_recipe(tmp_path: Path) -> None:
    run("smartsnap-browser", tmp_path, "task.pages=[click-test]")
