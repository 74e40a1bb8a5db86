"""Requests: OpenAI's fields, and ``best_of``, which says how one of several answers is chosen."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from selfverify.errors import ConfigError
from selfverify.selection.adaptive import Stopping
from selfverify.selection.answers import Kind
from selfverify.selection.strategies import Options, find_strategy
from selfverify.serving.errors import ApiError, invalid

MOST_SAMPLES = 256
_SUFFIX = re.compile(
    r"(?P<model>.+)@(?:bo(?P<n>[0-9]{1,4})(?P<settings>(?:,[a-z_]+=[^,@]*)*)|(?P<plain>plain))"
)


class BestOf(BaseModel):
    """How an answer is chosen. What is left out is as the gateway was started."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int = Field(8, ge=1, le=MOST_SAMPLES, description="Candidates at most.")
    strategy: str = Field(
        "weighted", description="`first`, `majority`, `best`, `weighted` or `best-of-majority`."
    )
    verifier: str | None = Field(
        None,
        description="What scores them: `inline`, `soft`, `judge` or `none`; own models also `greedy`, "
        "servers `judge:MODEL`. Null is `soft` for own models, `inline` for servers.",
    )
    stop: Literal["never", "beta", "posterior"] = Field("never", description="Rule for stopping early.")
    confidence: float = Field(0.95, ge=0.5, le=1, description="How sure the answer has to be to stop.")
    start: int = Field(2, ge=1, le=MOST_SAMPLES, description="With `stop`: candidates before the first look.")
    step: int | None = Field(
        None, ge=1, le=MOST_SAMPLES, description="With `stop`: candidates between looks; null is n / 8."
    )
    budget_tokens: int | None = Field(None, ge=1, description="Tokens to write for candidates, at most.")
    temperature: float | None = Field(
        None, ge=0, le=2, description="Of the sampling; goes before the request's own."
    )
    vote_temperature: float = Field(0.1, gt=0, le=1e6, description="`weighted`: of the votes.")
    share: float = Field(0.25, ge=0, le=1, description="`best-of-majority`: share an answer needs.")
    answers: Kind = Field("text", description="Which answers are the same: compared as `text`, `set`, `box`.")
    abstain_below: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Refuse to answer below this probability of being right; without a calibration, below "
        "this confidence.",
    )
    instruction: bool = Field(True, description="Ask for the answer format and a score behind the question.")
    content: Literal["text", "answer", "raw"] = Field(
        "text", description="What is returned: the text without its score, the answer alone, or everything."
    )
    samples: bool = Field(False, description="Return all candidates too.")
    progress: Literal["comments", "events"] = Field(
        "comments",
        description="Streaming: candidates as comments, which every client skips, or as events `candidate`.",
    )
    timeout_s: float | None = Field(
        None, gt=0, description="Answer within so many seconds, with the best of what is there by then."
    )

    @field_validator("strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            if find_strategy(name).needs == "truth":
                raise ValueError(f"strategy {name} needs the right answer; it is for analysis only")
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return name

    @property
    def stopping(self) -> Stopping:
        """As `selfverify solve` has it."""
        start = self.n if self.stop == "never" else min(self.start, self.n)
        step = self.step or max(1, self.n // 8)
        return Stopping(self.stop, self.confidence, start, step, self.n, self.budget_tokens)

    @property
    def options(self) -> Options:
        """Of the strategy."""
        return Options(self.vote_temperature, self.share)


class _StreamOptions(BaseModel):
    include_usage: bool = False


class ChatRequest(BaseModel):
    """What the gateway itself reads of a chat completion request; an upstream gets the others as they are."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(min_length=1, max_length=512)
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    n: int = Field(1, ge=1, le=128)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: list[str] = Field(default_factory=list, max_length=16)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    best_of: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _nulls(cls, data: Any) -> Any:
        """OpenAI takes null for "not given"; ``stop`` may be one string, ``best_of`` false."""
        if not isinstance(data, dict):
            raise ValueError("the request has to be a JSON object")
        found = {name: value for name, value in data.items() if value is not None}
        if isinstance(found.get("stop"), str):
            found["stop"] = [found["stop"]]
        if found.get("best_of") is False:
            found["best_of"] = {"plain": True}
        return found

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def most_tokens(self) -> int | None:
        """Length limit of a candidate."""
        return self.max_completion_tokens or self.max_tokens


class VerifyRequest(BaseModel):
    """Score given answers to a question."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(min_length=1, max_length=512)
    messages: list[dict[str, Any]] = Field(min_length=1, max_length=4096)
    answer: str | list[str] = Field(description="One answer, or up to 64.")
    verifier: str | None = None

    @property
    def answers(self) -> list[str]:
        """As a list.

        Raises:
            ApiError: There are none, or more than 64.
        """
        found = [self.answer] if isinstance(self.answer, str) else self.answer
        if not 1 <= len(found) <= 64 or not all(text.strip() for text in found):
            raise ApiError(
                400, "answer: between 1 and 64 texts that are not empty", "invalid_value", "answer"
            )
        return found


def best_of(request: ChatRequest, defaults: BestOf) -> tuple[str, BestOf | None]:
    """The model's own name, and how its answer is chosen: None leaves the request as it is.

    The suffix ``@bo8`` or ``@bo8,strategy=best,stop=beta`` goes before the gateway's defaults, the object
    ``best_of`` before both. ``@plain`` and ``"best_of": false`` turn selection off.

    Raises:
        ApiError: A setting is unknown or wrong.
    """
    model, settings = split_model(request.model)
    if request.best_of is not None:
        settings.pop("plain", None)
        settings |= request.best_of
    if settings.pop("plain", False):
        return model, None
    merged = defaults.model_dump(exclude_unset=True) | settings
    asked = "n" in settings
    chosen = validated(merged)
    if request.n > chosen.n:
        if asked:
            text = f"n: {request.n} answers are asked for, and only {chosen.n} candidates to choose them from"
            raise ApiError(400, text, "invalid_value", "n")
        chosen = chosen.model_copy(update={"n": request.n})
    return model, chosen


def validated(settings: dict[str, Any]) -> BestOf:
    """Settings, checked.

    Raises:
        ApiError: One is unknown or wrong.
    """
    try:
        return BestOf.model_validate(settings)
    except ValidationError as error:
        raise invalid(error, "best_of") from None


def split_model(name: str) -> tuple[str, dict[str, Any]]:
    """A model's name without its suffix, and the settings in that; see `best_of`.

    Raises:
        ApiError: What looks like a suffix is none.
    """
    if "@" not in name:
        return name, {}
    found = _SUFFIX.fullmatch(name)
    if not found:
        if re.search(r"@(bo[0-9]|plain)", name):
            text = f"model: {name!r}: a suffix looks like @bo8 or @bo8,strategy=best,verifier=inline"
            raise ApiError(400, text, "invalid_value", "model")
        return name, {}
    if found["plain"]:
        return found["model"], {"plain": True}
    pairs = [pair.partition("=") for pair in found["settings"].split(",") if pair]
    return found["model"], {"n": int(found["n"])} | {key: value for key, _, value in pairs}
