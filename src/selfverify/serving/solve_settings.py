"""The settings of `selfverify solve`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from selfverify.core.config import CommandConfig, SamplingConfig, Seed
from selfverify.serving.best_of import MOST_SAMPLES, Choosing
from selfverify.visual.config import VisualToolConfig


class QuestionConfig(CommandConfig):
    """What is asked: a question with images, or a problem of a built-in task."""

    question: str | None = Field(None, json_schema_extra={"argument": True})
    """The question."""

    image: list[Path] = []
    """The file of an image; repeat the option for several images, in order."""

    task: str | None = None
    """Ask a problem of this built-in task instead, such as `digits-pick`."""

    index: int = Field(0, ge=0)
    """With --task: the number of the problem in the test split."""

    save_image: Path | None = None
    """With --task: write the problem's image to this file, print its question, and stop."""

    @model_validator(mode="after")
    def _one_question(self) -> QuestionConfig:
        if self.task is not None and (self.question is not None or self.image):
            raise ValueError("--task brings its own question and image; leave yours out")
        if self.task is None and (not (self.question or "").strip() or self.save_image is not None):
            raise ValueError("a question is missing: give one, or take a task's problem with --task NAME")
        return self


class AnswererConfig(CommandConfig):
    """What answers: a model that is loaded here, or one behind a server."""

    model: str | None = None
    """The model that answers: `builtin:NAME`, a folder, or a hub id. By default `builtin:digits`."""

    server: str | None = None
    """Ask this OpenAI-compatible server instead; --model is the model's name there."""

    timeout: float = Field(120.0, ge=0.1)
    """With --server: the most seconds to wait."""


class DrawsConfig(CommandConfig):
    """How one candidate is sampled."""

    temperature: float = Field(1.0, ge=0.0)
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
    """With --turns 2: the request to re-examine the answer, as in training. By default AdaPO's sentence."""

    def sampling(self, n: int) -> SamplingConfig:
        """How ``n`` candidates are sampled."""
        return SamplingConfig(
            group_size=n,
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
        )


class CandidateConfig(Choosing):
    """How candidates are verified and chosen from."""

    n: int = Field(8, ge=1, le=1024)
    """The most candidates: sampled answers, of which one is chosen."""

    verifier: str = "soft"
    """What gives each candidate a score: `inline` (the model wrote it), `soft` or `greedy` (what the
    probabilities of the model's tokens expect, or the likeliest score), `repeated:K` (the mean of K sampled
    scores), `turns:K` (how often K second turns keep the answer), `judge:MODEL` or `ask:MODEL`; `fused` or
    `fused:A` (soft + a·log-prob, with the weight of a calibration or this one)."""

    calibration: Path | None = None
    """A file of `selfverify eval --calibrate`. By default the one in the model's folder, if it fits."""

    @property
    def all_samples(self) -> bool:
        """Whether all ``n`` candidates are drawn, as those were that a calibration is fitted on."""
        return self.stop == "never" and self.budget_tokens is None


class SolveConfig(CommandConfig):
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
            raise ValueError("--turns 2 and --look are two ways of going on; take one")
        if self.answerer.server is None:
            if choosing.calibration is not None and not choosing.all_samples:
                raise ValueError(
                    f"{choosing.calibration} was fitted on full sets of samples, which early stopping does "
                    "not draw"
                )
            return self
        if looking.look and (choosing.verifier not in ("soft", "inline") or not choosing.all_samples):
            raise ValueError("--look with a --server draws all candidates and reads the scores they write")
        if self.drawing.turns == 2:
            raise ValueError("--turns 2 needs a model that runs here, not a --server")
        if choosing.n > MOST_SAMPLES:
            raise ValueError(f"-n: a server is asked for at most {MOST_SAMPLES} candidates")
        return self
