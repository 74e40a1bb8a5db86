"""Configs of `solve` and `serve`, which become options of commands.

`ChoosingConfig` says how one of several answers is chosen. A request says so in its object `best_of`
(`BestOfConfig`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from selfverify.core.config import Config, Seed, checked_address
from selfverify.core.errors import ConfigError
from selfverify.selection.rules import Kind
from selfverify.selection.stopping import Stopping
from selfverify.selection.strategies import FOR_USE, STRATEGIES, StrategyConfig, strategy_for_use
from selfverify.visual.config import VisualToolConfig

MOST_SAMPLES = 256
"""The most candidates that one request may ask a server for."""


_STRATEGIES = ", ".join(f"`{name}` ({STRATEGIES[name].label})" for name in FOR_USE)


def _divides(temperature: float | None) -> float | None:
    if temperature is not None and 0 < temperature < 1e-5:
        raise ValueError("logits cannot be divided by so small a number; 0 takes the likeliest tokens")
    return temperature


Temperature = AfterValidator(_divides)
"""Refuses sampling temperatures between 0 and the smallest that can be computed with."""


def _taken_by(check: Callable[[str], str]) -> AfterValidator:
    """Return a validator that puts what ``check`` returns in a value's place, and refuses what it refuses."""

    def checked(value: str | None) -> str | None:
        try:
            return None if value is None else check(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    return AfterValidator(checked)


class ChoosingConfig(Config):
    """How candidates are chosen from, and when enough of them are there."""

    n: int = Field(8, ge=1, le=MOST_SAMPLES)
    """The most candidates: sampled answers, of which one is chosen."""

    strategy: Annotated[str, _taken_by(lambda name: strategy_for_use(name).name)] = Field(
        "weighted", description=f"How the answer is chosen: {_STRATEGIES}."
    )

    verifier: str | None = None
    """The verifier of candidates: `inline` (the model wrote it), `soft` (what the probabilities of the
    model's tokens expect), judge (the model is asked about each answer), `fused` or `fused:A` (soft and A
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

    start: int = Field(2, ge=1, le=MOST_SAMPLES)
    """With early stopping: the candidates before the first check."""

    step: int | None = Field(None, ge=1, le=MOST_SAMPLES)
    """With early stopping: the candidates between two checks; null is n / 8."""

    budget_tokens: int | None = Field(None, ge=1)
    """The most tokens that all candidates may take together."""

    vote_temperature: float = Field(0.1, gt=0, le=1e6)
    """With strategy `weighted`: the softmax temperature of the votes. A small one lets high scores decide."""

    share: float = Field(0.25, ge=0, le=1)
    """With strategy `best-of-majority`: the share of the candidates that have to agree on an answer."""

    @property
    def stopping(self) -> Stopping:
        """How many candidates are drawn at first, how many between two looks, and when that ends."""
        start = self.n if self.all_samples else min(self.start, self.n)
        step = self.step or max(1, self.n // 8)
        return Stopping(self.stop, self.confidence, start, step, self.n, self.budget_tokens)

    @property
    def all_samples(self) -> bool:
        """Whether all ``n`` candidates are drawn, as those were that a calibration is fitted on."""
        return self.stop == "never" and self.budget_tokens is None

    @property
    def options(self) -> StrategyConfig:
        """The options of the strategy."""
        return StrategyConfig(self.vote_temperature, self.share)


class BestOfConfig(ChoosingConfig):
    """The object `best_of` of a request. Fields that are left out are as the gateway was started, which has
    such an object too."""

    temperature: Annotated[float | None, Temperature] = Field(None, ge=0, le=2)
    """The sampling temperature; it replaces the request's own."""

    abstain_below: float | None = Field(None, ge=0, le=1)
    """Refuse to answer if the probability of being right, or without a calibration the confidence, is below
    this number."""

    instruction: bool = True
    """Put a request for the answer format and a score behind the question."""

    content: Literal["text", "answer", "raw"] = "text"
    """The content of replies: the text without its score, the answer alone, without any tags, or everything.
    An answer in a `response_format` is always returned as it is."""

    refusal: Literal["field", "content"] = "field"
    """Where it says that no answer is sure enough: in OpenAI's field of that name, or for clients that do not
    show that also in the content."""

    samples: bool = False
    """Return all candidates besides the chosen answer."""

    progress: Literal["comments", "events"] = "comments"
    """How a stream tells of candidates: in comments, which every client skips, or in events named
    `candidate`."""

    timeout_s: float | None = Field(None, gt=0)
    """Seconds after which the answer is chosen from the candidates that are there."""


def _address(upstream: str) -> str:
    return checked_address(upstream, "http://127.0.0.1:8000/v1", "in $SELFVERIFY_SERVER_API_KEY")


class BackendConfig(Config):
    """The backend that writes the candidates: a model that is run here, or a server."""

    model: str | None = None
    """Run this model here: `builtin:NAME`, a folder, or a hub id."""

    upstream: Annotated[str | None, _taken_by(_address)] = None
    """Let the OpenAI-compatible server at this address answer instead; one without a path gets `/v1`."""

    judge: list[str] = []
    """With `model`: offer this verifier too, `judge:MODEL` or `ask:MODEL`; repeat it for several."""

    max_tokens: int = Field(256, ge=1)
    """With `model`: the most tokens of a candidate, for requests that do not say."""

    max_batch: int = Field(64, ge=1)
    """With `model`: the most candidates that are sampled together."""

    @model_validator(mode="after")
    def _one_backend(self) -> BackendConfig:
        if (self.model is None) == (self.upstream is None):
            raise ValueError("give either `model` (run one here) or `upstream` (an address of a server)")
        if self.upstream is not None and self.judge:
            raise ValueError("`judge` needs `model`; in front of a server say `verifier` judge:MODEL")
        return self


class ListeningConfig(Config):
    """Where the gateway listens, and how it stops."""

    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on."""

    port: int = Field(8080, ge=0, le=65535)
    """The port; 0 takes a free one."""

    grace: float = Field(30.0, ge=0.0)
    """The seconds that open requests get to finish when the gateway is stopped."""


class GatewayConfig(Config):
    """How a gateway treats requests."""

    best_of: BestOfConfig = BestOfConfig()
    """Defaults of requests that do not set these fields themselves."""

    calibration: Path | None = None
    """A file that `selfverify eval` fitted; it serves the requests that it was fitted for."""

    timeout: float = Field(120.0, ge=0.1)
    """The most seconds that a request may take."""

    api_key_file: Path | None = None
    """The file that holds the key that clients have to send, in a line of its own."""

    max_body_mb: float = Field(64.0, ge=0.001)
    """The largest request, in MiB."""

    max_megapixels: float = Field(20.0, ge=0.001)
    """The most megapixels that the images of a request have together. A model that runs here also decodes at
    most so many at a time, for all requests."""

    max_n: int = Field(64, ge=1, le=MOST_SAMPLES)
    """The most candidates that a request may ask for."""

    max_in_flight: int = Field(1024, ge=1)
    """The most requests that are worked on at once; others are told to come back."""

    @property
    def most_samples(self) -> int:
        """The most candidates that a request may ask for; never fewer than it gets by default."""
        return max(self.max_n, self.best_of.n)

    @property
    def most_bytes(self) -> int:
        """The bytes of the largest request."""
        return int(self.max_body_mb * 2**20)

    @property
    def most_pixels(self) -> int:
        """The most pixels that the images of a request have together."""
        return int(self.max_megapixels * 1e6)


class ServeConfig(Config):
    """A gateway: what writes, where it listens, and how it treats requests.

    A file of settings has these sections.
    """

    config: Path | None = Field(None, json_schema_extra={"settings_file": True})
    """A YAML file with the settings below; options that are typed win over it."""

    backend: BackendConfig
    listening: ListeningConfig = ListeningConfig()
    gateway: GatewayConfig = GatewayConfig()
    looking: VisualToolConfig = VisualToolConfig()
    """The limits of requests with a field `look`."""


class QuestionConfig(Config):
    """The question: a question with images, or a problem of a built-in task."""

    question: str | None = Field(None, json_schema_extra={"argument": True})
    """The question."""

    image: list[Path] = []
    """The file of an image; repeat the option for several images, in order."""

    task: str | None = None
    """Ask a problem of this built-in task instead, such as `digits-pick`."""

    index: int = Field(0, ge=0)
    """With `task`: the number of the problem in the test split."""

    save_image: Path | None = None
    """With `task`: write the problem's image to this file, print its question, and stop."""

    @model_validator(mode="after")
    def _one_question(self) -> QuestionConfig:
        if self.task is not None and (self.question is not None or self.image):
            raise ValueError("`task` brings its own question and image; leave yours out")
        if self.task is None and (not (self.question or "").strip() or self.save_image is not None):
            raise ValueError("a question is missing: give one, or take a task's problem with `task`")
        return self


class AnswererConfig(Config):
    """The model that answers: a model that is loaded here, or one behind a server."""

    model: str | None = None
    """The model that answers: `builtin:NAME`, a folder, or a hub id. By default `builtin:digits`."""

    server: str | None = None
    """Ask this OpenAI-compatible server instead; `model` is the model's name there."""

    timeout: float = Field(120.0, ge=0.1)
    """With `server`: the most seconds to wait."""


class DrawsConfig(Config):
    """How one candidate is sampled."""

    temperature: Annotated[float, Temperature] = Field(1.0, ge=0.0)
    """The sampling temperature; 0 always takes the likeliest token."""

    top_p: float = Field(0.99, ge=0.01, le=1.0)
    """Sample only from the likeliest tokens that together have this probability."""

    max_new_tokens: int = Field(256, ge=1)
    """The most tokens of a candidate."""

    seed: Seed = 0
    """The seed of the sampling."""

    turns: int = Field(1, ge=1, le=2)
    """2: the model re-examines every answer, and its second answer counts."""

    second_turn: str | None = None
    """With `turns` 2: the request to re-examine the answer, as in training. By default AdaPO's sentence."""


class CandidateConfig(ChoosingConfig):
    """How candidates are verified and chosen from."""

    n: int = Field(8, ge=1, le=1024)
    """The most candidates: sampled answers, of which one is chosen."""

    verifier: str = "soft"
    """The verifier of candidates: `inline` (the model wrote it), `soft` or `greedy` (what the
    probabilities of the model's tokens expect, or the likeliest score), `repeated:K` (the mean of K sampled
    scores), `turns:K` (how often K second turns keep the answer), `judge:MODEL` or `ask:MODEL`; `fused` or
    `fused:A` (soft + a·log-prob, with the weight of a calibration or this one)."""

    calibration: Path | None = None
    """A file that `selfverify eval` fitted. By default the one in the model's folder, if it fits."""


class SolveConfig(Config):
    """One question, who answers it, and how its answer is chosen."""

    asked: QuestionConfig
    answerer: AnswererConfig = AnswererConfig()
    choosing: CandidateConfig = CandidateConfig()
    drawing: DrawsConfig = DrawsConfig()
    looking: VisualToolConfig = VisualToolConfig()

    @model_validator(mode="after")
    def _together(self) -> SolveConfig:
        choosing, looking = self.choosing, self.looking
        if looking.look and self.drawing.turns == 2:
            raise ValueError("`turns` 2 and `look` are two ways of going on; take one")
        if self.answerer.server is None:
            if choosing.calibration is not None and not choosing.all_samples:
                raise ValueError(
                    "the calibration needs full sets of samples, which early stopping does not draw"
                )
            return self
        if looking.look and choosing.verifier not in ("soft", "inline"):
            raise ValueError("`look` with a `server` reads the scores that candidates write; no `verifier`")
        if self.drawing.turns == 2:
            raise ValueError("`turns` 2 needs a model that runs here, not a `server`")
        if choosing.n > MOST_SAMPLES:
            raise ValueError(f"`n`: a server is asked for at most {MOST_SAMPLES} candidates")
        return self
