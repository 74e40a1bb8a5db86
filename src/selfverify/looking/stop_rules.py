"""When looking ends: the rule that Algorithm 1 asks after every step (VTS-V §3.4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from selfverify.core.episode import Said
from selfverify.core.errors import ConfigError


class StopRule(ABC):
    """Says after which step the model has to answer.

    It is asked before the step's tool runs: by Lemma 3.1 the paper's Δr needs plan and action only. What a
    listener has measured of the turn stands in `Said.values`.
    """

    @abstractmethod
    def stops(self, step: int, said: Said) -> bool:
        """Whether looking ends with this step.

        Args:
            step: h, from 1. Turns whose call was refused are steps, too.
            said: Plan and action.
        """


@dataclass(frozen=True, slots=True)
class Never(StopRule):
    """Looking ends at the cap of steps, or where the model ends it."""

    def stops(self, step: int, said: Said) -> bool:
        """See `StopRule`."""
        return False


@dataclass(frozen=True, slots=True)
class After(StopRule):
    """Looking ends after a fixed number of steps."""

    steps: int

    def stops(self, step: int, said: Said) -> bool:
        """See `StopRule`."""
        return step >= self.steps


def make_stop_rule(name: str) -> StopRule:
    """The rule that a setting names.

    Raises:
        ConfigError: There is no such rule.
    """
    kind, _, number = name.partition(":")
    if name == "never":
        return Never()
    if kind == "after" and number.isascii() and number.isdigit() and 1 <= int(number[:4]) == int(number):
        return After(int(number))
    raise ConfigError(f"there is no rule {name!r} that ends looking; there are `never` and `after:N`")
