"""`builtin:looking` follows digits by looking closer, and answers whenever it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfverify.core.config import EvaluationConfig
from selfverify.evaluation.visual_metrics import run_to_cap
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.visual.digits_far import DigitsFar


@pytest.mark.parametrize("problems", [8, pytest.param(128, marks=pytest.mark.slow)])
def test_it_looks_to_the_0_and_answers_whenever_it_is_told_to(problems: int, tmp_path: Path) -> None:
    task = make_task("digits-far", terminate="refuse")
    assert isinstance(task, DigitsFar)
    config = EvaluationConfig(problems=problems, samples=1, temperature=0.0, split="test")
    policy = Policy.load("builtin:looking", device="cpu")
    rows = run_to_cap(policy, task, config, tmp_path / "looked.jsonl", max_new_tokens=32)
    talks = [talk for row in rows.values() for talk in row.talks]
    found = [talk for talk in talks if talk.enough]
    assert len(found) >= 0.7 * problems and len({talk.enough for talk in found}) > 1
    behind = [step.correct for talk in found for step in talk.steps[talk.enough - 1 :]]
    assert sum(right == 1 for right in behind) >= 0.9 * len(behind)
