"""What a recipe says of a verifier that ends looking: its pairs, and what ε is chosen for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from selfverify.core.settings import Config


class StoppingConfig(Config):
    """A verifier of when to stop, made from the policy's own conversations about the recipe's task."""

    problems: int = Field(1000, ge=1, description="Training problems about which the policy looks.")
    samples: int = Field(4, ge=2, description="Conversations about each, of which pairs are made.")
    temperature: float = Field(1.0, gt=0, description="Of these conversations.")
    hurried: int = Field(
        1,
        ge=0,
        description="Answers that are asked for in the middle of each right conversation: most are wrong "
        "before enough was seen, and right with fewer looks behind that.",
    )
    pairs: Literal["wrong", "wrong+wasteful"] = Field(
        "wrong+wasteful",
        description="`wrong`: right against wrong conversations. `wrong+wasteful`: also two right ones, of "
        "which the one with fewer looks is preferred.",
    )
    rule: Literal["absolute", "signed"] = Field(
        "absolute", description="Where the verifier ends looking: |Δr| < ε, or Δr < ε."
    )
    steps: float | None = Field(
        None, ge=1, description="The mean number of steps on validation problems that ε may not exceed."
    )
    within: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Without `steps`: how far below the best accuracy of all ε on validation problems it may "
        "be, with the fewest steps.",
    )

    @property
    def target(self) -> tuple[Literal["steps", "within"], float]:
        """What ε is chosen for."""
        return ("within", self.within) if self.steps is None else ("steps", self.steps)
