"""Files in exactly the columns of their publishers, with made-up content: what is asked, and three verdicts.

Where a data set comes from its owner, in lmms-eval's form and as VLMEvalKit's table, each is here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.tasks.row_data import call_answer, mobile

from data_files import base64_png, png, write_jsonl, write_odyssey
from reproduce.convert_android_control import convert
from reproduce.tests.test_convert_android_control import android_episode, write_android_control
from selfverify.agents.android.androidlab import read_tasks
from selfverify.core.errors import DataError
from selfverify.core.tags import parse_tagged
from selfverify.data.rows import open_rows
from selfverify.tasks.base import UNREADABLE
from selfverify.tasks.conversations import Conversations
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.math import Math, MathConfig
from tables import read_tables, yaml_cases

TABLES = read_tables(Path(__file__).with_suffix(".yaml"))
"""By name: a record, a part of what is asked, a right and a wrong answer; or what a conversation teaches."""
PICTURE = {"bytes": png(100, 80), "path": "1.png"}
CODED = base64_png(100, 80)
NOTHING = "I cannot tell."
DO = "Open the clock. Screen: "


def filled(value: Any) -> Any:
    """A value of the table, in which the names of images stand for them."""
    match value:
        case dict():
            return {key: filled(inner) for key, inner in value.items()}
        case list():
            return [filled(inner) for inner in value]
        case "PICTURE":
            return PICTURE
        case "BYTES":
            return png(8, 6)
        case str():
            return value.replace("CODED", CODED)
    return value


def write(folder: Path, format: str, record: Mapping[str, Any], **others: str) -> Path:
    """A file of one record of the table, beside the image that it may name."""
    (folder / "1.png").write_bytes(png(100, 80))
    record = filled(record)
    path = folder / f"published.{format}"
    whole = json.loads(json.dumps(record, default=lambda value: None).replace("FOLDER", str(folder)))
    match format:
        case "parquet":
            parquet.write_table(pa.Table.from_pylist([record]), path)
        case "jsonl":
            write_jsonl(path, [whole])
        case "json":
            path.write_text(json.dumps([whole]))
        case "beside":
            path = (folder / "1.png").with_suffix(".json")
            path.write_text(json.dumps(whole))
        case _:
            cells = [*record], [str(value) for value in record.values()]
            path.write_text("\n".join("\t".join(row) for row in cells) + "\n")
    return path


def asked(problem: Any) -> str:
    return "".join(part.get("text", "") for part in problem.messages[0]["content"])


@pytest.mark.parametrize("name", TABLES["questions"])
def test_a_question_as_it_is_published(tmp_path: Path, name: str) -> None:
    case = TABLES["questions"][name]
    rows = open_rows(write(tmp_path, **case), check_images=True, on_bad="refuse")
    task = Math(MathConfig(form="answer", score=False), rows={"test": rows})
    problem = task.problem("test", 0, 0)
    assert case["asked"] in asked(problem) and len(problem.images) == 1
    verdicts = [
        task.judge(problem, parse_tagged(f"<answer>{answer}</answer>", ("answer",)))
        for answer in (case["right"], case["wrong"], NOTHING)
    ]
    assert [verdict.correct for verdict in verdicts] == [True, False, False]
    if problem.meta.get("options") or problem.target in "ABCD":
        assert verdicts[2] == UNREADABLE


@pytest.mark.parametrize("name", TABLES["boxes"])
def test_a_box_as_it_is_published(tmp_path: Path, name: str) -> None:
    case = TABLES["boxes"][name]
    rows = open_rows(write(tmp_path, **case), check_images=True, on_bad="refuse")
    assert rows[0]["box"] == [10, 8, 40, 28]
    task = Grounding(rows={"test": rows})
    task.set_coordinate_space(lambda size: size)
    problem = task.problem("test", 0, 0)
    assert case["asked"] in asked(problem) and len(problem.images) == 1
    rewards = [
        task.judge(problem, parse_tagged(f"<answer>{answer}</answer>", ("answer",))).reward
        for answer in (case["right"], case["wrong"], NOTHING)
    ]
    assert rewards[0] == 1 and rewards[1] < 0.5 and rewards[2] == 0


@pytest.mark.parametrize("name", TABLES["conversations"])
def test_a_conversation_as_it_is_published(tmp_path: Path, name: str) -> None:
    """It is imitated: no answer is judged."""
    case = TABLES["conversations"][name]
    record, taught = case["record"], case["taught"]
    task = Conversations(rows={"test": open_rows(write(tmp_path, **case), on_bad="refuse")})
    problem = task.problem("test", 0, 0)
    assert [message["role"] for message in problem.messages] == ["system", "user"]
    assert problem.meta["question"] == DO and len(problem.images) == len(record.get("images", []))
    assert problem.tools == record.get("tools", []) or problem.tools[0]["function"]["name"] == "tap"
    assert task.demonstrate_turns(problem, np.random.default_rng(0))[0].text == taught
    assert task.judge(problem, call_answer(taught)).unjudged


def android_control(folder: Path) -> Path:
    file = write_android_control(folder / "android_control-00000-of-00020", [android_episode()])
    convert(file, folder / "steps.parquet")
    return folder / "steps.parquet"


@pytest.mark.parametrize(
    ("publish", "goal", "target"),
    [(write_odyssey, "Eat", [500, 250]), (android_control, "Set an alarm for 7:30", [500, 500])],
)
def test_a_step_as_it_is_published(
    tmp_path: Path, publish: Callable[[Path], Path], goal: str, target: list[int]
) -> None:
    rows = open_rows(publish(tmp_path), on_bad="refuse")
    task = mobile(*[row for row in rows if row["action"]["action"] == "click"])
    problem = task.problem("test", 0, 0)
    text = "".join(part.get("text", "") for part in problem.messages[1]["content"])
    assert f"Goal: {goal}\n" in text and len(problem.images) == 1
    answers = [{"action": "click", "coordinate": place} for place in (target, [999, 999])]
    judged = [task.judge(problem, call_answer(answer)) for answer in (*answers, NOTHING)]
    assert [verdict.correct for verdict in judged] == [True, False, False]
    assert [verdict.answer is None for verdict in judged] == [False, False, True]


def test_tasks_as_smartsnap_has_released_them(tmp_path: Path) -> None:
    """A judge looks at the end of a conversation; the file says what is asked."""
    (tmp_path / "clock.yaml").write_text(
        "APP: clock\npackage: com.google.android.deskclock\ntasks:\n"
        "- metric_func: evaluation.tasks.clock\n  metric_type: operation\n"
        "  task: Set a timer for a nap of\n    17 minutes.\n  task_id: clock_0\n"
        "- metric_func: evaluation.tasks.clock\n  metric_type: query_detect\n"
        "  task: What time is it in Oslo?\n  task_id: clock_1\n"
    )
    first, second = read_tasks(tmp_path)
    assert first.instruction == "Set a timer for a nap of 17 minutes." and first.app == "clock"
    assert (second.task_id, second.metric_type) == ("clock_1", "query_detect")


# We-Math's options, on both sides.


def options_of(tmp_path: Path, text: Any, answer: str = "A", column: str = "option") -> dict[str, str]:
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "?", column: text, "answer": answer}])
    return open_rows(path, on_bad="refuse")[0]["options"]


@yaml_cases
def test_options_in_one_text(tmp_path: Path, text: str, options: dict[str, str]) -> None:
    for column in ("option", "options", "choices"):
        assert options_of(tmp_path, text, column=column) == options


@pytest.mark.parametrize(
    "text", ["4; 3; 8", "B. 4; C. 3", "A. 4", "4 or A. 3; B. 5", "1. 4; 2. 3", "A. ; B. 4"]
)
def test_options_without_letters_are_refused_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: its option"):
        options_of(tmp_path, text)


# MathVerse's questions in the image, on both sides.


@yaml_cases
def test_an_empty_question_stands_in_the_image(tmp_path: Path, row: dict[str, Any], read: bool) -> None:
    (tmp_path / "1.png").write_bytes(png())
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "?", "answer": "3"}, {**row, "answer": "3"}])
    rows = open_rows(path)
    assert len(rows) == 1 + read
    assert not read or rows[1]["question"] == "Answer the question in the image."


# COCO's boxes, on both sides.


@pytest.mark.parametrize("column", ["area", "iscrowd", "segmentation"])
def test_a_box_beside_cocos_columns_is_width_and_height(tmp_path: Path, column: str) -> None:
    (tmp_path / "1.png").write_bytes(png(100, 80))
    row = {"image": "1.png", "question": "dog", "bbox": [10, 8, 30, 20]}
    lines = [
        {**row, column: 0},
        {**row, column: None},
        {**row, column: [], "answer": ["left dog", "dog"]},
        {**row, column: 0, "bbox": [40, 30, 30, 20]},
        row | {"bbox": [10, 8, 40, 28]},
        {**row, column: 0, "bbox": None, "box": [10, 8, 40, 28]},
        {**row, column: 0, "bbox": [80, 8, 30, 20]},
        {**row, column: 0, "bbox": [10, 8, 0, 20]},
        {**row, "bbox": [40, 30, 30, 20]},
        {**row, column: 0, "bbox": [10, 8, 30]},
    ]
    rows = open_rows(write_jsonl(tmp_path / "a.jsonl", lines))
    named = [(row["question"], row["box"]) for row in rows]
    same = [10, 8, 40, 28]
    assert named == [
        ("dog", same), ("dog", same), ("left dog", same), ("dog", same), ("dog", [40, 30, 70, 50]),
        ("dog", same), ("dog", same),
    ]  # fmt: skip
    assert [bad.line for bad in rows.bad] == [7, 8, 9, 10] and rows[3]["id"] == "a/2#2"


def test_no_image_is_what_pandas_makes_of_an_empty_cell() -> None:
    nan = float("nan")
    row = {"question": "q", "answer": "1"}
    images: list[Any] = [nan, None, "", b"", []]
    task = Math(rows={"test": [{**row, name: image} for image in images for name in ("images", "image")]})
    assert all(not task.problem("test", 0, index).images for index in range(10))
    for wrong in (5, True, {"a": 1}, [nan], ["", CODED]):
        with pytest.raises(DataError):
            Math(rows={"test": [{**row, "images": wrong}]}).problem("test", 0, 0)
