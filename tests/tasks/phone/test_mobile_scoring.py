"""Step scores by hand, rule by rule, as each published evaluator has them."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tasks.row_data import SCREEN

from selfverify.tasks import mobile
from selfverify.tasks.mobile import PROFILES, Profile, score_step


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


@pytest.mark.parametrize(
    ("profile", "target", "action", "reward"),
    [
        # 0.14 of the diagonal of 1080 x 2400 are 368.45 pixels.
        ("adpo", AT, click(540, 1200), 2),
        ("adpo", AT, click(540, 1568), 2),
        ("adpo", AT, click(540, 1569), 1),
        ("adpo", AT, click(540 + 260, 1200 + 261), 2),  # 368.4 away
        ("adpo", AT, click(540 + 261, 1200 + 261), 1),  # 369.1 away
        ("adpo", AT, click(540, 1200, "long_press"), 0),
        ("adpo", click(540, 1200, "long_press"), click(540, 1300, "long_press"), 2),
        ("adpo", AT, None, 0),
        ("adpo", swipe("up"), {"action": "swipe", "coordinate": [500, 1800], "coordinate2": [540, 600]}, 2),
        ("adpo", swipe("up"), {"action": "swipe", "coordinate": [500, 600], "coordinate2": [500, 1800]}, 1),
        ("adpo", swipe("up"), {"action": "swipe", "coordinate": [500, 600], "coordinate2": [500, 600]}, 1),
        ("adpo", swipe("up"), AT, 0),
        ("adpo", typed("new delhi"), typed("New Delhi"), 2),
        ("adpo", typed("new delhi"), typed("delhi"), 2),  # F1 2/3
        ("adpo", typed("new delhi"), typed("new york pizza"), 1),  # F1 2/5
        ("adpo", typed("restaurant"), typed("a"), 1),
        ("adpo", typed("a b"), typed("a a"), 1),  # one of two words shared: F1 1/2
        ("adpo", typed("delhi", "open"), typed("delhi"), 0),
        ("adpo", typed("Clock", "open"), typed("clock", "open"), 2),
        ("adpo", typed("Clock", "open"), typed("Calendar", "open"), 1),
        ("adpo", typed("volume_up", "key"), typed("Volume_Up", "key"), 2),
        ("adpo", typed("volume_up", "key"), typed("volume_down", "key"), 1),
        ("adpo", button("Back"), button("Back"), 2),
        ("adpo", button("Back"), button("Home"), 1),
        ("adpo", WAIT, {"action": "wait", "time": 9}, 2),
        ("adpo", WAIT, end("success"), 0),
        ("adpo", end("success"), end("success"), 2),
        ("adpo", end("success"), end("failure"), 1),
        ("adpo", button("Home"), button("Back"), 1),
        ("os-atlas", button("Home"), button("Back"), 0),
        ("gui-odyssey", end("success"), end("failure"), 0),
        ("agentcpm-odyssey", end("success"), end("failure"), 2),
        ("agentcpm-odyssey", end("success"), WAIT, 2),
        ("agentcpm-odyssey", button("Menu"), button("Home"), 2),
        ("agentcpm-odyssey", button("Menu"), button("Back"), 1),
        ("agentcpm-odyssey", click(5, 5, "long_press"), click(5, 5), 2),
        ("gui-r1", click(5, 5, "long_press"), click(5, 5), 0),
        ("os-atlas", typed("new york", "open"), typed("new delhi", "open"), 2),
    ],
)
def test_types_and_parameters_are_paid(
    profile: str, target: dict[str, Any], action: dict[str, Any] | None, reward: int
) -> None:
    score = score_step(PROFILES[profile], target, action, SCREEN)
    assert score.reward == reward and score.success == (reward == 2) and score.type == (reward > 0)


@pytest.mark.parametrize(
    ("profile", "across", "down"),
    [
        # The largest distance that still counts, in pixels of a screen of 1080 x 2400.
        ("adpo", 368.44, 368.44),
        ("gui-odyssey", 151.2, 336),
        ("os-atlas", 151.2, 336),
        ("os-atlas-odyssey", 151.2, 336),
        ("agentcpm-androidcontrol", 43.2, 96),
        ("agentcpm-odyssey", 151.2, 336),
        ("ui-r1", 151.19, 151.19),
        ("gui-r1", 151.19, 335.99),
    ],
)
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


@pytest.mark.parametrize(
    ("profile", "x", "counted"),
    [
        # The element is as wide as the screen and 100 high; the click 110 % or 90 % of half its height down.
        ("gui-odyssey", 1055, False),
        ("gui-odyssey", 1045, True),
        ("agentcpm-odyssey", 1055, True),
        ("agentcpm-odyssey", 1065, False),
        ("agentcpm-androidcontrol", 1055, True),
        ("adpo", 1045, False),
        ("os-atlas", 1045, False),
    ],
)
def test_boxes_of_the_target(profile: str, x: float, counted: bool) -> None:
    """A click far from the target's point, but in its box [950, 0, 1050, 1000], here on 2000 x 1000."""
    boxes = [[0, 0, 1, 1], [950, 0, 1050, 1000]]
    score = score_step(PROFILES[profile], click(1000, 0), click(x, 990), (2000, 1000), boxes)
    assert score.success == counted


@pytest.mark.parametrize(
    ("rule", "text", "target", "counted"),
    [
        ("word_f1", "Hello World", "hello  world", True),
        ("word_f1", "hello", "hello world again", False),
        ("substring", "Delhi", "new delhi", True),
        ("substring", "new delhi", "DELHI", True),
        ("substring", "delhy", "new delhi", False),
        ("odyssey", "Delhi", "new delhi", False),  # case counts, and 5 of 9 letters have to change
        ("odyssey", "delhi", "new delhi", True),
        ("odyssey", "abcd", "abxy", True),  # 2 of 4
        ("odyssey", "abcd", "axyz", False),  # 3 of 4
        ("odyssey", "ab", "xyabzz", True),
        ("odyssey", "a", "xyzzz", False),
        ("os_atlas", "new delhi", "new york pizza", True),
        ("os_atlas", "delhi", "new delhi", False),
        ("os_atlas_odyssey", "delhi", "new delhi", True),  # TYPE delhi, TYPE new delhi: F1 4/5
        ("os_atlas_odyssey", "pizza", "pasta", False),  # TYPE alone: F1 1/2
        ("os_atlas_odyssey", "pizza now", "pizza", True),
        ("gui_r1", "delhi", "new delhi", True),  # F1 2/3
        ("gui_r1", "a b c", "a", True),  # F1 1/2
        ("gui_r1", "alarm", "alarms", True),
        ("gui_r1", "x alarm", "alarms", False),
    ],
)
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


@pytest.mark.parametrize(
    ("profile", "target", "action", "grounding"),
    [
        ("adpo", AT, AT, True),
        ("adpo", AT, click(0, 0), False),
        ("adpo", AT, WAIT, False),
        ("adpo", AT, None, False),
        ("adpo", click(540, 1200, "long_press"), AT, False),
        ("adpo", WAIT, AT, None),
        ("os-atlas", AT, WAIT, None),
        ("os-atlas", AT, None, None),
        ("os-atlas", AT, click(0, 0), False),
        ("os-atlas", click(5, 5, "long_press"), click(5, 5, "long_press"), None),
        ("os-atlas-odyssey", click(5, 5, "long_press"), click(5, 5, "long_press"), True),
        ("gui-r1", AT, click(540, 1200, "long_press"), True),
        ("gui-r1", AT, click(0, 0, "long_press"), False),
        ("gui-odyssey", AT, click(540, 1200, "long_press"), False),
        ("agentcpm-odyssey", click(5, 5, "long_press"), click(5, 5), True),
    ],
)
def test_which_steps_count_for_grounding(
    profile: str, target: dict[str, Any], action: dict[str, Any] | None, grounding: bool | None
) -> None:
    assert score_step(PROFILES[profile], target, action, SCREEN).grounding is grounding


def test_which_steps_count_at_all() -> None:
    assert "click" in PROFILES["ui-r1"].counted and "wait" not in PROFILES["ui-r1"].counted
    assert "open" not in PROFILES["agentcpm-odyssey"].counted
    assert {"click", "wait", "open"} <= PROFILES["adpo"].counted
