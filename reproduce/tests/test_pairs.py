"""The generator by verifier matrix, and calibrations of stored samples."""

import numpy as np
import pytest

from reproduce.by_size import Place
from reproduce.matrix_figures import Found, as_json, as_markdown, judgings, matrix
from samples import sample
from selfverify.core.errors import DataError
from selfverify.evaluation.breakdown import columns_of
from selfverify.evaluation.calibrate import calibrate, chosen_confidence
from selfverify.evaluation.statistics import auc_statistic
from selfverify.experiments.registry import make_task
from selfverify.selection.rules import best_weights

TASK = make_task("digits-pick")


def generator(seed, problems=30, total=4, judge=0.3):
    """Samples with a judge's scores that are higher for right answers."""
    rng = np.random.default_rng(seed)
    rows = []
    for p in range(problems):
        for k in range(total):
            right = bool(rng.random() < (0.8 if p % 2 else 0.3))
            soft = float(rng.random())
            scores = {"soft": soft, "judge": float(rng.random() + judge * right)}
            key = "right" if right else f"wrong {rng.integers(3)}"
            name = f"{'hard' if p % 2 == 0 else 'easy'}/{p}"
            rows.append(sample(name, k, right, soft, scores=scores, key=key, answer=key))
    return rows


def value(run, category="all", figure="accuracy"):
    one = run.get(Place("", category, figure))
    return one.value if one else None


def test_cells_are_the_metrics():
    first, second = generator(0), generator(1)
    kinds = columns_of([{"kind": [["hard", "easy"][p % 2]], "always": ["same"]} for p in range(30)])
    cells = matrix({"a": first, "b": second[::-1]}, ["soft", "judge"], TASK, categories=kinds)
    # N = 1 once per generator, N = 4 by majority and two verifiers; 8 and 12 were not sampled. 3 categories.
    assert [*cells] == [1, 4] and [*cells[1]] == [("a", "none"), ("b", "none")] and len(cells[4]) == 6
    assert all(len(run) == 3 for rows in cells.values() for run in rows.values())
    correct = np.array([s.correct for s in first], dtype=float).reshape(-1, 4)
    judged = np.array([s.scores["judge"] for s in first]).reshape(-1, 4)
    whole = cells[4]["a", "judge"]
    assert value(whole) == pytest.approx((best_weights(judged) * correct).sum(-1).mean())
    assert value(cells[1]["a", "none"], "kind: hard") == pytest.approx(correct[::2].mean())
    assert whole[Place("", "kind: hard", "accuracy")].used.sum() == 15
    assert value(cells[1]["b", "none"]) == pytest.approx(np.mean([s.correct for s in second]))
    page = as_markdown({0: Found(cells, {})})
    assert page.count("| generator | verifier | acc (%) | easy acc (%) | hard acc (%) |") == 2
    [row] = [line for line in page.splitlines() if line.startswith("| a | judge |")]
    assert f"{100 * value(whole):.1f} [" in row
    told = as_json({0: Found(cells, {})})["cells"]
    assert len(told) == 2 * (1 + 3) * 3 and {cell["n"] for cell in told} == {1, 4}
    low, high = next(cell["interval"] for cell in told if cell["verifier"] == "judge")
    assert low <= value(whole) <= high


def test_judgings_are_pooled_figures():
    """AUC and AP of every pair over all samples; a verifier without scores has none."""
    rows = generator(0)
    judged = judgings({"a": rows}, ["judge", "nobody"])
    known, unknown = judged["a", "judge"], judged["a", "nobody"]
    scores = np.array([s.scores["judge"] for s in rows]).reshape(-1, 4)
    correct = np.array([s.correct for s in rows], dtype=float).reshape(-1, 4)
    assert known["auc"].value == pytest.approx(auc_statistic(scores, correct).on_all())
    assert known["ap"].value > correct.mean()
    assert known["scored"].value == 1.0 and unknown["scored"].value == 0.0
    page = as_markdown({0: Found(matrix({"a": rows}, ["judge"], TASK), judged)})
    assert "| generator | verifier | AUC within problems (%) | AUC (%) | AP (%) |" in page and (
        "| a | nobody | – | – | – | 0.0 |" in page
    )


def test_seeds_are_pooled_and_compared_by_every_strategy() -> None:
    """The judge of seed 1 is better than that of seed 0; a row that nothing differs from says so."""
    found = {}
    for seed, judge in enumerate((0.3, 0.9)):
        rows = {"a": generator(seed, judge=judge)}
        found[seed] = Found(
            matrix(rows, ["soft", "judge"], TASK, sizes=(4,), strategies=("best", "weighted")),
            judgings(rows, ["soft", "judge"]),
        )
    cells = {(c["verifier"], c["n"]): c for c in as_json(found)["cells"]}
    assert [*dict.fromkeys(name for name, _ in cells)] == [
        "majority", "soft", "soft, weighted", "judge", "judge, weighted"
    ]  # fmt: skip
    each = [value(one.cells[4]["a", "judge"]) for one in found.values()]
    assert cells["judge", 4]["mean"] == pytest.approx(np.mean(each)) and each[1] > each[0]
    page = as_markdown(found, ("a", "judge"))
    ahead = page.split("Difference from **a with judge**")[1:]
    assert len(ahead) == 2 and "comparisons of the table" in ahead[0]
    gap = np.mean([value(one.cells[4]["a", "soft"]) for one in found.values()]) - np.mean(each)
    row = next(line for line in ahead[0].splitlines() if "| soft |" in line)
    assert f"{100 * gap:+.1f} [".replace("-", "−") in row


def test_a_tasks_own_figures_take_the_place_of_accuracy():
    """Steps of phones: SR counts every part, a click's grounding only the samples that have it."""
    mobile = make_task("mobile")
    rows = [
        sample(f"p{p}", k, k == 0, k / 4, rewards={"type": 1.0, "arguments": float(k == p), "format": 1.0})
        for p in range(2)
        for k in range(4)
    ]
    for row in rows[:4]:
        row.rewards["grounding"] = float(row.sample == 3)
    cells = matrix({"a": rows}, ["soft"], mobile, sizes=(1, 4))
    none, soft = cells[1]["a", "none"], cells[4]["a", "soft"]
    assert value(none, figure="type_accuracy") == 1.0
    assert value(none, figure="step_success") == 0.25 and value(soft, figure="step_success") == 0.0
    # Only the first problem's samples have it, and the one with the highest score is the one that hits.
    assert value(none, figure="grounding_accuracy") == 0.25
    assert value(soft, figure="grounding_accuracy") == 1.0
    assert value(soft) is None
    assert "Type (%) | Grounding (%) | SR (%) |" in as_markdown({0: Found(cells, {})})


def test_a_crowded_column_is_not_printed() -> None:
    """Its figures are there."""
    crowded = columns_of([{"pair": [str(p // 2)], "kind": [str(p % 2)]} for p in range(60)])
    cells = matrix({"a": generator(0, problems=60)}, [], TASK, sizes=(1,), categories=crowded)
    assert len(cells[1]["a", "none"]) == 1 + 30 + 2
    assert "| acc (%) | 0 acc (%) | 1 acc (%) |" in as_markdown({0: Found(cells, {})})


def test_generators_must_share_their_problems():
    with pytest.raises(DataError, match="generator b answered other problems"):
        matrix({"a": generator(0), "b": generator(0, problems=29)}, ["soft"], TASK)


def test_what_cannot_be_calibrated_and_problems_that_are_split():
    fitted = calibrate(generator(5, problems=200), "judge", "weighted")
    assert (fitted.coverage, fitted.risk) == (None, None)
    assert fitted.calibration.fitted_on["problems"] == 200 and fitted.after["ece"] is not None
    with pytest.raises(DataError, match="no threshold keeps the risk"):
        calibrate(generator(6, judge=0.0), "soft", "best", target_risk=0.0)
    boxes = [sample("p", k, True, 0.5, key=None, answer=[0, 0, 1, 1]) for k in range(2)]
    with pytest.raises(DataError, match="boxes of its own"):
        chosen_confidence(boxes, "soft", "majority")
