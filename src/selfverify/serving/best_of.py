"""The fields by which a request chooses among several answers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from selfverify.core.config import CommandConfig
from selfverify.core.errors import ConfigError
from selfverify.selection.rules import Kind
from selfverify.selection.stopping import Stopping
from selfverify.selection.strategies import FOR_USE, STRATEGIES, StrategyConfig, strategy_for_use

MOST_SAMPLES = 256
"""The most candidates that one request may ask a server for."""


_STRATEGIES = ", ".join(f"`{name}` ({STRATEGIES[name].label})" for name in FOR_USE)


class Choosing(CommandConfig):
    """How candidates are chosen from, and when enough of them are there."""

    n: int = Field(8, ge=1, le=MOST_SAMPLES)
    """The most candidates: sampled answers, of which one is chosen."""

    strategy: str = Field("weighted", description=f"How the answer is chosen: {_STRATEGIES}.")

    verifier: str | None = None
    """What gives each candidate a score: `inline` (the model wrote it), `soft` (what the probabilities of the
    model's tokens expect), `judge` (the model is asked about each answer), `fused` or `fused:A` (soft and A
    times the log-probability; A from the calibration or as given) or `none`. A model that runs here
    also has `greedy`, a server `judge:MODEL`. By default a model that runs here uses `soft`, a server
    `inline`."""

    stop: Literal["never", "beta", "posterior"] = "never"
    """When sampling ends early: `never`, `beta` (enough votes agree) or `posterior` (the scores are sure
    enough)."""

    answers: Kind = "text"
    """Which answers are the same: those of equal `text`, those with the same words in any order (`set`), or
    boxes that overlap (`box`)."""

    confidence: float = Field(0.95, ge=0.5, le=1)
    """With early stopping: sampling ends when the leading answer is this sure."""

    budget_tokens: int | None = Field(None, ge=1)
    """The most tokens that all candidates may take together."""

    vote_temperature: float = Field(0.1, gt=0, le=1e6)
    """With strategy `weighted`: the softmax temperature of the votes. A small one lets high scores decide."""

    share: float = Field(0.25, ge=0, le=1)
    """With strategy `best-of-majority`: the share of the candidates that have to agree on an answer."""

    @property
    def stopping(self) -> Stopping:
        """How many candidates are drawn at first, how many between two looks, and when that ends."""
        return self._stopping(2, None)

    def _stopping(self, start: int, step: int | None) -> Stopping:
        at_once = self.stop == "never" and self.budget_tokens is None
        start = self.n if at_once else min(start, self.n)
        return Stopping(
            self.stop, self.confidence, start, step or max(1, self.n // 8), self.n, self.budget_tokens
        )

    @field_validator("strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            return strategy_for_use(name).name
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @property
    def options(self) -> StrategyConfig:
        """The options of the strategy."""
        return StrategyConfig(self.vote_temperature, self.share)


class BestOf(Choosing):
    """The object `best_of` of a request. What is left out is as the gateway was started, which has such an
    object too."""

    start: int = Field(2, ge=1, le=MOST_SAMPLES)
    """With early stopping: the candidates before the first check."""

    step: int | None = Field(None, ge=1, le=MOST_SAMPLES)
    """With early stopping: the candidates between two checks; null is n / 8."""

    temperature: float | None = Field(None, ge=0, le=2)
    """The sampling temperature; it replaces the request's own."""

    abstain_below: float | None = Field(None, ge=0, le=1)
    """Refuse to answer if the probability of being right, or without a calibration the confidence, is below
    this number."""

    instruction: bool = True
    """Put a request for the answer format and a score behind the question."""

    content: Literal["text", "answer", "raw"] = "text"
    """What is returned: the text without its score, the answer alone, without any tags, or everything. An
    answer in a `response_format` is always returned as it is."""

    refusal: Literal["field", "content"] = "field"
    """Where it says that no answer is sure enough: in OpenAI's field `refusal`, or for clients that do not
    show that also in the content."""

    samples: bool = False
    """Return all candidates besides the chosen answer."""

    progress: Literal["comments", "events"] = "comments"
    """How a stream tells of candidates: in comments, which every client skips, or in events named
    `candidate`."""

    timeout_s: float | None = Field(None, gt=0)
    """Seconds after which the answer is chosen from the candidates that are there."""

    @property
    def stopping(self) -> Stopping:
        """As in `Choosing`, with the request's own ``start`` and ``step``."""
        return self._stopping(self.start, self.step)
