"""A small file of each kind of benchmark, as its owners write it: known responses come to known figures."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.test_published import BOXES as BOXED
from tests.data.test_published import QUESTIONS
from tests.data.test_published import write as published

from data_files import (
    END,
    base64_png,
    png,
    write_reasonseg,
    write_steps,
)
from sampled_threads import drawn, sampled_threads
from selfverify.core.config import EvaluationConfig
from selfverify.data import open_rows
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import read_samples
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy


def table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """As pandas writes a TSV: quoted where needed, missing cells empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def struct(shade: int = 0) -> dict[str, Any]:
    return {"bytes": png(28, 28, shade), "path": None}


def mathvista(folder: Path) -> Path:
    shared = {"image": base64_png(28, 28), "unit": "", "precision": ""}
    return table(
        folder / "MathVista_MINI.tsv",
        [
            {
                **shared, "index": 1, "question": "What is x?", "question_type": "free_form",
                "answer_type": "float", "choices": "", "answer": "1.20", "answer_option": "",
                "precision": "2.0",
                "category": "math-targeted-vqa", "task": "geometry problem solving",
                "skills": "['arithmetic reasoning', 'geometry reasoning']",
            },
            {
                **shared, "index": 2, "question": "Which bar?", "question_type": "multi_choice",
                "answer_type": "text", "choices": "['Ann', 'Bob']", "answer": "Bob", "answer_option": "B",
                "category": "general-vqa", "task": "figure question answering",
                "skills": "['statistical reasoning', 'arithmetic reasoning']",
            },
        ],
    )  # fmt: skip


def reasonseg(folder: Path) -> Path:
    """One image asked for by a word and one by a sentence; the target is the left half of the upper half."""
    shapes = [{"label": "target", "points": [[0, 0], [50, 0], [50, 40], [0, 40]]}]
    write_reasonseg(folder / "val", "1", text=["seat"], is_sentence=False, shapes=shapes)
    return write_reasonseg(
        folder / "val", "2", text=["What does one sit on?"], is_sentence=True, shapes=shapes
    )


def android_control(folder: Path) -> Path:
    done = [{"action": "click", "coordinate": [540, 1200]}, {"action": "system_button", "button": "Back"}]
    return write_steps(folder / "android_control-00000-of-00020.parquet", [*done, END])


def texts(right: str, wrong: str) -> tuple[str, str]:
    return tuple(f"<think>t</think><answer>{t}</answer>" for t in (right, wrong))  # type: ignore[return-value]


def box(values: list[int]) -> str:
    return json.dumps({"bbox_2d": values})


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'mobile_use', 'arguments': arguments})}\n</tool_call>"


BOXES = texts(box([0, 0, 500, 500]), box([0, 0, 1000, 500]))
"""The target of `reasonseg` in thousandths, and twice that: IoU 0.5, not above 0.5."""
STEPS = [
    (call(action="click", coordinate=[510, 500]), call(action="click", coordinate=[10, 10])),
    (call(action="system_button", button="Back"), call(action="wait")),
]


@dataclass
class Benchmark:
    """A file, a right and a wrong response to each of its two problems, and what categories it has."""

    task: str
    write: Callable[[Path], Path]
    responses: list[tuple[str, str]]
    categories: dict[str, set[str]]


CATEGORIES: dict[str, dict[str, list[str]]] = {
    "MathVerse": {
        "subfield": ["Angle"], "subject": ["Plane Geometry"], "problem_version": ["Text Dominant"]
    },
    "MathVision": {"subject": ["counting"], "level": ["2"]},
    "We-Math": {"key": ["3steps_2"], "knowledge concept": ["Angles"]},
    "MMStar": {"category": ["coarse perception"], "l2_category": ["image scene"]},
    "MMMU": {"subfield": ["Drawing"], "topic_difficulty": ["Easy"], "discipline": ["Art & Design"]},
    "RefCOCO, VLMEvalKit": {"category": ["RefCOCO_val"]},
}  # fmt: skip


@pytest.mark.parametrize("name", CATEGORIES)
def test_categories_of_published_rows(name: str, tmp_path: Path) -> None:
    form, record, *_ = (QUESTIONS | BOXED)[name]
    assert open_rows(published(tmp_path, form, record))[0]["categories"] == CATEGORIES[name]


BENCHMARKS = {
    "MathVista": Benchmark(
        "math", mathvista, [texts("1.2", "1.3"), texts("B", "A")],
        {
            "category": {"math-targeted-vqa", "general-vqa"},
            "task": {"geometry problem solving", "figure question answering"},
            "skills": {"arithmetic reasoning", "geometry reasoning", "statistical reasoning"},
        },
    ),
    "ReasonSeg": Benchmark("grounding", reasonseg, [BOXES, BOXES], {"category": {"short", "long"}}),
    "AndroidControl": Benchmark(
        "mobile", android_control, STEPS,
        {"action": {"click", "system_button"}, "category": {"click", "system_button"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BENCHMARKS)
def test_known_responses(name: str, tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first problem's right response comes first and is trusted, the second's comes second and is not."""
    given = BENCHMARKS[name]
    task = make_task(given.task, test=str(given.write(tmp_path)))
    (right_1, wrong_1), (right_2, wrong_2) = given.responses
    written = [
        [f"{right_1}<score>0.9</score>", f"{wrong_1}<score>0.2</score>"],
        [f"{wrong_2}<score>0.8</score>", f"{right_2}<score>0.1</score>"],
    ]

    def sample(prompts: Any, sampling: Any, seeds: Any = None) -> list[list[Sample]]:
        return [[drawn(policy, text) for text in row] for row in written]

    monkeypatch.setattr(policy, "threads", sampled_threads(policy, sample))
    monkeypatch.setattr(policy, "coordinate_space", lambda size: (1000, 1000), raising=False)
    task.set_coordinate_space(policy.coordinate_space)
    config = EvaluationConfig(problems=2, samples=2)
    found = evaluate(policy, task, config, tmp_path / "samples.jsonl")
    samples = read_samples(tmp_path / "samples.jsonl")[1]
    assert [sample.correct for sample in samples] == [True, False, False, True]
    assert {sample.read_by for sample in samples} == {"rules"}
    assert (found["pass@1"], found["oracle@2"], found["format_rate"]) == (0.5, 1.0, 1.0)
    assert found["curves"]["best_sampled"] == [0.5, 0.5] and found["sampled"]["auc"] == 0.5
    columns = {column: set(values) for column, values in found.get("categories", {}).items()}
    assert columns == given.categories
    for values in found.get("categories", {}).values():
        for figures in values.values():
            curves = figures["accuracy"]["curves"]
            assert curves["pass@1"] == [0.5, 0.5] and curves["oracle"] == [0.5, 1.0]
            assert curves["majority"] == pytest.approx([0.5, 0.5])
    figures = {name: figure["curves"] for name, figure in found.get("metrics", {}).items()}
    if given.task == "grounding":
        # IoU 1 and 2000 / 4000, of both problems; a vote over two such boxes is for one of them.
        assert figures["box_giou"]["pass@1"] == pytest.approx([0.75, 0.75])
        assert figures["box_ciou"]["pass@1"] == pytest.approx([(2000 + 2000) / (2000 + 4000)] * 2)
        assert figures["box_acc@0.5"]["majority"] == pytest.approx([0.5, 0.5])
        assert figures["box_giou"]["oracle"] == pytest.approx([0.75, 1.0])
        assert ("mask_giou" in figures) == (name == "ReasonSeg")
    if name == "ReasonSeg":
        # The mask is drawn with its outline, 51 x 41 pixels, of which the boxes cover 50 x 40 and 51 x 40.
        union = (2091, 4000 + 2091 - 2040)
        assert figures["mask_ciou"]["pass@1"] == pytest.approx([(2000 + 2040) / sum(union)] * 2)
        assert figures["mask_giou"]["pass@1"][0] == pytest.approx((2000 / union[0] + 2040 / union[1]) / 2)
    if given.task == "mobile":
        # Right: everything. Wrong: a click elsewhere (type alone), another action.
        assert figures["step_success"]["pass@1"] == [0.5, 0.5]
        assert figures["type_accuracy"]["pass@1"] == [0.75, 0.75]
        assert figures["grounding_accuracy"]["pass@1"] == [0.5, 0.5]
        assert found["categories"]["action"]["click"]["type_accuracy"]["curves"]["pass@1"] == [1, 1]
