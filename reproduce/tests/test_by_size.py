"""Figures by N are those of an evaluation's summary, also where votes make boxes of their own."""

from __future__ import annotations

import numpy as np
import pytest

from reproduce.by_size import ALL, Place, figures_by_size
from samples import sample
from selfverify.evaluation.metrics import SampleTable, accuracy
from selfverify.experiments.registry import make_task


def test_boxes_of_votes() -> None:
    """A majority answers with a box that nobody wrote, which is compared with the true one."""
    task = make_task("digits-locate")
    problems = {p.id: p for p in (task.problem("test", 0, i) for i in range(6))}
    rng = np.random.default_rng(0)
    rows = []
    for name, problem in problems.items():
        for k in range(5):
            box = [float(v) for v in np.asarray(problem.target) + rng.normal(0, 3, 4)]
            rows.append(sample(name, k, bool(rng.random() < 0.5), float(rng.random()), answer=box, key=None))
    found = figures_by_size(rows, task, problems, ["majority", "best"], sizes=(1, 3, 5, 9))
    assert {n for n, _ in found} == {1, 3, 5}
    targets = {name: problem.target for name, problem in problems.items()}
    table = SampleTable(rows, target_boxes=targets)
    for chooser in ("majority", "best"):
        for n in (3, 5):
            expected = accuracy(table, chooser, n)
            run, place = found[n, chooser], Place("", ALL, "accuracy")
            assert run[place].value == pytest.approx(expected.mean())


def test_what_cannot_be_chosen_is_left_out() -> None:
    """Without scores there is no best."""
    task = make_task("digits-pick")
    rows = [sample(f"p{p}", k, (p + k) % 3 == 0, None) for p in range(9) for k in range(4)]
    found = figures_by_size(rows, task, {}, ["majority", "best"], sizes=(1, 4))
    assert [*found] == [(1, "first"), (4, "majority")]
