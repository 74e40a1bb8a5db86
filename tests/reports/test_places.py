"""The gallery draws boxes, clicks and swipes where they are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from samples import sample, write_samples
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import DataError
from selfverify.evaluation.evaluate import write_gallery
from selfverify.reports.gallery import places
from selfverify.reports.report import write_report
from selfverify.tasks.base import Task
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.mobile import Mobile


def picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(0)
    small = rng.integers(120, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height))


def report(folder: Path, task: Task, answers: list[Any], right: list[bool], scores: list[float]) -> str:
    """A report about one problem with these canonical answers."""
    task.set_coordinate_space(lambda size: (1000, 1000))
    config = EvaluationConfig(problems=1, samples=len(answers))
    write_gallery(task, config, folder / "gallery", 8)
    [entry] = json.loads((folder / "gallery" / "problems.json").read_text())
    rows = [
        sample(
            entry["id"], k, right[k], scores[k], answer=answer,
            key=None if task.kind == "continuous" or answer is None else json.dumps(answer),
        )
        for k, answer in enumerate(answers)
    ]  # fmt: skip
    write_samples(folder / "samples.jsonl", {}, rows)
    return write_report(folder, folder / "report.html").read_text(encoding="utf-8")


def shapes(page: str, kind: str) -> list[str]:
    return re.findall(rf'<{kind} class="([^"]*)"', page)


def test_boxes(tmp_path: Path) -> None:
    row = {"question": "the dog", "images": [picture(400, 200)], "box": [80, 80, 240, 160]}
    row["polygons"] = [[[80, 80], [240, 100], [200, 160]]]
    task = Grounding(rows={"test": [row]})
    answers = [[90, 80, 240, 150], [92, 84, 240, 150], [300, 20, 380, 60], None]
    page = report(tmp_path, task, answers, [True, True, False, False], [0.4, 0.3, 0.9, 0.5])
    page = page.replace(".0", "")
    assert '<svg class="places" viewBox="0 0 400 200"' in page
    assert '<polygon class="truth" points="80,80 240,80 240,160 80,160" />' in page
    assert '<polygon class="truth" points="80,80 240,100 200,160" />' in page
    assert '<polygon class="own" points="300,20 380,20 380,60 300,60" />' in page
    # The truth lies on top, then what the score chose, what the vote chose, the rest.
    assert shapes(page, "polygon") == ["vote", "vote", "own", "truth", "truth"]
    assert "target (dashed)" in page


def test_clicks_and_swipes(tmp_path: Path) -> None:
    screen = {"images": [picture(216, 480)], "screen": (1080, 2400), "goal": "Find shoes"}
    click = {"action": "click", "coordinate": [540, 600]}
    row = {**screen, "action": click, "ui_boxes": [[400, 500, 700, 700]]}
    swipe = {"action": "swipe", "coordinate": [540, 1800], "coordinate2": [540, 600]}
    answers = [click, {"action": "click", "coordinate": [100, 2000]}, swipe, {"action": "wait"}]
    page = report(
        tmp_path, Mobile(rows={"test": [row]}), answers, [True, False, False, False], [0.2, 0.1, 0.9, 0]
    )
    page = page.replace(".0", "")
    assert 'viewBox="0 0 1080 2400"' in page
    assert '<polygon class="truth" points="400,500 700,500 700,700 400,700" />' in page
    assert '<circle class="truth" cx="540" cy="600" r="48" />' in page
    assert '<line class="own" x1="540" y1="1800" x2="540" y2="600" />' in page
    assert shapes(page, "line") == ["own"] and "wait" in page


@pytest.mark.parametrize("frame", [None, [0, 10], [10], "no", [float("nan"), 1]])
def test_no_frame_no_drawing(frame: Any) -> None:
    assert places(frame, [0, 0, 1, 1], [], []) == []


def test_nothing_but_numbers_is_drawn() -> None:
    """What a file claims to be a place cannot put anything into the page."""
    bad = ['"><script>', [1, 2, 3, "<b>"], {"action": "click", "coordinate": ["<b>", 1]}, [1, 2, 3, True], {}]
    answers = [(value, "own") for value in bad]
    assert places([10, 10], bad[0], [[["<b>", 1]] * 3, [[1, 2]]], answers) == []
    assert [mark["kind"] for mark in places([10, 10], [1, 1, 2, 2], [], answers)] == ["truth"]


def test_discrete_answers_have_no_frame(tmp_path: Path) -> None:
    from selfverify.experiments.registry import make_task

    write_gallery(make_task("digits-pick"), EvaluationConfig(problems=2), tmp_path / "a", 8)
    assert all("frame" not in entry for entry in json.loads((tmp_path / "a/problems.json").read_text()))
    write_gallery(make_task("digits-locate"), EvaluationConfig(problems=1), tmp_path / "b", 8)
    assert json.loads((tmp_path / "b/problems.json").read_text())[0]["frame"] == [64, 48]


def test_a_gallery_ends_with_the_file_and_leaves_broken_problems_out(tmp_path: Path) -> None:
    rows = [
        {"question": "a", "images": [picture(40, 40)], "box": [0, 0, 10, 10]},
        {"question": "b", "images": ["missing.png"], "box": [0, 0, 10, 10]},
    ]
    task = Grounding(rows={"test": rows})
    task.set_coordinate_space(lambda size: (1000, 1000))
    skip = EvaluationConfig(problems=None, on_bad="skip")
    write_gallery(task, skip, tmp_path, 8)
    assert len(json.loads((tmp_path / "problems.json").read_text())) == 1
    with pytest.raises(DataError, match=r"missing\.png"):
        write_gallery(task, EvaluationConfig(problems=None), tmp_path, 8)


def test_figures_and_categories_are_tabulated(tmp_path: Path) -> None:
    from known_answers import GROUNDED, grounding_rows, judged
    from selfverify.evaluation.breakdown import breakdown, tabulate
    from selfverify.evaluation.metrics import summarise

    task = Grounding(rows={"test": grounding_rows()})
    rows, problems = judged(task, GROUNDED)
    boxes = {problem.id: problem.target for problem in problems.values()}
    summary = summarise(rows, boxes) | breakdown(rows, task, problems)
    (tmp_path / "metrics.json").write_text(json.dumps({"after": summary, "settings": {}}))
    write_samples(tmp_path / "samples.jsonl", {}, rows)
    page = write_report(tmp_path, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "category: short" in page and "box_ciou" in page and "Best of 2" in page
    table = {(row["part"], row["figure"]): row for row in tabulate(summary)}
    assert table["category: short", "accuracy"]["problems"] == 1
    assert table["all", "box_giou"]["best@2"] == pytest.approx((1 / 3 + 0.5) / 2)
    assert tabulate(summarise(rows, boxes)) == []
    # What has too many values for people stands in metrics.json, and columns of nothing are left out.
    many = {str(n): summary["categories"]["category"]["short"] for n in range(21)}
    crowded = tabulate(summary | {"categories": summary["categories"] | {"place": many}})
    assert crowded == tabulate(summary)
    alone = {"pass@1": [0.5], "majority": [None], "best": [None], "oracle": [0.5]}
    [row] = tabulate({"metrics": {"SR": {"curves": alone}}, "problems": 4, "samples_per_problem": 1})
    assert [*row] == ["part", "problems", "figure", "pass@1", "oracle@1"]


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "LA"])
def test_images_of_any_mode_come_into_the_gallery(mode: str, tmp_path: Path) -> None:
    """Photographs for print are CMYK, which PNG does not know."""
    from selfverify.tasks.math import Math

    image = picture(16, 8).convert("L").convert(mode)
    task = Math(rows={"test": [{"question": "?", "answer": "1", "images": [image]}]})
    write_gallery(task, EvaluationConfig(problems=1), tmp_path, 8)
    assert Image.open(tmp_path / "00000.png").size == (16, 8)
