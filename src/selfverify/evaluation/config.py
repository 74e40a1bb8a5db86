"""Settings of an evaluation: which problems, how many samples, how they are drawn."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class EvaluationConfig(BaseModel):
    """How a trained or untrained model is measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    problems: int | None = Field(
        512,
        ge=1,
        description="Problems to evaluate: the first ones of the split; less where a data file ends before. "
        "null: all of a data file.",
    )
    samples: int = Field(8, ge=1, description="Trajectories per problem: the N of best-of-N and majority@N.")
    temperature: float = Field(1.0, ge=0.0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(
        1.0, gt=0.0, le=1.0, description="Nucleus: sample from the likeliest tokens that hold this mass."
    )
    split: Literal["validation", "test"] = Field("test", description="Which held-out problems to use.")
    batch_problems: int = Field(64, ge=1, description="Problems sampled at once; only memory depends on it.")
    on_bad: Literal["refuse", "skip"] = Field(
        "refuse",
        description="Stop at a problem that cannot be made or encoded (its image is damaged), or leave it "
        "out, named and counted.",
    )
    extractor: str | None = Field(
        None,
        min_length=1,
        description="A model that looks for the answer in responses which the task's rules cannot read: its "
        "path, or `self`. Stored samples say who read them. None: the rules alone.",
    )
    second_turn: str | None = Field(
        None,
        min_length=1,
        description="What the model is asked in a second turn, behind its answer; the second answer then is "
        "what counts. None: one turn.",
    )
    seed: int = Field(1000, ge=0, description="Seed of the sampling, apart from the recipe's own.")
