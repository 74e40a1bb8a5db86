"""Simple rules that end looking, on conversations worked by hand, and one tiny study through the command."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reproduce.looking_rivals import bag_of_words, rivals, told_apart, told_by_places
from selfverify.evaluation.visual_metrics import CappedConversation, CappedProblem, CappedStep


def talk(plans: str, right: Sequence[int], confidence: Sequence[float | None]) -> CappedConversation:
    """Looks with the digits of ``plans``; from the look at a 0 on nothing more is needed."""
    steps = [
        CappedStep(
            1.0 - h, 0.0, float(one), None, 5, 4, "crop", "", 1.0, f"<think>{plan}</think>crop", -h, sure
        )
        for h, (plan, one, sure) in enumerate(zip(plans, right, confidence, strict=True))
    ]
    return CappedConversation(steps, 0.0, float(right[-1]), plans.index("0") + 1, False)


def silent(cells: str, ends: int, delta_r: Sequence[float]) -> CappedConversation:
    """Looks at cells without a word; the answer is right from look ``ends`` on."""
    steps = [
        CappedStep(
            ratio, 0.0, float(h >= ends), None, 5, 4, "crop", "", None, f"crop 1 {cell} 2 4 4", -h, -1.0
        )
        for h, (cell, ratio) in enumerate(zip(cells, delta_r, strict=True), 1)
    ]
    return CappedConversation(steps, 0.0, 1.0, ends, False)


def journal(*talks: CappedConversation) -> dict[int, CappedProblem]:
    return {n: CappedProblem(n, f"p/{n}", "0", 4, [one]) for n, one in enumerate(talks)}


KNOWN = journal(
    talk("40x", [0, 1, 1], [-2.0, -0.1, None]),
    talk("0xx", [1, 1, 1], [-0.2, -0.1, None]),
    talk("730", [0, 0, 1], [-2.0, -3.0, None]),
    talk("40x", [0, 1, 1], [-2.0, -0.3, None]),
)


def test_words_tell_when_an_answer_is_right() -> None:
    chance = bag_of_words(KNOWN, KNOWN)
    assert chance.shape == (4, 3) and np.all(chance < 0)
    assert chance[0, 1] == chance[1, 0] < chance[2, 0]  # "0" is behind right answers only, "7" is not


def test_rules_end_looking_where_they_should() -> None:
    """The plan names the 0 after 2 and 1 looks, and never; confidence is as good as that here."""
    rows = journal(
        talk("40x", [0, 1, 1], [-2.0, -0.1, None]),
        talk("0xx", [1, 1, 0], [-0.1, -0.1, None]),
        talk("550", [0, 0, 1], [-2.0, -2.0, None]),
    )
    made = rivals(KNOWN, rows, "within", 0.0)
    assert made["the plan says so"]["steps"].tolist() == [2, 1, 3]
    assert made["the plan says so"]["accuracy"].tolist() == [1, 1, 1]
    # Taken back, the look that ends looking leaves the answer before it.
    assert made["the plan says so, skip"]["steps"].tolist() == [1, 0, 2]
    assert made["the plan says so, skip"]["accuracy"].tolist() == [0, 0, 0]
    assert made["the plan says so, random"]["steps"].tolist() == [2, 2, 2]
    assert made["answer confidence"]["steps"].tolist() == [2, 1, 3]
    assert made["signed, ε = 0.0001"]["steps"].tolist() == [2, 2, 2]  # the first Δr is 1, the second 0
    assert made["log V_φ0"]["steps"].tolist() == [3, 3, 3]  # -1 would stop where p/2 is wrong
    looks = rivals(KNOWN, rows, "steps", 2.0)  # it falls by 1 a step in every row
    assert looks["log V_φ0"]["steps"].tolist() == [2, 2, 2]


def test_trees_read_where_has_been_looked() -> None:
    """Looks in vain are at cell 9 only, or say nothing: then Δr alone tells them."""
    plain = [silent("12345", 5, [0, 0, 0, 0, 0]), silent("12933", 2, [0, 0, -1, 0, 0])] * 40
    rows = journal(*plain)
    chance = told_by_places(rows, rows)
    assert chance.shape == (80, 5)
    assert chance[1, 2] < -0.9 and chance[0, 2] > -0.1
    assert told_apart(rows) == {"places": 1.0, "delta_r": 1.0, "logprob": 0.5}
    alike = [silent("12345", 5, [0, 0, 0, 0, 0]), silent("12345", 2, [0, 0, -1, 0, 0])] * 40
    found = told_apart(journal(*alike))
    # Step 3 is needed as often as it is in vain; steps 2, 4 and 5 are needed.
    assert found["delta_r"] == 1.0 and found["places"] < 0.95
    assert not {"bag of words", "the plan says so"} & {*rivals(rows, rows, "within", 0.0)}
    assert told_apart(journal(*plain[:2])).keys() == {"delta_r", "logprob"}
