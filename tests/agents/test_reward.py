"""Eq. 3 and what is measured of agents, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.agents.lamps import KITCHEN, OVEN, Lamps, Waiting, hold, submit
from tests.agents.test_agent_episode import spoken

from selfverify.agents.episode import AgentConfig
from selfverify.agents.evidence import Exhibit
from selfverify.agents.goals import Goal
from selfverify.agents.judges.case import Judgement
from selfverify.agents.reward import (
    AgentRecord,
    RewardConfig,
    composite,
    measure,
    reasonable_share,
    same_pixels,
    summarise_parts,
)
from selfverify.core.episode import Call, EpisodeResult, StepResult
from tables import yaml_cases


@yaml_cases
def test_proper_submissions(
    valid: bool, success: bool, evidence: int, config: dict[str, Any], parts: list[float], total: float
) -> None:
    found = composite(valid, success, evidence, RewardConfig(**config))
    assert [found.format, found.validity, found.complete, found.concise] == pytest.approx(parts)
    assert found.total == pytest.approx(total)


def test_a_format_error_is_the_penalty_and_nothing_else() -> None:
    for penalty in (-1.0, -0.5):
        settings = AgentConfig(reward=RewardConfig(format_error=penalty))
        found = parts(KITCHEN, submit(1, 1), settings=settings)
        terms = [found[name] for name in ("format_error", "validity", "complete", "concise")]
        assert terms == [penalty, 0, 0, 0]
        assert found["answer"] == penalty
    with pytest.raises(ValueError, match="not relevant"):
        composite(False, True, 1, RewardConfig())


def parts(*turns: str, **settings: Any) -> dict[str, float]:
    ending: EpisodeResult = hold(*turns, **settings)[2]
    return ending.rewards


MAKES = {"waiting": Waiting, "pixels": lambda: Lamps(pixels=True)}


@yaml_cases
def test_what_is_measured(
    turns: list[Any], settings: dict[str, Any], measured: dict[str, float | None]
) -> None:
    """What is null is not."""
    kinds: dict[str, Any] = {"make": MAKES.get, "goal": Goal.read}
    found = parts(*map(spoken, turns), **{k: kinds.get(k, int)(v) for k, v in settings.items()})
    assert {name: found.get(name) for name in measured} == pytest.approx(measured)


def test_judges_against_the_truth() -> None:
    # Undone after the evidence: rules that are shown too little are wrong.
    wrong = parts(KITCHEN, OVEN, OVEN, submit(2))
    assert (wrong["judged_success"], wrong["truth"]) == (1.0, 0.0)
    rows = [
        wrong,
        parts(KITCHEN, OVEN, submit(2)),
        parts(KITCHEN, OVEN, submit(2)),
        parts(KITCHEN, OVEN, submit(1)),  # done, not proven
        parts(KITCHEN, submit(1)),
        parts(KITCHEN, submit()),  # a format error: nobody was asked
    ]
    found = summarise_parts(rows)
    assert found["SR"] == pytest.approx(3 / 6)
    assert found["judged-SR"] == pytest.approx(3 / 5)
    assert found["judge-precision"] == pytest.approx(2 / 3)
    assert found["judge-recall"] == pytest.approx(2 / 3)
    assert found["judge-false-positives"] == pytest.approx(1 / 2)
    assert found["evidence"] == 1.0 and found["completeness"] == pytest.approx(2 / 3)
    assert found["conciseness"] == 1.0
    assert "altered-quotations" not in found and "ROR" not in found


def test_rrr_is_not_given_below_five_per_cent() -> None:
    rows: list[dict[str, float]] = [{"truth": 1.0, "rrr": 0.5}, *[{"truth": 0.0}] * 19]
    assert summarise_parts(rows)["RRR"] == 0.5
    assert "RRR" not in summarise_parts([*rows, {"truth": 0.0}])
    assert summarise_parts([*rows, {"truth": 0.0}])["SR"] == pytest.approx(1 / 21)


def test_rrr_of_what_judges_found_where_the_truth_is_not_known() -> None:
    shown = [Exhibit(Call("tap") if n else None, StepResult(n, str(n))) for n in range(5)]
    for success, known in ((True, {"judged_rrr": 0.75}), (False, {})):
        record = AgentRecord(history=shown, judgement=Judgement(True, success))
        assert {k: v for k, v in measure(record, steps=3).items() if "rrr" in k} == known
    rows = [{"judged_success": 1.0, "judged_rrr": 0.75}, {"judged_success": 0.0}]
    assert summarise_parts(rows)["judged-RRR"] == 0.75


@yaml_cases
def test_reasonable_operations_by_hand(same: list[bool], share: float) -> None:
    assert reasonable_share(same) == share


def test_pixels_that_are_white_in_both_do_not_count() -> None:
    white = np.full((100, 100, 3), 255, np.uint8)
    one, other = white.copy(), white.copy()
    assert same_pixels(one, other)
    one[0, 0] = 0
    assert not same_pixels(one, other)  # of three values that count none agrees
    one[:50], other[:50] = 0, 0
    other[0, 0] = 9
    assert same_pixels(one, other)  # 14,997 of 15,000
    other[0, :6] = 9
    assert not same_pixels(one, other)  # 14,982 of 15,000
    assert not same_pixels(white, white[:50])


def test_nothing_known_is_nothing_measured() -> None:
    assert measure(AgentRecord()) == {} and summarise_parts([]) == {} and summarise_parts([{}]) == {}
