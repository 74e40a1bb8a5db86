"""A report about two turns: figures, charts, categories and a gallery of what was corrected and spoiled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from samples import sample, write_samples
from selfverify.core.config import EvaluationConfig
from selfverify.core.problem import Problem
from selfverify.evaluation.breakdown import columns_of, turns_by_category
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.metrics import SampleTable, summarise
from selfverify.evaluation.samples import CORRECT_1, StoredSample
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.reports.film import PageImages
from selfverify.reports.gallery import gallery
from selfverify.reports.plots import PALETTE, Bubble, draw_bubbles
from selfverify.reports.report import write_report
from selfverify.reports.run_data import load_run

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
    table = SampleTable.from_samples(samples)
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
    cards = gallery(load_run(folder), PageImages())
    assert [(card["id"], card["kind"]) for card in cards] == [
        ("corrects", "corrected"), ("spoils", "spoiled"), ("even", "even"), ("copies", "unchanged"),
    ]  # fmt: skip
    changes = [row["change"] for row in cards[0]["rows"]]
    assert sorted(changes, key=str) == [None, "corrected", "corrected", "spoiled"]


def test_curves_are_of_validation_problems_where_they_were_measured_often(folder: Path) -> None:
    run = load_run(folder)
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
    draw_bubbles(axes, [Bubble("ours", PALETTE["best"], 0.16, 0.2)], "Bubbles")
    axes.set_xlim(0.15, 0.17)
    axes.set_ylim(0.13, 0.152)
    for axis in (axes.xaxis, axes.yaxis):
        places = axis.get_ticklocs()
        labels = axis.get_major_formatter().format_ticks(places)
        assert any(abs(100 * place - round(100 * place)) > 0.1 for place in places)
        assert [float(label.removesuffix("%")) for label in labels] == pytest.approx(100 * places)
