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

PICTURE = {"bytes": png(100, 80), "path": "1.png"}
CODED = base64_png(100, 80)
Published = tuple[str, dict[str, Any], str, str, str, str]
"""The format, a record, a part of what is asked, and a right, a wrong and an unreadable answer."""
NOTHING = "I cannot tell."

QUESTIONS: dict[str, Published] = {
    "MathVista": (
        "parquet",
        {
            "pid": "1", "question": "How long is it?", "image": "images/1.jpg", "decoded_image": PICTURE,
            "choices": None, "unit": "cm", "precision": 1.0, "answer": "1.2", "question_type": "free_form",
            "answer_type": "float", "query": "Hint: Please answer.\nQuestion: How long is it?",
            "metadata": {
                "category": "math-targeted-vqa", "context": "table", "grade": "high school",
                "language": "english",
                "img_height": 80, "img_width": 100, "skills": ["geometry reasoning"], "source": "S",
                "split": "testmini", "task": "figure question answering",
            },
        },
        "How long is it? (unit: cm)", "1.2", "1.3", NOTHING,
    ),
    "MathVista, VLMEvalKit": (
        "tsv",
        {
            "index": "1", "question": "Which?", "image": CODED, "answer": "red",
            "question_type": "multi_choice",
            "answer_type": "text", "choices": "['red', 'blue']", "answer_option": "A", "precision": "",
            "category": "math", "task": "geometry",
        },
        "A. red\nB. blue", "A", "B", NOTHING,
    ),
    "MathVerse": (
        "parquet",
        {
            "sample_index": "1", "problem_index": "1", "problem_version": "Text Dominant", "image": PICTURE,
            "question": "Find the angle.\nChoices:\nA:40\nB:50", "answer": "A",
            "question_type": "multi-choice",
            "metadata": {"split": "testmini", "source": "S", "subject": "Plane Geometry",
            "subfield": "Angle"},
            "query_wo": "Please answer.", "query_cot": "Please reason.",
            "question_for_eval": "Find the angle.",
        },
        "Find the angle.\nChoices:\nA:40\nB:50", "A", "B", NOTHING,
    ),
    "MathVerse, Vision Only": (
        "parquet",
        {
            "sample_index": "2", "problem_index": "1", "problem_version": "Vision Only", "image": PICTURE,
            "question": "", "answer": "12", "question_type": "free-form", "question_for_eval": "Find x.",
        },
        "Answer the question in the image.", "12", "13", NOTHING,
    ),
    "MathVision": (
        "parquet",
        {
            "id": "4", "question": "Which is it?\n<image1>", "options": ["A", "B", "C"],
            "image": "images/4.jpg",
            "decoded_image": PICTURE, "answer": "B", "solution": None, "level": 2, "subject": "counting",
        },
        "Which is it?", "B", "C", NOTHING,
    ),
    "We-Math": (
        "parquet",
        {
            "ID": "3steps_1", "split": "testmini", "knowledge concept": "Angles",
            "question": "How many angles?",
            "option": "A. 4; B. 3; C. 8; D. No correct answer", "answer": "C", "image_path": PICTURE,
            "key": "3steps_2", "question number": 17, "knowledge concept description": "What an angle is.",
        },
        "A. 4\nB. 3\nC. 8\nD. No correct answer", "8", "A", NOTHING,
    ),
    "MMStar": (
        "parquet",
        {
            "index": 0, "question": "Which colour?\nOptions: A: red, B: blue, C: white, D: none",
            "image": png(8, 6),
            "answer": "B", "category": "coarse perception", "l2_category": "image scene",
            "meta_info": {"source": "S", "split": "val", "image_path": "images/0.jpg"},
        },
        "Options: A: red, B: blue", "B", "A", NOTHING,
    ),
    "MMStar, VLMEvalKit": (
        "tsv",
        {
            "index": "0", "question": "Which colour?", "image": CODED, "answer": "B", "A": "red", "B": "blue",
            "category": "coarse perception", "l2-category": "image scene", "bench": "S",
        },
        "A. red\nB. blue", "B", "A", NOTHING,
    ),
    "AI2D": (
        "parquet",
        {"question": "What eats it?", "options": ["fox", "owl", "sun"], "answer": "1", "image": PICTURE},
        "B. owl", "B", "A", NOTHING,
    ),
    "MMMU": (
        "parquet",
        {
            "id": "validation_Art_1", "question": "<image 1> Which style?",
            "options": "['Gothic', \"it's new\"]",
            "explanation": "", "image_1": PICTURE, "image_2": None, "img_type": "['Paintings']",
            "answer": "B",
            "topic_difficulty": "Easy", "question_type": "multiple-choice", "subfield": "Drawing",
        },
        "A. Gothic\nB. it's new", "B", "A", NOTHING,
    ),
    "MMMU-Pro, vision": (
        "parquet",
        {"id": "test_Art_1", "image": PICTURE, "options": "['4', '5']", "answer": "B", "subject": "Art"},
        "Answer the question in the image.", "B", "A", NOTHING,
    ),
    "BLINK": (
        "parquet",
        {
            "idx": "val_Counting_1", "sub_task": "Counting", "question": "How many?",
            "prompt": "How many?\n(A) 1",
            "image_1": PICTURE, "image_2": None, "image_3": None, "image_4": None, "choices": ["1", "2"],
            "answer": "(B)", "explanation": "",
        },
        "A. 1\nB. 2", "B", "A", NOTHING,
    ),
    "MathVerse, VLMEvalKit": (
        "tsv",
        {
            "index": "3", "sample_index": "3", "problem_index": "1", "problem_version": "Vision Only",
            "question": "", "image": CODED, "answer": "7", "question_type": "free-form",
            "metadata": "{'split': 'testmini', 'subject': 'Plane Geometry'}", "question_for_eval": "Find x.",
        },
        "Answer the question in the image.", "7", "8", NOTHING,
    ),
    "MMMU, VLMEvalKit": (
        "tsv",
        {
            "index": "1", "id": "validation_Art_1", "question": "<image 1> Which?", "image": f"['{CODED}']",
            "A": "Gothic", "B": "new", "C": "", "D": "", "answer": "B", "category": "Art",
            "split": "validation", "image_path": "['1.png']", "question_type": "multiple-choice",
        },
        "A. Gothic\nB. new", "B", "A", NOTHING,
    ),
    "AI2D, VLMEvalKit": (
        "tsv",
        {
            "index": "0", "image": CODED, "question": "What eats it?", "A": "fox", "B": "owl", "C": "sun",
            "D": "0", "answer": "B", "category": "foodChains", "image_path": "1.png",
        },
        "B. owl\nC. sun\nD. 0", "B", "A", NOTHING,
    ),
    "BLINK, VLMEvalKit": (
        "tsv",
        {
            "index": "0", "image": CODED, "question": "How many?", "A": "1", "B": "2", "C": "",
            "answer": "B", "category": "Counting", "split": "val",
        },
        "A. 1\nB. 2", "2", "A", NOTHING,
    ),
    "V*": (
        "jsonl",
        {
            "question_id": 0, "image": "1.png",
            "text": "What is it made of?\n(A) wool\n(B) silk\nAnswer with it.",
            "category": "direct_attributes", "label": "A",
        },
        "A. wool\nB. silk", "A", "B", NOTHING,
    ),
    "V*, lmms-lab": (
        "parquet",
        {
            "image": PICTURE, "text": "What is it made of?\n(A) wool\n(B) silk\nAnswer with it.",
            "category": "direct_attributes", "label": "A", "question_id": "7",
        },
        "A. wool\nB. silk", "A", "B", NOTHING,
    ),
    "multimodal-open-r1-8k": (
        "parquet",
        {
            "image": PICTURE, "problem": "What is x?",
            "solution": "<think>So.</think>\n\n<answer> 3 </answer>",
            "original_question": "x?", "original_answer": "3",
        },
        "What is x?", "3", "4", NOTHING,
    ),
    "MM-EUREKA": (
        "jsonl",
        {
            "id": "7", "answer": "5",
            "conversations": [
                {"role": "system", "content": "You think first."},
                {"role": "user", "content": "<image>\nWhat is y?"},
            ],
            "image_urls": ["file://FOLDER/1.png"],
        },
        "What is y?", "5", "6", NOTHING,
    ),
    "MMK12": (
        "parquet",
        {"id": "k1", "question": "<image>What is z?", "answer": "6", "subject": "physics", "image": PICTURE},
        "What is z?", "6", "7", NOTHING,
    ),
    "ThinkLite-VL-hard-11k": (
        "parquet",
        {"id": "t1", "problem": "<image>What is w?", "answer": "10", "image": png(8, 6)},
        "What is w?", "10", "11", NOTHING,
    ),
    "ThinkLite-VL-70k": (
        "parquet",
        {
            "id": "t2", "image": png(8, 6), "problem": "<image>What eats it?", "answer": "B",
            "choices": ["fox", "owl"], "ground_truth": "B",
        },
        "A. fox\nB. owl", "owl", "A", NOTHING,
    ),
    "ThinkLite-VL-70k, without choices": (
        "parquet",
        {"id": "t3", "image": png(8, 6), "problem": "<image>What is w?", "answer": "", "choices": None,
         "ground_truth": "10"},
        "What is w?", "10", "11", NOTHING,
    ),
    "LLaVA-OneVision": (
        "json",
        {
            "id": "l1", "image": "1.png", "data_source": "S",
            "conversations": [{"from": "human", "value": "<image>\nHow many?"}, {"from": "gpt",
            "value": "8"}],
        },
        "How many?", "8", "9", NOTHING,
    ),
}  # fmt: skip
BOXES: dict[str, Published] = {
    "RefCOCO, VLM-R1": (
        "json",
        {
            "image": "1.png", "dataset": "refcoco", "solution": [10, 8, 40, 28],
            "problem": "Please provide the bounding box coordinate of the region this sentence describes: "
            "left dog.",
        },
        "left dog", "[10, 8, 40, 28]", "[60, 40, 90, 70]", NOTHING,
    ),
    "RefCOCO, VLMEvalKit": (
        "tsv",
        {
            "index": "0", "image": CODED, "question": "left dog", "split": "RefCOCO_val", "width": "100",
            "height": "80", "bbox_x1": "10", "bbox_y1": "8", "bbox_x2": "40", "bbox_y2": "28",
        },
        "left dog", "[10, 8, 40, 28]", "[60, 40, 90, 70]", NOTHING,
    ),
    "RefCOCO, lmms-lab": (
        "parquet",
        {
            "question_id": "1", "image": PICTURE, "answer": ["left dog", "dog"], "bbox": [10.0, 8.0, 30.0,
            20.0],
            "question": "Please carefully observe the area circled in the image.", "iscrowd": 0,
            "segmentation": [10.0, 8.0, 40.0, 8.0, 40.0, 28.0], "file_name": "COCO_train2014_1.jpg",
        },
        "left dog", "[10, 8, 40, 28]", "[10, 8, 30, 20]", NOTHING,
    ),
    "ReasonSeg": (
        "beside",
        {
            "text": ["the one that barks"], "is_sentence": True,
            "shapes": [
                {
                    "label": "target", "labels": ["target"], "shape_type": "polygon", "image_name": "1.jpg",
                    "points": [[10, 8], [40, 8], [40, 28], [10, 28]], "group_id": None, "group_ids": [None],
                    "flags": {},
                },
            ],
        },
        "the one that barks", "[10, 8, 40, 28]", "[60, 40, 90, 70]", NOTHING,
    ),
}  # fmt: skip
DO = "Open the clock. Screen: "
CALL = {"id": "0", "type": "function", "function": {"name": "tap", "arguments": {"x1": 462}}}
TAP = {
    "type": "function",
    "function": {"name": "tap", "description": "Taps.", "parameters": {"type": "object"}},
}
CONVERSATIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "Android Instruct": (
        "json",
        {
            "messages": [
                {"role": "system", "content": "# Setup"},
                {"role": "user", "content": f"{DO}<image>"},
                {"role": "assistant", "content": 'do(action="Tap", element=[462, 1693])'},
            ],
            "images": ["1.png"],
        },
        'do(action="Tap", element=[462, 1693])',
    ),
    "Android Instruct, SmartSnap": (
        "parquet",
        {
            "messages": [
                {"role": "system", "content": "# Setup"}, {"role": "user", "content": DO},
                {"role": "assistant", "content": "I tap.", "tool_calls": [CALL]},
                {"role": "tool", "content": "## Round 1"}, {"role": "assistant", "content": "Done."},
            ],
            "tools": [TAP],
        },
        'I tap.\n<tool_call>\n{"name": "tap", "arguments": {"x1": 462}}\n</tool_call>',
    ),
}  # fmt: skip
"""The format, a record, and what its first turn teaches."""


def write(folder: Path, format: str, record: Mapping[str, Any]) -> Path:
    """A file of one record, beside the image that it may name."""
    (folder / "1.png").write_bytes(png(100, 80))
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


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_as_it_is_published(tmp_path: Path, name: str) -> None:
    format, record, question, right, wrong, unreadable = QUESTIONS[name]
    rows = open_rows(write(tmp_path, format, record), check_images=True, on_bad="refuse")
    task = Math(MathConfig(form="answer", score=False), rows={"test": rows})
    problem = task.problem("test", 0, 0)
    assert question in asked(problem) and len(problem.images) == 1
    verdicts = [
        task.judge(problem, parse_tagged(f"<answer>{answer}</answer>", ("answer",)))
        for answer in (right, wrong, unreadable)
    ]
    assert [verdict.correct for verdict in verdicts] == [True, False, False]
    if problem.meta.get("options") or problem.target in "ABCD":
        assert verdicts[2] == UNREADABLE


@pytest.mark.parametrize("name", BOXES)
def test_a_box_as_it_is_published(tmp_path: Path, name: str) -> None:
    format, record, phrase, right, wrong, unreadable = BOXES[name]
    rows = open_rows(write(tmp_path, format, record), check_images=True, on_bad="refuse")
    assert rows[0]["box"] == [10, 8, 40, 28]
    task = Grounding(rows={"test": rows})
    task.set_coordinate_space(lambda size: size)
    problem = task.problem("test", 0, 0)
    assert phrase in asked(problem) and len(problem.images) == 1
    rewards = [
        task.judge(problem, parse_tagged(f"<answer>{answer}</answer>", ("answer",))).reward
        for answer in (right, wrong, unreadable)
    ]
    assert rewards[0] == 1 and rewards[1] < 0.5 and rewards[2] == 0


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_as_it_is_published(tmp_path: Path, name: str) -> None:
    """It is imitated: no answer is judged."""
    format, record, taught = CONVERSATIONS[name]
    task = Conversations(rows={"test": open_rows(write(tmp_path, format, record), on_bad="refuse")})
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


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("A. 1 cm;B. 1.5 cm; E. No correct answer", {"A": "1 cm", "B": "1.5 cm", "E": "No correct answer"}),
        ("A. F;    B. D", {"A": "F", "B": "D"}),
        ("A. x; y; B. z", {"A": "x; y", "B": "z"}),
        ("(A) red\n(B) blue\n", {"A": "red", "B": "blue"}),
        ("A: 4 B: 3 C: 8", {"A": "4", "B": "3", "C": "8"}),
        ("A、四；B、三", {"A": "四", "B": "三"}),
        ("A. BC. 4; B. CD. 5", {"A": "BC. 4", "B": "CD. 5"}),
        ("['A', 'B']", {"A": "A", "B": "B"}),
        ('{"A": "x", "B": "y"}', {"A": "x", "B": "y"}),
    ],
)
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


@pytest.mark.parametrize(
    ("row", "read"),
    [
        ({"question": "", "image": "1.png"}, True),
        ({"question": float("nan"), "image": "1.png"}, True),
        ({"problem": "", "image": "1.png"}, True),
        ({"question": "", "images": ["1.png", "1.png"]}, True),
        ({"question": "", "problem": "", "image": "1.png", "options": ["3", "4"]}, True),
        ({"question": ""}, False),
        ({"question": None, "image": "1.png"}, False),
        ({"image": "1.png"}, False),
        ({"question": float("nan"), "image": float("nan")}, False),
        ({"conversations": [], "image": "1.png"}, False),
        ({"question": 5, "image": "1.png"}, False),
    ],
)
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
