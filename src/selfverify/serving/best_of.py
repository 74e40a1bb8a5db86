"""The settings of choosing one of several answers, for requests, `selfverify solve` and the gateway."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from selfverify.core.errors import ConfigError
from selfverify.selection.answers import Kind
from selfverify.selection.stopping import Stopping
from selfverify.selection.strategies import FOR_USE, Options, strategy_for_use

MOST_SAMPLES = 256
"""The most candidates that one request may ask a server for."""


class RequestDefaults(BaseModel):
    """What `selfverify serve` sets for requests that do not set it themselves."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int = Field(8, ge=1, le=MOST_SAMPLES, description="The largest number of candidates.")
    strategy: str = Field(
        "weighted",
        description=f"How the answer is chosen: {', '.join(f'`{name}`' for name in FOR_USE)}.",
    )
    verifier: str | None = Field(
        None,
        description="What scores the candidates: `inline`, `soft`, `judge` or `none`; own models also know "
        "`greedy`, servers `judge:MODEL`. Without it, own models use `soft` and servers `inline`.",
    )
    stop: Literal["never", "beta", "posterior"] = Field(
        "never", description="When to stop early: `never`, `beta` (by votes) or `posterior` (by scores)."
    )
    answers: Kind = Field(
        "text",
        description="How answers are compared: as `text`, as a `set` (words in any order) or as a `box`.",
    )

    @field_validator("strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            return strategy_for_use(name).name
        except ConfigError as error:
            raise ValueError(str(error)) from None


class Choosing(RequestDefaults):
    """How candidates are chosen from, and when enough of them are there."""

    confidence: float = Field(
        0.95, ge=0.5, le=1, description="With a stopping rule: the confidence at which sampling ends."
    )
    budget_tokens: int | None = Field(
        None, ge=1, description="The largest number of tokens that all candidates may take together."
    )
    vote_temperature: float = Field(
        0.1, gt=0, le=1e6, description="Strategy `weighted`: softmax temperature of the votes."
    )
    share: float = Field(
        0.25,
        ge=0,
        le=1,
        description="Strategy `best-of-majority`: the share of the candidates that an answer needs.",
    )

    @property
    def stopping(self) -> Stopping:
        """How many candidates are drawn at first, how many between two looks, and when that ends."""
        return self._stopping(2, None)

    def _stopping(self, start: int, step: int | None) -> Stopping:
        start = self.n if self.stop == "never" else min(start, self.n)
        return Stopping(
            self.stop, self.confidence, start, step or max(1, self.n // 8), self.n, self.budget_tokens
        )

    @property
    def options(self) -> Options:
        """The options of the strategy."""
        return Options(self.vote_temperature, self.share)


class BestOf(Choosing):
    """The object `best_of` of a request. What is left out is as the gateway was started."""

    start: int = Field(
        2, ge=1, le=MOST_SAMPLES, description="With a stopping rule: candidates before the first look."
    )
    step: int | None = Field(
        None,
        ge=1,
        le=MOST_SAMPLES,
        description="With a stopping rule: candidates between two looks; null is n / 8.",
    )
    temperature: float | None = Field(
        None, ge=0, le=2, description="Sampling temperature; it replaces the request's own."
    )
    abstain_below: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Refuse to answer below this probability of being right; without a calibration, below "
        "this confidence.",
    )
    instruction: bool = Field(
        True, description="Ask for the answer format and a score at the end of the question."
    )
    content: Literal["text", "answer", "raw"] = Field(
        "text", description="What is returned: the text without its score, the answer alone, or everything."
    )
    samples: bool = Field(False, description="Return all candidates too.")
    progress: Literal["comments", "events"] = Field(
        "comments",
        description="Streams tell of candidates in comments, which every client skips, or in events named "
        "`candidate`.",
    )
    timeout_s: float | None = Field(
        None, gt=0, description="Seconds after which the best of the candidates so far is returned."
    )

    @property
    def stopping(self) -> Stopping:
        """As in `Choosing`, with the request's own ``start`` and ``step``."""
        return self._stopping(self.start, self.step)
