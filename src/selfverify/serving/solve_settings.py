"""The settings of `selfverify solve`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from selfverify.core.sampling_settings import SamplingConfig
from selfverify.serving.best_of import MOST_SAMPLES, Choosing

_STRICT = ConfigDict(extra="forbid", frozen=True)


class QuestionSettings(BaseModel):
    """What is asked: a question with images, or a problem of a built-in task."""

    model_config = _STRICT

    question: str | None = Field(None, description="The question.", json_schema_extra={"argument": True})
    image: list[Path] = Field(default_factory=list, description="An image; repeat it for several, in order.")
    task: str | None = Field(None, description="Ask a problem of this built-in task instead.")
    index: int = Field(0, ge=0, description="With --task: the number of the problem in the test split.")
    save_image: Path | None = Field(
        None,
        description="With --task: write the problem's image to this file, print its question, and stop.",
    )

    @model_validator(mode="after")
    def _one_question(self) -> QuestionSettings:
        if self.task is not None and (self.question is not None or self.image):
            raise ValueError("--task brings its own question and image; leave yours out")
        if self.task is None and (not (self.question or "").strip() or self.save_image is not None):
            raise ValueError("a question is missing: give one, or take a task's problem with --task NAME")
        return self


class AnswererSettings(BaseModel):
    """What answers: a model that is loaded here, or one behind a server."""

    model_config = _STRICT

    model: str | None = Field(
        None, description="`builtin:NAME`, a folder, or a hub id; by default `builtin:digits`."
    )
    server: str | None = Field(
        None, description="Ask this OpenAI-compatible server instead; --model is the model's name there."
    )
    timeout: float = Field(120.0, ge=0.1, description="With --server: the longest wait, in seconds.")


class DrawingSettings(BaseModel):
    """How one candidate is sampled."""

    model_config = _STRICT

    temperature: float = Field(1.0, ge=0.0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(
        0.99, ge=0.01, le=1.0, description="Sample from the likeliest tokens that hold this probability."
    )
    max_new_tokens: int = Field(256, ge=1, description="The largest number of tokens of a candidate.")
    seed: int = Field(0, ge=0, description="Seed of the sampling.")
    turns: int = Field(
        1, ge=1, le=2, description="2: every answer is re-examined, and the second one counts."
    )
    second_turn: str | None = Field(
        None, description="The request to re-examine, as in training. By default AdaPO's sentence."
    )

    def sampling(self, n: int) -> SamplingConfig:
        """How ``n`` candidates are sampled."""
        return SamplingConfig(
            group_size=n,
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
        )


class CandidateSettings(Choosing):
    """How candidates are verified and chosen from."""

    n: int = Field(8, ge=1, le=1024, description="The largest number of candidates.")
    verifier: str = Field(
        "soft",
        description="What scores the candidates: `soft`, `greedy`, `inline`, `repeated:K`, `turns:K` (how "
        "often a second turn keeps the answer), `judge:MODEL` or `ask:MODEL`.",
    )
    calibration: Path | None = Field(
        None, description="A file of `selfverify calibrate`. By default the model folder's, if it fits."
    )

    @property
    def all_samples(self) -> bool:
        """Whether all ``n`` candidates are drawn, as those were that a calibration is fitted on."""
        return self.stop == "never" and self.budget_tokens is None


class SolveSettings(BaseModel):
    """One question, who answers it, and how its answer is chosen."""

    model_config = _STRICT

    asked: QuestionSettings
    answerer: AnswererSettings = AnswererSettings()
    choosing: CandidateSettings = CandidateSettings()
    drawing: DrawingSettings = DrawingSettings()

    @model_validator(mode="after")
    def _together(self) -> SolveSettings:
        choosing = self.choosing
        if self.answerer.server is None:
            if choosing.calibration is not None and not choosing.all_samples:
                raise ValueError(
                    f"{choosing.calibration} was fitted on full sets of samples, which early stopping does "
                    "not draw"
                )
            return self
        if self.drawing.turns == 2:
            raise ValueError("--turns 2 needs a model that runs here, not a --server")
        if choosing.n > MOST_SAMPLES:
            raise ValueError(f"-n: a server is asked for at most {MOST_SAMPLES} candidates")
        return self
