"""Pages in words, the calls that refer to them, and MiniWoB++ as a task of recipes."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pydantic import ValidationError
from tests.agents.word_policy import two_steps, word_policy
from tests.experiments.test_smartsnap_recipes import run

from selfverify.agents.reward import summarise_parts
from selfverify.agents.tools import Box, Look, WaitFor, describe
from selfverify.core.episode import Call, Observation, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.experiments.registry import make_task
from selfverify.tasks.tool_calls import ToolError, written_call
from selfverify_miniwob import chromium
from selfverify_miniwob.chromium import Chromium, missing
from selfverify_miniwob.page_elements import page_screen
from selfverify_miniwob.task import BrowserAgents, BrowserAgentsConfig
from selfverify_miniwob.tools import BrowserTools, Choose, Click, Drag, PressKeys, Scroll, TypeKeys
from tables import yaml_cases

SIZE = (320, 420)


def node(tag: str, box: tuple[float, float, float, float], *children: Any, **more: Any) -> dict[str, Any]:
    left, top, width, height = box
    return {"tag": tag, "left": left, "top": top, "width": width, "height": height,
            "children": list(children), "id": "", "classes": "", **more}  # fmt: skip


def lines(*children: Any, scale: int = 1) -> list[str]:
    screen = page_screen("page", node("BODY", (0, 0, 500, 210), *children), (160, 210), scale)
    return [line.split("] ", 1)[0].split("[")[0] + line.split("] ", 1)[1]
            for line in describe(screen).split("\n")[1:]]  # fmt: skip


def test_pages_in_words() -> None:
    """What can be used or read, with the notation of CSS; what only holds others is left out."""
    shown = lines(
        node("DIV", (0, 50, 160, 160),
             node("LABEL", (2, 52, 50, 11.4), text="Name", classes="bold"),
             node("INPUT_text", (7, 78, 128, 21), id="tt", value="Ann", focused=True),
             node("INPUT_checkbox", (7, 100, 13, 13), id="ch0", value=True),
             node("INPUT_radio", (7, 120, 13, 13), value=False)),
        node("DIV", (10, 150, 20, 20), bgColor="rgb(255, 0, 0)", classes="box a b c"),
        node("BUTTON", (59, 156, 40, 40), node("t", (60, 160, 30, 10), text="go"), id="subbtn"),
    )  # fmt: skip
    assert shown == [
        'label.bold "Name" [2,52][52,63]',
        'input_text#tt (focused) "Ann" [7,78][135,99]',
        "input_checkbox#ch0 (checked) [7,100][20,113]",
        "input_radio (unchecked) [7,120][20,133]",
        "div.box.a.b (rgb(255, 0, 0)) [10,150][30,170]",
        "button#subbtn [59,156][99,196]",
        '    text "go" [60,160][90,170]',
    ]


def test_pages_are_scaled_and_cut() -> None:
    """Places are pixels of the screenshot; what lies outside of the task is not seen."""
    inside, outside = node("A", (150, 200, 100, 100), text="in"), node("A", (161, 0, 9, 9), text="out")
    assert lines(inside, outside, scale=2) == ['a "in" [300,400][320,420]']


def test_options_of_a_list() -> None:
    """They have the list's place."""
    options = [{"text": "One", "selected": False}, {"text": 'T"wo', "selected": True}]
    assert lines(node("SELECT", (2, 57, 150, 19), id="options", options=options)) == [
        "select#options [2,57][152,76]",
        '    option "One" [2,57][152,76]',
        '    option (selected) "T\\"wo" [2,57][152,76]',
    ]


def test_hostile_pages_stay_in_their_lines() -> None:
    """Names of classes and texts cannot pass for other lines."""
    bad = node("P", (0, 0, 9, 9), text='x"\n[n0000] button "y', id="a] b\n[n1", classes='"c" [0,0]')
    shown = lines(bad)
    assert len(shown) == 1 and shown[0].startswith("p#a_b_n1._c_._0_0_ ")


def test_large_and_deep_pages_end() -> None:
    """After so many elements; depth does not matter."""
    wide = [node("A", (0, 0, 9, 9), text="x") for _ in range(6000)]
    assert len(lines(*wide)) == 4999
    deep = node("A", (0, 0, 9, 9), text="x")
    for _ in range(3000):
        deep = node("DIV", (0, 0, 9, 9), deep)
    assert len(lines(deep)) == 1


def test_ids_hang_on_places() -> None:
    """A text or a value that changes changes no id."""

    def ids(value: str) -> list[str]:
        page = node("BODY", (0, 0, 9, 9), node("INPUT_text", (0, 0, 9, 9), value=value),
                    node("INPUT_text", (0, 0, 9, 9)))  # fmt: skip
        return [element.id for element in page_screen("p", page, (160, 210), 1).elements]

    assert ids("a") == ids("b") and len(set(ids("a"))) == 2


def test_calls_are_read() -> None:
    """Every tool, by coordinates and by ids."""
    points, names, boxes = BrowserTools("bounds"), BrowserTools("ids"), {"n1234": Box(10, 20, 30, 40)}

    def read(tools: BrowserTools, name: str, **arguments: Any) -> Any:
        return tools.read(Call(name, arguments), SIZE, boxes)

    assert read(points, "click", x=3, y=4) == Click((3, 4))
    assert read(names, "click", id="n1234") == Click((20, 30))
    assert read(names, "scroll", id="n1234", direction="down") == Scroll((20, 30), "down")
    assert read(points, "select", x=3, y=4, option="One") == Choose((3, 4), "One")
    assert read(points, "drag", x1=1, y1=2, x2=3, y2=4) == Drag((1, 2), (3, 4))
    assert read(points, "type", text="ü") == TypeKeys("ü")
    assert read(points, "press", keys="Control+a") == PressKeys("Control+a")
    assert read(points, "wait", seconds=1) == WaitFor(1.0) and read(points, "look") == Look()
    assert {s["function"]["name"] for s in points.schemas} == {s["function"]["name"] for s in names.schemas}


@yaml_cases
def test_wrong_calls_are_told(name: str, arguments: dict[str, Any], message: str) -> None:
    """In words for the agent."""
    given = {key: "x" * 4001 if value == "LONG" else value for key, value in arguments.items()}
    with pytest.raises(ToolError, match=message):
        BrowserTools("bounds").read(Call(name, given), SIZE, {})
    with pytest.raises(ToolError, match="no element 'n9'"):
        BrowserTools("ids").read(Call("click", {"id": "n9"}), SIZE, {})


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And how to get it."""
    monkeypatch.setattr(chromium.importlib.util, "find_spec", lambda name: None)
    assert "pip install playwright" in missing()
    monkeypatch.setattr(chromium.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt-get install chromium" in missing()
    with pytest.raises(ConfigError, match="no program /not/there"):
        Chromium("/not/there")
    program = tmp_path / "chromium"
    program.touch(0o755)
    assert missing() == "" and Chromium().executable == str(program)


# --- the task of recipes, in a real Chromium ----------------------------------------------------------------


LACKING = missing() or ("" if importlib.util.find_spec("miniwob") else "MiniWoB++ is not installed")
browser = pytest.mark.skipif(bool(LACKING), reason=LACKING)

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
    episode.jury.ask = Mock(wraps=episode.jury.ask)
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


@browser
def test_the_pages_own_reward_is_the_truth() -> None:
    made = task()
    problem = made.problem("test", 0, 1)  # in which no button lies over the other
    right, episode = play(made, problem, right=True)
    assert right.rewards["truth"] == 1.0 and right.rewards["answer"] == pytest.approx(0.95)
    [case] = episode.jury.ask.call_args.args
    assert case.instruction.startswith("Do what the page asks for.\nClick button ")
    wrong, _ = play(made, problem, right=False)
    assert wrong.rewards["truth"] == 0.0 and wrong.rewards["answer"] == pytest.approx(-0.05)
    unfinished, _ = play(made, problem, right=None)
    assert unfinished.rewards["truth"] == 0.0
    # A page has no sub-goals, and nobody knows how few calls it takes.
    assert not {"sub_goals", "rrr"} & right.rewards.keys()
    assert summarise_parts([right.rewards, wrong.rewards])["SR"] == 0.5


@browser
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


@browser
def test_two_steps_of_training(tmp_path: Path) -> None:
    made = task(prompt="task", browser={**TEXT, "steps": 4})
    texts = [written_call(Call("click", {"id": "naaa2"}), "tagged"), 'Task: "Click button ONE."']
    lines = two_steps(word_policy(tmp_path / "model", texts)(), made, "smartsnap", tmp_path, turns=2)
    assert len(lines) == 2 and lines[0]["reward/answer"] == -1.0 and lines[0]["agent/SR"] == 0.0
    assert lines[0]["conversation/error"] == 0.0


@yaml_cases
def test_settings_that_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BrowserAgentsConfig(**options)


def test_a_task_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfverify_miniwob.task.missing", lambda _: "there is no Chromium")
    with pytest.raises(ConfigError, match="task browser: there is no Chromium"):
        task()


@pytest.mark.slow
@browser
def test_two_steps_of_the_recipe(tmp_path: Path) -> None:
    run("smartsnap-browser", tmp_path, "task.pages=[click-test]")
