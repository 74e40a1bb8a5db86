"""Which row is which problem."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tests.tasks.row_data import grounding, grounding_row, mobile, mobile_row, mutated

from data_files import write_jsonl
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.tags import parse_tagged
from selfverify.data.images import ImageRef
from selfverify.experiments.registry import make_task
from selfverify.tasks.base import Verdict
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.math import Math, MathConfig
from selfverify.tasks.mobile import Mobile
from selfverify.tasks.row_task import DataFileConfig
from tables import read_tables, yaml_cases

ROWS = [{"id": f"r{i}", "question": "?", "answer": "1"} for i in range(5)]


def over(rows: list[dict[str, Any]] = ROWS) -> Math:
    return Math(rows={"train": rows, "test": rows})


def test_training_passes_all_rows_again_and_again_in_orders_of_their_own() -> None:
    """By seed and index alone. No two ids of a step are the same, also where two passes meet in one row."""
    given, all_ids = over(), ["r0", "r1", "r2", "r3", "r4"]
    made = {seed: [given.problem("train", seed, i).id for i in range(39, -1, -1)][::-1] for seed in (0, 1)}
    orders = [
        [id.split("/")[2] for id in ids[at : at + 5]] for ids in made.values() for at in range(0, 40, 5)
    ]
    assert all(sorted(order) == all_ids for order in orders) and len(set(map(tuple, orders))) > 8
    assert made[1] == [over().problem("train", 1, i).id for i in range(40)]
    assert len({*made[0]}) == 40
    # The other splits keep the file's order, whatever the seed.
    assert [given.problem("test", 9, i).id for i in range(5)] == [f"math/test/{id}" for id in all_ids]
    with pytest.raises(DataError, match=r"has 5 rows, not 6"):
        given.problem("test", 0, 5)


def test_missing_and_empty_data() -> None:
    with pytest.raises(ConfigError, match=r"no validation data; set task\.validation"):
        over().problem("validation", 0, 0)
    with pytest.raises(DataError, match="no rows"):
        over([]).problem("train", 0, 0)
    with pytest.raises(ConfigError, match="no train data"):
        make_task("grounding").problem("train", 0, 0)


def test_images_open_when_their_problem_is_made(tmp_path: Path) -> None:
    """As data files give an image: opened when needed."""
    path = tmp_path / "dog.png"
    task = grounding(grounding_row(images=[ImageRef("row 1", path)]))
    grounding_row()["images"][0].save(path)
    assert task.problem("test", 0, 0).images[0].size == (100, 50)


@yaml_cases
def test_broken_rows_are_named(changes: dict[str, Any], message: str) -> None:
    task = grounding(grounding_row(), grounding_row(**changes))
    with pytest.raises(DataError, match=rf"grounding/test/dog: .*{message}"):
        task.problem("test", 0, 1)


def test_a_target_rounded_out_of_the_image_is_clipped() -> None:
    task = grounding(grounding_row(box=[20, 20, 100.6, 50.2]))
    assert task.problem("test", 0, 0).target == [20, 20, 100, 50]


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    """Rows of files are what their columns say; a task says which of these it takes."""
    path = write_jsonl(tmp_path / "steps.jsonl", [{"question": "How many?", "answer": "3"}])
    task = make_task("mobile", test=str(path))
    task.set_coordinate_space(lambda size: size)
    with pytest.raises(DataError, match=r"mobile/test/steps/0: .*goal.*action.*task mobile"):
        task.problem("test", 0, 0)


def test_rows_in_memory_are_read_as_a_files_are(tmp_path: Path) -> None:
    """The same problems, whether the rows come from a file or are handed over."""
    rows = [
        {"id": 1, "problem": "How long?", "unit": "cm", "answer": ["3", "three"], "subject": "lengths"},
        {"id": 2, "question": "Which?", "choices": ["2", "1"], "answer": "1"},
        {"id": 3, "question": "How many?", "answer": "77", "alternatives": [r"\sqrt{169}"]},
    ]
    path = write_jsonl(tmp_path / "a.jsonl", rows)
    filed = make_task("math", test=str(path))
    given = Math(rows={"test": rows})
    assert filed.problem("test", 0, 2).meta["alternatives"] == [r"\sqrt{169}"]
    for index in range(3):
        one, other = (task.problem("test", 0, index) for task in (filed, given))
        assert one.messages == other.messages and one.target == other.target
        assert one.meta.pop("source") == "a" and one.meta == other.meta


@pytest.mark.parametrize(
    ("options", "problems"),
    [({"solved": True}, ["a", "a/pass-2", "a/pass-3"]), ({"uniform_over": "category"}, ["a", "b", "c"])],
)
def test_rows_in_memory_are_chosen_from_as_a_files_are(
    tmp_path: Path, options: dict[str, Any], problems: list[str]
) -> None:
    """By what their columns mean, whatever these are called; a broken row is left out or named."""
    rows: list[dict[str, Any]] = [
        {"id": "a", "problem": "?", "solution": "<think>2+1</think><answer>3</answer>", "subject": "sums"},
        {"id": "b", "problem": "?", "answer": "4", "subject": "products"},
        {"id": "c", "problem": "?", "answer": "5", "subject": "powers"},
    ]
    config = MathConfig(**options)
    filed = Math(
        config.model_copy(update={"train": DataFileConfig(path=str(write_jsonl(tmp_path / "r", rows)))})
    )
    given = Math(config, {"train": rows})
    ids = [[task.problem("train", 0, i).id for i in range(3)] for task in (filed, given)]
    assert sorted(ids[1]) == [f"math/train/{id}" for id in problems]
    assert [id.replace("/r/", "/") for id in ids[0]] == ids[1] and filed.count("train") == given.count(
        "train"
    )
    broken = Math(
        config, {"train": [*rows, {"problem": "?", "solution": "<answer>7</answer>", "hint": ["x"]}]}
    )
    assert broken.count("train") == given.count("train") + ("solved" not in options)


@yaml_cases
def test_wrong_values_of_questions_are_named(changes: dict[str, Any], message: str) -> None:
    row = {"id": "r", "question": "How many?", "answer": "1"}
    with pytest.raises(DataError, match=rf"math/test/r: {message}"):
        over([row | changes]).problem("test", 0, 0)


def test_empty_cells_of_a_table_are_missing_fields() -> None:
    """As pandas hands them over: NaN in the columns that other rows fill."""
    empty = ("options", "hint", "unit", "precision", "category", "categories", "source", "answer_type")
    row = {"id": 3, "question": "How many?", "answer": 1.0, **dict.fromkeys(empty, math.nan)}
    given = over([row, row | {"id": math.nan}])
    assert given.problem("test", 0, 1).id == "math/test/1"
    problem = given.problem("test", 0, 0)
    assert problem.target == "1" and problem.id == "math/test/3"
    assert problem.meta == {"question": "How many?", "answer": "1", "categories": {}}


@pytest.mark.parametrize("wrong", [5, math.nan, math.inf, True], ids=str)
@pytest.mark.parametrize("name", ["goal", "step_instruction", "screen", "ui_boxes", "history"])
def test_steps_hold_texts_and_lists_only(name: str, wrong: Any) -> None:
    """NaN is no missing field here: a step that lost its screen would be judged by another."""
    with pytest.raises(DataError, match=rf"mobile/test/7/2: its {name} is {wrong}"):
        mobile(mobile_row(**{name: wrong})).problem("test", 0, 0)


def test_what_is_wrong_with_a_row_of_a_file_is_named_by_file_and_line(tmp_path: Path) -> None:
    good = {"question": "?", "answer": "1"}
    path = write_jsonl(tmp_path / "rows.jsonl", [good, good | {"answer": "$$", "id": "bad"}])
    task = make_task("math", test=str(path))
    with pytest.raises(DataError) as caught:
        task.problem("test", 0, 1)
    assert str(caught.value).startswith(f"{path}, line 2: math/test/rows/bad: the answer '$$' holds no one")
    boxes = write_jsonl(tmp_path / "boxes.jsonl", [good])
    with pytest.raises(DataError, match=rf"{boxes}, line 1: grounding/test/boxes/0: the row has no box"):
        make_task("grounding", test=str(boxes)).problem("test", 0, 0)


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
    written = read_tables(Path(__file__).parent / "pointing/test_grounding.yaml")["test_every_form_is_read"][
        "text"
    ]
    forms = [form.replace("30.5", "600").replace("10", "200").replace("20,", "400,") for form in written]
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
