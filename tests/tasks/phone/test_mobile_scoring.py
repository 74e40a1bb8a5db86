"""Step scores by hand, rule by rule, as each published evaluator has them."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.row_data import SCREEN

from selfverify.tasks import mobile
from selfverify.tasks.mobile import PROFILES, Profile, score_step
from tables import yaml_cases


def click(x: float, y: float, action: str = "click") -> dict[str, Any]:
    return {"action": action, "coordinate": [x, y]}


def typed(text: str, action: str = "type") -> dict[str, Any]:
    return {"action": action, "text": text}


def button(name: str) -> dict[str, Any]:
    return {"action": "system_button", "button": name}


def end(status: str) -> dict[str, Any]:
    return {"action": "terminate", "status": status}


def swipe(direction: str) -> dict[str, Any]:
    x, y = {"up": (500, 100), "down": (500, 900), "left": (100, 500), "right": (900, 500)}[direction]
    return {"action": "swipe", "coordinate": [500, 500], "coordinate2": [x, y]}


WAIT: dict[str, Any] = {"action": "wait"}
AT = click(540, 1200)


def test_profiles_can_be_chosen() -> None:
    assert set(get_args(Profile)) == set(PROFILES)


@yaml_cases
def test_types_and_parameters_are_paid(
    profile: str, target: dict[str, Any], action: dict[str, Any] | None, reward: int
) -> None:
    score = score_step(PROFILES[profile], target, action, SCREEN)
    assert score.reward == reward and score.success == (reward == 2) and score.type == (reward > 0)


@yaml_cases
def test_click_distances(profile: str, across: float, down: float) -> None:
    for x, y in ((across, 0.0), (0.0, down)):
        near = score_step(PROFILES[profile], click(0, 0), click(x * 0.99999, y * 0.99999), SCREEN)
        far = score_step(PROFILES[profile], click(0, 0), click(x * 1.001, y * 1.001), SCREEN)
        assert near.success and near.grounding
        assert not far.success and not far.grounding


@pytest.mark.parametrize(("profile", "counted"), [("os-atlas", True), ("gui-r1", False), ("adpo", False)])
def test_clicks_at_the_threshold(profile: str, counted: bool) -> None:
    """A screen of 1000 x 1000 for the sides, of 600 x 800, whose diagonal is 1000, for the diagonal."""
    screen = (600, 800) if profile == "adpo" else (1000, 1000)
    assert score_step(PROFILES[profile], click(0, 0), click(140, 0), screen).success == counted


@yaml_cases
def test_boxes_of_the_target(profile: str, x: float, counted: bool) -> None:
    """A click far from the target's point, but in its box [950, 0, 1050, 1000], here on 2000 x 1000."""
    boxes = [[0, 0, 1, 1], [950, 0, 1050, 1000]]
    score = score_step(PROFILES[profile], click(1000, 0), click(x, 990), (2000, 1000), boxes)
    assert score.success == counted


@yaml_cases
def test_text_rules(rule: str, text: str, target: str, counted: bool) -> None:
    assert getattr(mobile, rule)(text, target) == counted


@given(st.text("ab", max_size=8), st.text("ab", max_size=8))
def test_edit_distance_is_the_recursion(a: str, b: str) -> None:
    def slow(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        if a[0] == b[0]:
            return slow(a[1:], b[1:])
        return 1 + min(slow(a[1:], b), slow(a, b[1:]), slow(a[1:], b[1:]))

    assert mobile.edit_distance(a[:5], b[:5]) == slow(a[:5], b[:5])


@yaml_cases
def test_which_steps_count_for_grounding(
    profile: str, target: dict[str, Any], action: dict[str, Any] | None, grounding: bool | None
) -> None:
    assert score_step(PROFILES[profile], target, action, SCREEN).grounding is grounding


def test_which_steps_count_at_all() -> None:
    assert "click" in PROFILES["ui-r1"].counted and "wait" not in PROFILES["ui-r1"].counted
    assert "open" not in PROFILES["agentcpm-odyssey"].counted
    assert {"click", "wait", "open"} <= PROFILES["adpo"].counted
