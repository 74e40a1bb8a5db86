"""A small file of each kind of benchmark, as its owners write it: known responses come to known figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.data.test_published import BOXES as BOXED
from tests.data.test_published import QUESTIONS
from tests.data.test_published import write as published

from data_files import (
    END,
    write_reasonseg,
    write_steps,
)
from sampled_threads import drawn, sampled_threads
from selfverify.core.config import EvaluationConfig
from selfverify.data.rows import open_rows
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import read_samples
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy


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


def box(values: list[int]) -> str:
    return json.dumps({"bbox_2d": values})


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'mobile_use', 'arguments': arguments})}\n</tool_call>"


BOXES = tuple(f"<think>t</think><answer>{box([0, 0, right, 500])}</answer>" for right in (500, 1000))
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
    responses: list[tuple[str, ...]]
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
    figures = {name: figure["curves"]["pass@1"][0] for name, figure in found["metrics"].items()}
    # IoU 1 and 2000 / 4000, of both problems; the wrong steps are a click elsewhere and another action.
    expected = {"box_giou": 0.75} if name == "ReasonSeg" else {"type_accuracy": 0.75, "step_success": 0.5}
    assert {metric: figures[metric] for metric in expected} == pytest.approx(expected)
