"""ε of the stopping verifier and its figures: by hand, against trying every ε, stored and read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfverify.core.episode import PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.trajectory import Finish
from selfverify.visual.config import VisualConfig
from selfverify.visual.stopping import (
    DELTA_R,
    LOG_RATIO,
    STOPPING_FILE,
    StopCalibration,
    Verified,
    fit_epsilon,
    step_means,
    stop_figures,
    stop_steps,
)
from selfverify.visual.verifier import StoppingVerifier
from tables import yaml_cases

NAN = float("nan")
DELTA = [[3.0, -0.5, 0.2], [0.4, 2.0, 0.1], [1.0, NAN, NAN]]
RIGHT = [[0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [1.0, NAN, NAN]]
ROWS = st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=6)


def said(**values: float) -> PolicyTurn:
    """A turn of which this was measured."""
    return PolicyTurn("", [], Finish.STOP, 0, values)


def padded(rows: list[list[float]]) -> np.ndarray:
    """Rows of any length as an array."""
    width = max(map(len, rows))
    return np.array([row + [NAN] * (width - len(row)) for row in rows])


def test_rules_by_hand() -> None:
    """|Δr| < ε and Δr < ε, strictly; a step that was not measured does not stop."""
    absolute, signed = Verified("absolute", 0.5), Verified("signed", 0.5)
    known = ((0.4, True, True), (0.5, False, False), (-0.7, False, True), (2, False, False))
    for delta, first, second in known:
        assert absolute.stops(1, said(delta_r=delta)) is first
        assert signed.stops(1, said(delta_r=delta)) is second
    assert DELTA_R == "delta_r" and not absolute.stops(1, said()) and not signed.stops(1, said(log_ratio=0.0))
    assert LOG_RATIO == "log_ratio"


@settings(deadline=None)
@given(ROWS, st.floats(0, 6))
def test_signed_never_stops_later(rows: list[list[float]], epsilon: float) -> None:
    """With the same ε, whatever Δr comes; and the arrays say what the rules say."""
    values = padded(rows)
    signed, absolute = stop_steps(values, "signed", epsilon), stop_steps(values, "absolute", epsilon)
    assert (signed <= absolute).all()
    for row, steps in zip(rows, absolute, strict=True):
        rule = Verified("absolute", epsilon)
        stops = [step for step, delta in enumerate(row, 1) if rule.stops(step, said(delta_r=delta))]
        assert steps == min([*stops, len(row)])


def test_fit_by_hand() -> None:
    """absolute: past .1, .2 nothing gets shorter but the last; past .4 the second stops at once; ..."""
    found = fit_epsilon(DELTA, RIGHT, "absolute", "steps", 5 / 3, {"task": "t"})
    # ε in (.4, .5): steps 3, 1, 1. ε in (.5, 1): 2, 1, 1, of which the means are 5/3 and 4/3.
    assert found.epsilon == pytest.approx(0.45) and found.steps == pytest.approx(5 / 3)
    assert found.accuracy == pytest.approx(2 / 3) and found.problems == 3 and found.fitted_on == {"task": "t"}
    best = fit_epsilon(DELTA, RIGHT, "absolute", "accuracy", 1.0)
    assert best.epsilon == pytest.approx(0.3) and best.steps == pytest.approx(7 / 3)
    # signed: the first stops at its second step, -.5, where it is right; the .2 behind it changes nothing, so
    # that the values around ε are .1 and .4.
    assert fit_epsilon(DELTA, RIGHT, "signed", "accuracy", 1.0).epsilon == pytest.approx(0.25)
    assert fit_epsilon(DELTA, RIGHT, "signed", "accuracy", 1.0).steps == pytest.approx(2.0)
    assert fit_epsilon(DELTA, None, "signed", "steps", 2.0).accuracy is None
    assert fit_epsilon(DELTA, RIGHT, "signed", "within", 0.0) == replace(
        fit_epsilon(DELTA, RIGHT, "signed", "accuracy", 1.0), target="within", wanted=0.0
    )
    third = fit_epsilon(DELTA, RIGHT, "signed", "accuracy", 2 / 3)
    near = fit_epsilon(DELTA, RIGHT, "signed", "within", 1 / 3)
    assert (near.epsilon, near.steps) == (third.epsilon, third.steps)


@settings(deadline=None)
@given(ROWS, st.sampled_from(["absolute", "signed"]), st.floats(1, 5), st.randoms(use_true_random=False))
def test_fit_against_trying_all(rows: list[list[float]], rule: str, wanted: float, random: object) -> None:
    """The smallest ε that needs few enough steps, and its figures."""
    values = padded(rows)
    right = np.array([[float(random.random() < 0.5) for _ in row] for row in values])  # type: ignore[attr-defined]
    compared = np.abs(values) if rule == "absolute" else values
    levels = np.unique(compared[~np.isnan(compared)])
    tried = [0.0 if rule == "absolute" else levels[0] - 1, *np.nextafter(levels, np.inf)]
    steps = [stop_steps(values, rule, epsilon) for epsilon in tried]  # type: ignore[arg-type]
    few = [number for number in steps if number.mean() <= wanted + 1e-9]
    if not few:
        with pytest.raises(ConfigError, match="no ε reaches"):
            fit_epsilon(values, right, rule, "steps", wanted)  # type: ignore[arg-type]
        return
    found = fit_epsilon(values, right, rule, "steps", wanted)  # type: ignore[arg-type]
    assert found.steps == pytest.approx(few[0].mean())
    assert found.accuracy == pytest.approx(right[np.arange(len(rows)), few[0] - 1].mean())


SERVED = {"verifier": "http://127.0.0.1:9#v", "verifier_base": "http://127.0.0.1:9#b"}


def test_stored_beside_the_model(tmp_path: Path) -> None:
    """Written, read, and taken by the rule; a setting wins; what is broken is named."""
    made = fit_epsilon(DELTA, RIGHT, "signed", "accuracy", 1.0)
    path = made.save(tmp_path)
    assert path.name == STOPPING_FILE and StopCalibration.load(tmp_path) == made
    named = {"stop": "verifier", "verifier": str(tmp_path)}
    assert StoppingVerifier(VisualConfig(**named)).rule == Verified("signed", made.epsilon)
    assert StoppingVerifier(VisualConfig(**named, epsilon=-1.0)).rule == Verified("signed", -1.0)
    assert StoppingVerifier(VisualConfig(**named, rule="absolute", epsilon=2.0)).rule == Verified(
        "absolute", 2.0
    )
    with pytest.raises(ConfigError, match="for the rule signed, and the rule is absolute"):
        StoppingVerifier(VisualConfig(**named, rule="absolute"))
    with pytest.raises(ConfigError, match="never below -1"):
        StoppingVerifier(VisualConfig(**named, rule="absolute", epsilon=-1.0))
    with pytest.raises(ConfigError, match="needs the verifier's folder"):
        StoppingVerifier(VisualConfig(stop="verifier"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"epsilon": "small"}))
    with pytest.raises(DataError, match=r"stopping\.json.*epsilon.*small"):
        StoppingVerifier(VisualConfig(**named))
    path.unlink()
    with pytest.raises(DataError, match="no ε beside it"):
        StoppingVerifier(VisualConfig(**named))
    for address, rule in (({}, "signed"), (SERVED, "signed"), (SERVED | {"rule": "absolute"}, "absolute")):
        asked = VisualConfig(**named | address, epsilon=0.5)
        assert StoppingVerifier(asked).rule == Verified(rule, 0.5)


@yaml_cases
def test_what_does_not_fit_is_refused(delta: Any, right: Any, target: Any, wanted: float, said: str) -> None:
    """Gaps, shapes, missing verdicts, targets out of reach."""
    with pytest.raises((ConfigError, DataError), match=said):
        fit_epsilon(delta, right, "absolute", target, wanted)


NATS = np.array([[1.0, -3.0], [2.0, 0.5], [0.0, NAN]])
PLAN = np.array([[0.5, -1.0], [1.0, 0.0], [0.0, NAN]])


def test_means_by_hand() -> None:
    """Plans .5, 1, 0 and actions .5, 1, 0 in the first step; -1, 0 and -2, .5 in the second."""
    found = step_means(NATS, PLAN)
    assert found.conversations.tolist() == [3, 2]
    assert found.plan == pytest.approx([0.5, -0.5]) and found.action == pytest.approx([0.5, -0.75])
    assert found.plan_error == pytest.approx([0.5 / np.sqrt(3), np.sqrt(0.5 / 2)])
    assert found.action_error == pytest.approx([0.5 / np.sqrt(3), 1.25])
    # r after the steps: 1, 2, 0 and -2, 2.5.
    assert found.positive == pytest.approx([1.0, 1.25])
    assert np.isnan(step_means(NATS[:1], PLAN[:1]).plan_error).all()


def test_stopping_times_by_hand() -> None:
    """absolute: .6 stops the second after step 2 and the third at once; signed also the first after 2."""
    absolute, signed = stop_figures(NATS, "absolute", 0.6), stop_figures(NATS, "signed", 0.6)
    assert absolute.stopped_at == pytest.approx([1 / 3, 1 / 3]) and absolute.cap == pytest.approx(1 / 3)
    assert signed.stopped_at == pytest.approx([1 / 3, 2 / 3]) and signed.cap == 0
    assert absolute.steps == signed.steps == pytest.approx(5 / 3)
    assert absolute.counts.sum() == 5 and absolute.edges[[0, -1]].tolist() == [-3.0, 2.0]
    never = stop_figures(NATS, "absolute", 0.0)
    assert never.cap == pytest.approx(2 / 3) and never.own_end == pytest.approx(1 / 3)
    assert never.steps == pytest.approx(5 / 3) and not never.stopped_at.any()


def test_what_no_figure_can_be_of() -> None:
    """Shapes, and steps that nobody has."""
    with pytest.raises(DataError, match="one shape"):
        step_means(NATS, PLAN[:1])
    with pytest.raises(DataError, match="no conversation has step 2"):
        step_means(NATS[2:], PLAN[2:])
    with pytest.raises(DataError, match="at least one step"):
        stop_figures([[NAN]], "signed", 0.0)
