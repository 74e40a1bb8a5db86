"""The supervised judge: its figures by hand, and that only the judge learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from reproduce.supervised_judge import app, worth


def test_worth_by_hand() -> None:
    """Problem 0 orders both of its pairs, problem 2 one of two; problem 1 is not mixed."""
    score = np.array([0.1, 0.9, 0.8, 0.5, 0.6, 0.2, 0.4, 0.3])
    right = np.array([False, True, True, True, True, False, True, False])
    found = worth(score, right, np.array([0, 0, 0, 1, 1, 2, 2, 2]) * 16)
    assert found["within_problem_auc"] == 1.0 and found["mixed_problems"] == 2
    swapped = worth(np.where(np.arange(8) == 5, 0.5, score), right, np.array([0, 0, 0, 1, 1, 2, 2, 2]))
    assert swapped["within_problem_auc"] == pytest.approx((1.0 + 0.5) / 2)
    assert swapped["margin"] == pytest.approx(1.96 * np.std([1.0, 0.5], ddof=1) / 2**0.5)
    assert swapped["auc"] == pytest.approx(13.5 / 15)  # 0.5 ties with a right answer, and is above another


def judged(folder: Path, steps: int) -> dict[str, Any]:
    """The readings after so many steps of supervision."""
    output = folder / f"{steps}.json"
    words = ["builtin:digits-blind", str(output), "--recipe", "quickstart", "--steps", str(steps)]
    done = CliRunner().invoke(app, [*words, "--problems", "16", "--fitted", "16"])
    assert done.exit_code == 0, done.output
    readings: dict[str, Any] = json.loads(output.read_text())["readings"]
    return readings


def test_the_judge_learns_and_its_start_stays(tmp_path: Path) -> None:
    before, after = judged(tmp_path, 0), judged(tmp_path, 2)
    assert before["supervised judge"] == before["the start's own score"]
    assert after["supervised judge"] != before["supervised judge"]
    del before["supervised judge"], after["supervised judge"]
    assert before == after and all(0 <= row["within_problem_auc"] <= 1 for row in after.values())
