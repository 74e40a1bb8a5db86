"""Reports about two turns, and the gallery: what was corrected and spoiled, and where places are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from samples import sample, write_samples
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.evaluation.breakdown import columns_of, turns_by_category
from selfverify.evaluation.evaluate import evaluate, write_gallery
from selfverify.evaluation.metrics import SampleTable, summarise
from selfverify.evaluation.samples import CORRECT_1, StoredSample
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.reports.charts import PALETTE, draw_bubbles
from selfverify.reports.film import PageImages
from selfverify.reports.gallery import gallery, places
from selfverify.reports.report import write_report
from selfverify.reports.run_data import RunData
from selfverify.tasks.base import Task
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.mobile import Mobile

KINDS = {
    "corrects": [(0, 1), (0, 1), (1, 1), (1, 0)],
    "spoils": [(1, 0), (1, 1), (0, 0), (1, 0)],
    "even": [(1, 0), (0, 1), (1, 1), (0, 0)],
    "copies": [(1, 1), (0, 0), (1, 1), (1, 1)],
}
CATEGORIES = {
    "corrects": {"subject": ["angles"]},
    "spoils": {"subject": ["angles", "areas"]},
    "even": {"subject": ["areas"]},
    "copies": {},
}


def answers(kinds: dict[str, list[tuple[int, int]]] = KINDS) -> list[StoredSample]:
    return [
        sample(p, n, bool(j), 0.5, rewards={"answer": float(j), "format": 1.0, CORRECT_1: float(i)})
        for p, row in kinds.items()
        for n, (i, j) in enumerate(row)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of three steps, measured on the four problems above; before it copied every answer."""
    copied = {p: [(i, i) for i, _ in row] for p, row in KINDS.items()}
    summaries = {}
    for stage, found in (("before", answers(copied)), ("after", answers())):
        write_samples(tmp_path / f"samples-{stage}.jsonl", {}, found)
        summaries[stage] = summarise(found) | {"turns_by_category": by_category(found)}
    (tmp_path / "metrics.json").write_text(json.dumps(summaries | {"settings": {"seed": 0}}))
    steps = [{"step": k, "turns/acc@t1": 0.5, "turns/acc@t2": 0.1 * k} for k in (1, 2, 3)]
    steps[1] |= {"eval/turns/acc@t1": 0.4, "eval/turns/acc@t2": 0.45}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
    (tmp_path / "gallery").mkdir()
    problems = [{"id": p, "question": f"What of {p}?", "target": "1", "image": None} for p in KINDS]
    (tmp_path / "gallery" / "problems.json").write_text(json.dumps(problems))
    return tmp_path


def by_category(
    samples: list[StoredSample], categories: dict[str, dict[str, list[str]]] = CATEGORIES
) -> dict[str, Any]:
    table = SampleTable(samples)
    return turns_by_category(table, columns_of([categories.get(p, {}) for p in table.problems]))


def test_categories_by_hand() -> None:
    found = by_category(answers())["subject"]
    assert list(found) == ["angles", "areas"]
    angles = found["angles"]
    assert angles["problems"] == 2 and angles["acc@t1"] == 5 / 8 and angles["acc@t2"] == 4 / 8
    assert (angles["0->1"], angles["1->0"], angles["delta"]) == (2 / 8, 3 / 8, -1 / 8)
    assert (angles["corrected"], angles["spoiled"]) == (2 / 3, 3 / 5)
    one_turn = [sample("corrects", 0, True, 0.5)]
    assert by_category(one_turn) == {} == by_category(answers(), {})


def test_an_evaluation_has_them(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the scores behind second answers, where they are well formed."""
    task = make_task("digits-pick")
    make = task.problem

    def problem(split: str, seed: int, index: int) -> Problem:
        made = make(split, seed, index)  # type: ignore[arg-type]
        made.meta["categories"] = {"place": ["even" if index % 2 == 0 else "odd"]}
        return made

    monkeypatch.setattr(task, "problem", problem)
    config = EvaluationConfig(problems=3, samples=2, second_turn="Check the answer.")
    found = evaluate(policy, task, config, max_new_tokens=6)["turns_by_category"]
    assert {value: row["problems"] for value, row in found["place"].items()} == {"even": 2, "odd": 1}


def test_the_page_tells_of_both_turns(folder: Path) -> None:
    """Its gallery sorts by what changed."""
    page = write_report(folder, folder / "report.html").read_text("utf-8")
    for text in ("62.5\u00a0%", "56.2\u00a0%", "\u22126.2 points", "Both turns over training", "angles"):
        assert text in page
    assert page.count(">corrected</span>") == 3 and page.count(">spoiled</span>") == 4
    cards = gallery(RunData(folder), PageImages())
    assert [(card["id"], card["kind"]) for card in cards] == [
        ("corrects", "corrected"), ("spoils", "spoiled"), ("even", "even"), ("copies", "unchanged"),
    ]  # fmt: skip
    changes = [row["change"] for row in cards[0]["rows"]]
    assert sorted(changes, key=str) == [None, "corrected", "corrected", "spoiled"]


def test_curves_are_of_validation_problems_where_they_were_measured_often(folder: Path) -> None:
    run = RunData(folder)
    steps, values = run.turn_accuracy("2")  # one evaluation: the three steps say more
    assert steps.tolist() == [1, 2, 3] and np.allclose(values, [0.1, 0.2, 0.3])
    one_turn = [{k: v for k, v in row.items() if not k.startswith("turns/")} for row in run.steps]
    run.steps = one_turn
    steps, values = run.turn_accuracy("2")
    assert steps.tolist() == [2] and values.tolist() == [0.45]
    run.steps = [{"step": k, "turns/acc@t2": 0.1, "eval/turns/acc@t2": 0.2} for k in range(5)]
    assert run.turn_accuracy("2")[1].tolist() == [0.2] * 5
    run.steps = []
    assert not len(run.turn_accuracy("2")[0])


def test_ticks_say_where_they_are() -> None:
    """Also between whole percents, where few of them are shown."""
    axes = Figure().subplots()
    draw_bubbles(axes, [("ours", PALETTE["best"], 0.16, 0.2)], "Bubbles")
    axes.set_xlim(0.15, 0.17)
    axes.set_ylim(0.13, 0.152)
    for axis in (axes.xaxis, axes.yaxis):
        places = axis.get_ticklocs()
        labels = axis.get_major_formatter().format_ticks(places)
        assert any(abs(100 * place - round(100 * place)) > 0.1 for place in places)
        assert [float(label.removesuffix("%")) for label in labels] == pytest.approx(100 * places)


# --- boxes, clicks and swipes in the gallery ----------------------------------------------------------------


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
