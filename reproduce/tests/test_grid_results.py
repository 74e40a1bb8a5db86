"""A study's figures, by hand: pooling over seeds, paired differences, what cannot be measured, tables."""

from __future__ import annotations

from typing import Any

import pytest

from reproduce.grid_results import columns_of, measure_samples, task_results, task_table
from reproduce.statistics import difference, pooled
from reproduce.tables import difference_table
from samples import sample
from selfverify.evaluation.metrics import MIXED_BOTH
from selfverify.evaluation.samples import CORRECT_1, StoredSample
from selfverify.experiments.recipe import load_recipe


def answers(*rows: tuple[list[int], list[float]]) -> list[StoredSample]:
    return [
        sample(f"p{row}", number, bool(right), score)
        for row, (correct, scores) in enumerate(rows)
        for number, (right, score) in enumerate(zip(correct, scores, strict=True))
    ]


def differences(task: dict[str, Any], key: str = "difference") -> tuple[str, int]:
    rows = {(name,): row[key] for name, row in task["variants"].items() if row.get(key)}
    return difference_table(["variant"], rows, columns_of(task))


ORDER = ["p0", "p1"]
FIRST = answers(([1, 0], [0.9, 0.1]), ([1, 0], [0.2, 0.8]))
"""pass@1 .5, best@2 .5, within-problem AUC (1 + 0)/2, AUC 3 of the 4 pairs."""
SECOND = answers(([1, 1], [0.9, 1.0]), ([1, 0], [0.8, 0.2]))
"""pass@1 .75, best@2 1, within-problem AUC 1 (one mixed problem), AUC 3 of 3, one score of 4 is 1."""


def test_pooling_over_seeds_by_hand() -> None:
    by_seed = {
        0: measure_samples(FIRST, ORDER),
        7: measure_samples(SECOND, ORDER),
    }
    found = pooled(by_seed)
    assert found["pass@1"]["mean"] == pytest.approx(0.625)
    assert found["pass@1"]["per_seed"] == {"0": 0.5, "7": 0.75}
    assert found["pass@1"]["seed_std"] == pytest.approx(0.25 / 2**0.5)
    low, high = found["pass@1"]["interval"]
    assert 0 < low < 0.05 and 0.95 < high < 1, "two seeds and two problems say next to nothing"
    assert found["best@2"]["mean"] == pytest.approx(0.75)
    assert found["within_problem_auc"]["mean"] == pytest.approx(0.75)
    assert found["auc"]["mean"] == pytest.approx((0.75 + 1) / 2)
    assert found["score_is_1"]["per_seed"] == {"0": 0.0, "7": 0.25}
    gain = difference({7: by_seed[7]}, {7: by_seed[0]})
    assert gain["best@2"]["difference"] == pytest.approx(0.5)
    # Nothing in p0, everything in p1: a standard error of 1/2, times 12.7 at one degree of freedom.
    low, high = gain["best@2"]["interval"]
    assert (low + high) / 2 == pytest.approx(0.5) and (high - low) / 2 == pytest.approx(12.706 / 2, rel=1e-4)
    assert gain["best@2"]["p"] == pytest.approx(0.5)
    # Of the first p0 and p1 are mixed, of the second p1 alone.
    assert gain[MIXED_BOTH] == {"difference": pytest.approx(1.0), "interval": None, "p": None}


def test_what_cannot_be_measured_is_none_and_seeds_without_it_are_left_out() -> None:
    right = answers(([1, 1], [0.9, 0.1]), ([1, 1], [0.2, 0.8]))
    silent = [sample(s.problem, s.sample, s.correct, None) for s in FIRST]
    by_seed = {k: measure_samples(s, ORDER) for k, s in enumerate((right, FIRST, silent))}
    found = pooled(by_seed)
    assert found["auc"]["per_seed"] == {"0": None, "1": 0.75, "2": None}
    assert found["auc"]["mean"] == 0.75
    assert found["best@2"]["per_seed"] == {"0": 1.0, "1": 0.5, "2": None}
    assert pooled({0: by_seed[2]})["score_mean"]["mean"] is None
    assert "auc" not in difference({0: by_seed[0]}, {0: by_seed[1]})


def test_boxes_have_a_mean_iou_and_that_of_the_selected_answer() -> None:
    recipe = load_recipe("adpo-digits", ["task.name=digits-locate", "evaluation.problems=2"])
    ids = [f"digits-locate/test/0/{index}" for index in range(2)]
    quality = {ids[0]: [0.6, 0.2], ids[1]: [0.9, 0.4]}
    score = {ids[0]: [0.1, 0.8], ids[1]: [0.5, 0.5]}
    samples = [
        sample(p, k, quality[p][k] > 0.5, score[p][k], answer=[1, 2, 9, 9], key=None,
               rewards={"answer": quality[p][k], "format": 1.0})
        for p in ids for k in (0, 1)
    ]  # fmt: skip
    found = task_results(samples, {"grpo": {0: samples}}, {"grpo": recipe}, None)
    assert found["kind"] == "continuous" and "difference" not in found["variants"]["grpo"]
    metrics = found["variants"]["grpo"]["metrics"]
    assert metrics["mean_iou"]["mean"] == pytest.approx((0.6 + 0.2 + 0.9 + 0.4) / 4)
    assert metrics["best_iou@2"]["mean"] == pytest.approx((0.2 + (0.9 + 0.4) / 2) / 2)
    assert metrics["best@2"]["mean"] == pytest.approx((0 + 0.5) / 2)


def test_tables_show_the_best_in_bold_and_differences_that_are_sure() -> None:
    recipe = load_recipe("adpo-digits", ["evaluation.problems=2"])
    samples = {"adpo": {0: FIRST}, "other": {0: SECOND}}
    found = task_results(FIRST, samples, {"adpo": recipe, "other": recipe}, "adpo")
    head, _, before, adpo, other = (line.split(" | ") for line in task_table(found).splitlines())
    place = head.index("pass@1 (%)")
    assert (before[place], adpo[place]) == ("50.0",) * 2, "nothing varies"
    assert other[place].startswith("**75.0 [")
    assert [row[0] for row in (before, adpo, other)] == ["| before", "| adpo", "| other"]
    best = head.index("oracle@2 (%)")
    assert all(row[best].startswith("**100.0") for row in (before, adpo, other)), "equal ones share the bold"
    table, tested = differences(found)
    head, _, other = (line.split(" | ") for line in table.splitlines())
    assert other[head.index("pass@1 (%)")].startswith("+25.0 [−")
    assert tested == sum(" [" in cell for cell in other)
    # One of the tested comparisons is sure enough for all of them, and one for itself alone.
    own = found["variants"]["other"]["difference"]
    own["auc"] |= {"interval": [0.1, 0.4], "p": 0.01 / tested}
    own["pass@1"] |= {"p": 0.04}
    other = differences(found)[0].splitlines()[2].split(" | ")
    assert other[head.index("AUC")] == "**+0.250 [+0.100, +0.400]**"
    assert not other[head.index("pass@1 (%)")].startswith("**")
    assert [line[:8] for line in differences(found, "gain")[0].splitlines()[2:]] == [
        "| adpo |",
        "| other ",
    ]


def test_two_turns_have_a_table_of_their_own() -> None:
    """By hand: 2 of 4 first answers are right; one is spoiled, and with seed 1 one is corrected, too."""

    def turns(*kinds: tuple[int, int]) -> list[StoredSample]:
        return [
            sample(f"p{n // 2}", n % 2, bool(j), 0.5, rewards={"answer": j, "format": 1.0, CORRECT_1: i})
            for n, (i, j) in enumerate(kinds)
        ]

    recipe = load_recipe("adpo-digits", ["evaluation.problems=2"])
    start = turns((1, 1), (0, 0), (1, 1), (0, 0))
    other = {0: turns((1, 0), (0, 0), (1, 1), (0, 0)), 1: turns((1, 0), (0, 1), (1, 1), (0, 0))}
    recipes = {"ours": recipe, "other": recipe}
    found = task_results(start, {"ours": {0: start, 1: start}, "other": other}, recipes, "ours")
    figures = found["variants"]["other"]["metrics"]
    assert figures["turns.acc@t2"]["mean"] == pytest.approx((0.25 + 0.5) / 2)
    assert figures["turns.1->0"]["mean"] == 0.25 and figures["turns.0->1"]["mean"] == 0.125
    assert figures["turns.delta"]["per_seed"] == {"0": -0.25, "1": 0.0}
    assert found["variants"]["other"]["difference"]["turns.delta"]["difference"] == pytest.approx(-0.125)
    head, _, before, _, row = (line.split(" | ") for line in task_table(found).splitlines())
    assert [name.removesuffix(" (%)") for name in head[2:8]] == [
        "acc@t1", "acc@t2", "Δ", "M₀→₁", "M₁→₀", "1→1",
    ]  # fmt: skip
    # p0 lost a right answer with one seed of two; p1 changed nothing.
    assert row[4].startswith("−12.5 [−") and row[4].endswith("] ± 17.7") and row[6].endswith("] ± 0.0")
    assert before[4] == "**+0.0**"
