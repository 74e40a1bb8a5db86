"""When looking ends: the rule that Algorithm 1 asks after every step (VTS-V §3.4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from selfverify.core.episode import PolicyTurn
from selfverify.core.errors import ConfigError

LOG_RATIO, LOG_RATIO_PLAN = "log_ratio", "log_ratio_plan"
"""What a verifier has measured of a turn: log V_φ/V_φ0 over its tokens, nats, and the plan's part of it."""
DELTA_R = "delta_r"
"""The same of a step alone: Δr of Lemma 3.1. The answer t_{H+1} has none."""


class StopRule(ABC):
    """Says after which step the model has to answer.

    It is asked before the step's tool runs: by Lemma 3.1 the paper's Δr needs plan and action only. What a
    listener has measured of the turn stands in `PolicyTurn.values`.
    """

    @abstractmethod
    def stops(self, step: int, said: PolicyTurn) -> bool:
        """Whether looking ends with this step.

        Args:
            step: h, from 1. Turns whose call was refused are steps, too.
            said: Plan and action.
        """


@dataclass(frozen=True, slots=True)
class Never(StopRule):
    """Looking ends at the cap of steps, or where the model ends it."""

    def stops(self, step: int, said: PolicyTurn) -> bool:
        """See `StopRule`."""
        return False


@dataclass(frozen=True, slots=True)
class After(StopRule):
    """Looking ends after a fixed number of steps."""

    steps: int

    def stops(self, step: int, said: PolicyTurn) -> bool:
        """See `StopRule`."""
        return step >= self.steps


@dataclass(frozen=True, slots=True)
class Verified(StopRule):
    """Looking ends where the verifier has heard enough (VTS-V §3.4, Lemma 3.1).

    ``absolute`` is the paper's text: |Δr| < ε. It stops where the verifier has no opinion on a step, and goes
    on through steps that it dislikes. ``signed`` is Algorithm 1 as printed, Δr < ε; as Δr ≤ |Δr|, it never
    stops later than ``absolute`` with the same ε. Of a step that was not measured nothing is known, and
    looking goes on.
    """

    kind: Literal["absolute", "signed"]
    epsilon: float

    def stops(self, step: int, said: PolicyTurn) -> bool:
        """See `StopRule`."""
        if DELTA_R not in said.values:
            return False
        delta = said.values[DELTA_R]
        return (abs(delta) if self.kind == "absolute" else delta) < self.epsilon


def make_stop_rule(name: str) -> StopRule:
    """The rule without a verifier that a setting names.

    Raises:
        ConfigError: There is no such rule.
    """
    kind, _, number = name.partition(":")
    if name == "never":
        return Never()
    if kind == "after" and number.isascii() and number.isdigit() and 1 <= int(number[:4]) == int(number):
        return After(int(number))
    raise ConfigError(
        f"there is no rule {name!r} that ends looking; there are `never`, `after:N` and `verifier`"
    )
