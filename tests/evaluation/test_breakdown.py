"""Tasks' own figures and categories, from known answers, by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

from known_answers import GROUNDED, Answers, grounding_rows, judged
from samples import sample
from selfverify.evaluation.breakdown import breakdown, choices
from selfverify.evaluation.metrics import SampleTable, curves, paired_difference, summarise
from selfverify.evaluation.samples import StoredSample
from selfverify.tasks.base import EVERY, Metric, Task
from selfverify.tasks.digits import DigitsSum
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.math import Math
from selfverify.tasks.mobile import Mobile, MobileConfig


def test_boxes_and_masks_by_hand() -> None:
    task = Grounding(rows={"test": grounding_rows()})
    rows, problems = judged(task, GROUNDED)
    found = breakdown(rows, task, problems)
    figures = {name: figure["curves"] for name, figure in found["metrics"].items()}
    assert figures["box_giou"]["pass@1"] == pytest.approx([(1 + 1 / 3 + 0 + 0.5) / 4] * 2)
    assert figures["box_ciou"]["pass@1"] == pytest.approx(
        [(800 + 400 + 0 + 1000) / (800 + 1200 + 1000 + 2000)] * 2
    )
    assert figures["box_acc@0.5"]["pass@1"] == pytest.approx([1 / 4] * 2)
    # By score the second sample of both.
    assert figures["box_giou"]["best"] == pytest.approx([(4 / 3 + 0.5) / 4, (1 / 3 + 0.5) / 2])
    assert figures["box_ciou"]["best"][1] == pytest.approx((400 + 1000) / (1200 + 2000))
    # A right answer where there is one: the first problem's first, any of the second's.
    assert figures["box_giou"]["oracle"][1] == pytest.approx((1 + 0.25) / 2)
    # 5 of 10 rows are wanted, 5 ignored; the box covers these and 10 that are neither.
    assert figures["mask_giou"]["best"][1] == pytest.approx(500 / 1500)
    assert figures["mask_ciou"]["pass@1"][0] == pytest.approx(500 / (500 + 1500))
    short, long = found["categories"]["category"]["short"], found["categories"]["category"]["long"]
    assert short["problems"] == long["problems"] == 1 and "mask_giou" not in short
    assert short["accuracy"]["curves"]["pass@1"] == [0.5, 0.5]
    assert short["box_giou"]["curves"]["best"] == pytest.approx([2 / 3, 1 / 3])
    assert long["box_ciou"]["curves"]["best"] == pytest.approx([1 / 3, 0.5])


def test_a_vote_over_boxes_is_measured_by_the_box_it_makes() -> None:
    """Two boxes make one cluster, whose middle is the target; the third is alone."""
    row = {"question": "a", "images": [Image.new("RGB", (100, 100))], "box": [20, 20, 60, 60]}
    task = Grounding(rows={"test": [row]})
    answers = [[("[160, 200, 560, 600]", 0.5), ("[240, 200, 640, 600]", 0.5), ("[800, 800, 900, 900]", 0.5)]]
    rows, problems = judged(task, answers)
    figures = breakdown(rows, task, problems)["metrics"]
    assert figures["box_giou"]["curves"]["majority"][2] == pytest.approx(1)
    # Of the three pairs one agrees on the target; in the others each box is alone: one at random.
    shifted = 36 * 40 / (44 * 40)
    assert figures["box_giou"]["curves"]["majority"][1] == pytest.approx((1 + shifted / 2 * 2) / 3)


CALL = '{"name": "mobile_use", "arguments": %s}'


def test_steps_by_hand() -> None:
    screen = {"images": [Image.new("RGB", (54, 120))], "screen": (1000, 1000), "goal": "g"}
    rows = [
        {**screen, "action": {"action": "click", "coordinate": [100, 100]}, "category": "Shop"},
        {**screen, "action": {"action": "wait"}},
    ]
    task = Mobile(MobileConfig(), {"test": rows})
    hit, far = (json.dumps({"action": "click", "coordinate": [x, 100]}) for x in (120, 900))
    wait = '{"action": "wait"}'
    answers = [
        [(CALL % hit, 0.1), (CALL % far, 0.9), (CALL % far, 0.5), (CALL % wait, 0.0)],
        [(CALL % wait, 0.9), (CALL % wait, 0.1), (CALL % hit, 0.5), ("broken", 0.3)],
    ]
    found, problems = judged(task, answers)
    figures = {name: f["curves"] for name, f in breakdown(found, task, problems)["metrics"].items()}
    assert figures["type_accuracy"]["pass@1"][0] == pytest.approx((3 + 2) / 8)
    assert figures["step_success"]["pass@1"][0] == pytest.approx((1 + 2) / 8)
    assert figures["grounding_accuracy"]["pass@1"][0] == pytest.approx(1 / 4)  # of the click alone
    assert figures["type_accuracy"]["best"][3] == 1 and figures["step_success"]["best"][3] == 0.5
    assert figures["grounding_accuracy"]["best"][3] == 0
    # Both far clicks share a cell of the vote, and both waits are one answer.
    assert figures["step_success"]["majority"][3] == 0.5 and figures["grounding_accuracy"]["majority"][3] == 0
    categories = breakdown(found, task, problems)["categories"]
    assert set(categories["action"]) == {"click", "wait"} and set(categories["category"]) == {"Shop"}
    assert "grounding_accuracy" not in categories["action"]["wait"]
    assert categories["action"]["wait"]["accuracy"]["curves"]["best"][3] == 1


def test_accuracy_by_category_and_by_every_column() -> None:
    rows = [
        {"question": "?", "answer": "1", "categories": {"task": ["GPS"], "skills": ["algebra", "geometry"]}},
        {"question": "?", "answer": "2", "categories": {"task": "FQA", "skills": ["algebra"]}},
        {"question": "?", "answer": "3", "category": "alone"},
    ]
    task = Math(rows={"test": rows})
    answers = [[("1", 0.9), ("5", 0.1)], [("1", 0.9), ("2", 0.1)], [("3", 0.5), ("3", 0.5)]]
    samples, problems = judged(task, answers)
    found = breakdown(samples, task, problems)
    assert "metrics" not in found
    accuracy = {
        (column, value): entry["accuracy"]["curves"]["best"][1]
        for column, of in found["categories"].items()
        for value, entry in of.items()
    }
    assert accuracy == {
        ("task", "GPS"): 1, ("task", "FQA"): 0, ("skills", "algebra"): 0.5, ("skills", "geometry"): 1,
        ("category", "alone"): 1,
    }  # fmt: skip


def test_categories_and_own_figures_read_scores_as_asked() -> None:
    """The box that meets its target has the lower soft score and the higher written one: IoU 1 or 1/3."""
    task = Grounding(rows={"test": grounding_rows()})
    rows, problems = judged(task, GROUNDED)
    for row in rows:
        row.scores["sampled"] = 1 - (row.scores["soft"] or 0)
    for headline, iou, right in (("soft", 1 / 3, 0), ("sampled", 1, 1)):
        short = breakdown(rows, task, problems, headline)["categories"]["category"]["short"]
        assert short["box_giou"]["curves"]["best"][1] == pytest.approx(iou, abs=0.01)
        assert short["accuracy"]["curves"]["best"][1] == right


@pytest.mark.parametrize("kind", ["boxes", "texts"])
def test_choices_agree_with_the_curves(kind: str) -> None:
    """The same subsets, the same rules: accuracy is what `curves` says, for every rule and N."""
    rng = np.random.default_rng(3)
    if kind == "boxes":
        rows = grounding_rows() * 40
        task: Any = Grounding(rows={"test": [{**row, "id": str(i)} for i, row in enumerate(rows)]})
        texts = ["[200, 400, 600, 800]", "[210, 400, 650, 800]", "[0, 0, 1000, 120]", "no", "[0, 0, 900, 90]"]
    else:
        task = Math(
            rows={"test": [{"question": "?", "answer": str(i % 3), "category": "c"} for i in range(80)]}
        )
        texts = ["0", "1", "2", "?!"]
    answers: Answers = [
        [
            (str(rng.choice(texts)), None if rng.random() < 0.1 else float(rng.integers(4)) / 4)
            for _ in range(9)
        ]
        for _ in range(80)
    ]
    rows_, problems = judged(task, answers)
    boxes = {p.id: p.target for p in problems.values()} if kind == "boxes" else None
    table = SampleTable(rows_, target_boxes=boxes)
    expected, chosen = curves(table), choices(table, task, problems)
    for rule, curve in expected.items():
        if (rule, 1) in chosen:
            assert curve == pytest.approx(
                [chosen[rule, n]["correct"].value.mean() for n in range(1, 10)], abs=1e-12
            )
    assert summarise(rows_, boxes)["best@9"] == pytest.approx(expected["best"][8])  # type: ignore[index]


def test_nothing_to_break_down() -> None:
    """Unreadable boxes cover nothing, and a task without figures or categories has none."""
    task: Task = Grounding(rows={"test": grounding_rows()[:1]})
    rows, problems = judged(task, [[("no", 0.5), ("neither", None)]])
    figures = breakdown(rows, task, problems)["metrics"]
    for rule in ("pass@1", "majority", "best"):
        assert figures["box_giou"]["curves"][rule] == [0, 0] and figures["box_ciou"]["curves"][rule] == [0, 0]
    task = Math(rows={"test": [{"question": "?", "answer": "1"}]})
    rows, problems = judged(task, [[("1", 0.5)]])
    assert breakdown(rows, task, problems) == {}


def test_a_figure_may_need_another_one_to_be_large_enough() -> None:
    """AndroidLab gives no step ratio where next to nothing succeeds."""
    rare = Metric("steps", "ratio", needs=("done", 0.25))

    class Agents(DigitsSum):
        metrics = (rare,)

    def figure(done: list[float]) -> object:
        rows = [
            sample(f"p{n}", 0, True, None, rewards={"done": d, "format": 1.0} | ({"ratio": 0.5} if d else {}))
            for n, d in enumerate(done)
        ]
        task = Agents()
        problems = {row.problem: task.problem("test", 0, n) for n, row in enumerate(rows)}
        return breakdown(rows, task, problems).get("metrics", {}).get("steps")

    found = figure([1.0, 0.0, 0.0, 0.0])
    assert found["curves"]["pass@1"] == [0.5]  # type: ignore[index]
    assert figure([1.0, 0.0, 0.0, 0.0, 0.0]) is None


def test_paired_figures_of_single_answers_by_hand() -> None:
    """Means over the answers that have a part, ratios of sums, shares of all; no conditional ones."""
    metrics = (
        Metric("mean", "part"), Metric("ratio", "part", "whole"), Metric("of-all", "part", EVERY),
        Metric("given", "part", needs=("part", 0.5)), Metric("unknown", "none"),
    )  # fmt: skip

    def two(*parts: float | None) -> list[StoredSample]:
        return [
            sample("p", k, True, None, rewards={"whole": 2.0} | ({} if part is None else {"part": part}))
            for k, part in enumerate(parts)
        ]

    found = paired_difference(two(1.0, None), two(1.0, 3.0), metrics=metrics)
    changes = {name: one["difference"] for name, one in found.items() if name.startswith("metrics.")}
    # From 1 to 2, from 1/4 to 4/4, from 1/2 to 4/2.
    assert changes == {"metrics.mean": 1.0, "metrics.ratio": 0.75, "metrics.of-all": 1.5}
