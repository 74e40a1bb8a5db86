"""Policies that end their turns soon, and two problems to talk about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.rollouts.conversations import picture

from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn
from tiny_models import boosted


@pytest.fixture
def ending_policy(load_policy: Any) -> Callable[..., Policy]:
    """Policies of which most turns end within the limit."""

    return lambda kind="tiny": boosted(load_policy(kind), 6.0)


@pytest.fixture
def asked() -> list[Problem]:
    """A problem with an image and one without."""
    shown = Problem("shown", user_turn("What is on it?"), [picture(3, (84, 56))])
    return [shown, Problem("plain", user_turn("Say 7.", images=0))]
