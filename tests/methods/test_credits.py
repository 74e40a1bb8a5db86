"""What GRPO and ADPO refuse, and what ADPO says of scores."""

from __future__ import annotations

from typing import Any

import pytest
from tests.methods.test_without_the_model_stack import CASES, group_of

from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import valid_trajectories
from selfverify.experiments.registry import make_method
from tables import yaml_cases


def test_verification_is_a_reward_of_its_own() -> None:
    """None for a malformed or a missing score."""
    of = group_of(CASES["adpo, formats"])
    make_method("adpo").credit(of, valid_trajectories(of, False))
    assert [t.rewards["verification"] for t in of.trajectories] == [1.0, 1.0, 0.0, 0.0]


def test_a_task_without_scores_is_refused() -> None:
    of = group_of(CASES["grpo, without scores"])
    told = r"teaches scores, and the task asks for none: set task\.score=true"
    with pytest.raises(ConfigError, match=told):
        make_method("adpo").credit(of, valid_trajectories(of, False))


@yaml_cases
def test_options_that_change_nothing_or_contradict_are_refused(
    method: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        make_method(method, **options)
