"""Mutated responses: nothing raises, and whatever is paid is well formed by an independent reading."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from tests.tasks.pointing.test_boxes import FORMS
from tests.tasks.row_data import grounding, grounding_row, mobile, mobile_row, mutated

from selfverify.core.tags import parse_tagged
from selfverify.tasks.base import Verdict
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.mobile import Mobile

PIECES = [
    "<answer>", "</answer>", "<think>", "</think>", "<score>", "</score>", "<tool_call>", "</tool_call>",
    "[", "]", "{", "}", "(", ")", '"', "'", ",", ":", "\\", "\\u0000", "\n", " ", "-", ".", "e9", "0", "9999",
    "NaN", "Infinity", "null", "true", "1e999", "9" * 40, "bbox_2d", '"bbox": [1,2,3,4],', "<box>", "</box>",
    "<|box_start|>", "<|box_end|>", "```json", "```", "coordinate", '"action": "click",', "mobile_use", "é",
    "\ud800", "１", "\x00", '{"name": "mobile_use", "arguments": {"action": "wait"}}', "swipe", "[200, 400]",
]  # fmt: skip


def body(text: str, tags: list[str]) -> list[str] | None:
    """What the tags hold, by one regular expression, if each tag is there once and nothing is between."""
    pattern = r"\s*".join(rf"<{tag}>(.*?)</{tag}>" for tag in tags)
    head = text.split(f"</{tags[-1]}>")[0] + f"</{tags[-1]}>"
    found = re.fullmatch(rf"[ \t\n\r\f\v]*{pattern}", head, re.DOTALL)
    if not found or any(text.split("<score>")[0].count(f"<{tag}>") != 1 for tag in tags):
        return None
    return list(found.groups())


def judged(task: Grounding | Mobile, problem: Any, text: str) -> Verdict | None:
    """As rollouts do it: an answer whose tags are malformed is not even judged."""
    tagged = parse_tagged(text, task.tags)
    return task.judge(problem, tagged) if tagged.answer_ok else None


def box_seeds() -> list[str]:
    forms = [form.replace("30.5", "600").replace("10", "200").replace("20,", "400,") for form in FORMS]
    return [f"<think>a dog</think><answer>{form}</answer><score>0.5</score>" for form in forms]


NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def check_boxes(count: int, seed: int) -> int:
    """How many of ``count`` mutated answers were paid; each is four numbers in a row of its answer."""
    task = grounding(grounding_row(box=[1, 1, 99, 49]))
    problem = task.problem("test", 0, 0)
    paid = 0
    for text in mutated(box_seeds(), PIECES, count, seed):
        verdict = judged(task, problem, text)
        if verdict is None or verdict.reward == 0:
            continue
        paid += 1
        held = body(text, ["think", "answer"])
        assert held is not None, text
        # Labels and prose hold numbers as well, so any four neighbours will do, but no parts of numbers.
        numbers = [float(n) for n in NUMBER.findall(held[1].replace("box_2d", "").replace("points_1", ""))]
        boxes = [numbers[i : i + 4] for i in range(len(numbers) - 3)]
        pixels = [[x1 / 10, y1 / 20, x2 / 10, y2 / 20] for x1, y1, x2, y2 in boxes]
        clipped = [[min(max(v, 0), 50 if i % 2 else 100) for i, v in enumerate(box)] for box in pixels]
        # Answers are rounded to two decimals.
        same = [all(abs(a - b) < 0.006 for a, b in zip(verdict.answer, box, strict=True)) for box in clipped]
        assert any(same), text
        if held[1].lstrip().startswith(("{", '[{"')) and "'" not in held[1]:
            assert json.JSONDecoder().raw_decode(held[1].lstrip()), text
    return paid


def pairs_of(text: str) -> Any:
    """JSON with its objects as lists of pairs, so that repeated keys show."""
    return json.loads(text, object_pairs_hook=lambda pairs: ("object", pairs))


def check_calls(count: int, seed: int) -> int:
    """How many of ``count`` mutated calls were paid; each is one whole call with each key once."""
    actions = [
        {"action": "click", "coordinate": [500, 500]},
        {"action": "swipe", "coordinate": [500, 800], "coordinate2": [500, 200]},
        {"action": "type", "text": "new delhi"},
        {"action": "terminate", "status": "success"},
    ]
    calls = [json.dumps({"name": "mobile_use", "arguments": action}) for action in actions]
    seeds = [f"<tool_call>\n{call}\n</tool_call><score>0.5</score>" for call in calls]
    targets = [
        actions[0] | {"coordinate": [540, 1200]},
        {"action": "swipe", "coordinate": [540, 1900], "coordinate2": [540, 500]},
        *actions[2:],
    ]
    tasks = [mobile(mobile_row(action=target)) for target in targets]
    problems = [task.problem("test", 0, 0) for task in tasks]
    paid = 0
    for text in mutated(seeds, PIECES, count, seed):
        verdicts = [judged(task, p, text) for task, p in zip(tasks, problems, strict=True)]
        rewards = [verdict.reward if verdict else 0.0 for verdict in verdicts]
        assert all(reward in (0, 1, 2) for reward in rewards) and sum(reward > 0 for reward in rewards) <= 1
        if not any(rewards):
            continue
        paid += 1
        held = body(text, ["tool_call"])
        assert held is not None, text
        kind, outer = pairs_of(held[0])
        assert kind == "object" and sorted(key for key, _ in outer) == ["arguments", "name"], text
        arguments = dict(outer)["arguments"][1]
        names = [key for key, _ in arguments]
        assert len(set(names)) == len(names) and dict(outer)["name"] == "mobile_use", text
        assert dict(arguments)["action"] == targets[int(rewards.index(max(rewards)))]["action"], text
        for key, value in arguments:
            if key.startswith("coordinate"):
                assert len(value) == 2 and all(type(v) in (int, float) and abs(v) <= 1e5 for v in value), text
    return paid


def test_mutated_boxes() -> None:
    assert check_boxes(4000, 1) > 100


def test_mutated_calls() -> None:
    assert check_calls(4000, 1) > 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_mutated_responses() -> None:
    assert check_boxes(500_000, 2) > 10_000
    assert check_calls(500_000, 2) > 4_000


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 100_000,
        "<tool_call>" + "{" * 1_000_000 + "</tool_call>",
        "<tool_call>" + "[" * 8000 + "</tool_call>",
        "<tool_call>" + '{"name": ' * 900 + "</tool_call>",
        '<tool_call>{"name": "mobile_use", "arguments": {"action": "type", "text": "'
        + "a " * 4000
        + '"}}</tool_call>',
    ],
    ids=lambda text: text[:30],
)
@pytest.mark.parametrize("profile", ["adpo", "gui-odyssey", "gui-r1", "os-atlas-odyssey"])
def test_long_output_is_read_at_once(text: str, profile: str) -> None:
    """The tests' own time limit is what would stop an algorithm that is not linear."""
    task = mobile(mobile_row(action={"action": "type", "text": "b" * 200}), profile=profile)
    problem = task.problem("test", 0, 0)
    verdict = judged(task, problem, text + "<score>1</score>")
    assert verdict is None or not verdict.correct
