"""Settings of an evaluation: which problems, how many samples, how they are drawn."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from selfverify.core.settings import Config, Seed


class EvaluationConfig(Config):
    """How a trained or untrained model is measured."""

    problems: int | None = Field(
        512,
        ge=1,
        description="The number of problems to evaluate: the first ones of the split, fewer where a data "
        "file has fewer. null means all of a data file.",
    )
    samples: int = Field(
        8, ge=1, description="The number of trajectories per problem: the N of best-of-N and majority@N."
    )
    temperature: float = Field(1.0, ge=0.0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="Sample from the likeliest tokens that together hold this probability.",
    )
    split: Literal["validation", "test"] = Field("test", description="The split of held-out problems to use.")
    batch_problems: int = Field(
        64,
        ge=1,
        description="The number of problems sampled at once. Memory depends on it, and what is sampled "
        "only by the rounding of sums.",
    )
    on_bad: Literal["refuse", "skip"] = Field(
        "refuse",
        description="Stop at a problem that cannot be made or encoded (its image is damaged), or leave it "
        "out, named and counted.",
    )
    extractor: str | None = Field(
        None,
        min_length=1,
        description="The path of a model that looks for the answer in responses which the task's rules "
        "cannot read, or `self` for the evaluated model. null means the rules alone. Stored samples say "
        "who read them.",
    )
    score: Literal["soft", "greedy", "sampled"] = Field(
        "soft",
        description="How all figures read the model's own score: its expectation, the likeliest one, or the "
        "one that was written, as in the paper. All three are stored, so that the figures can be had again.",
    )
    second_turn: str | None = Field(
        None,
        min_length=1,
        description="The request that the model gets in a second turn, after its answer; then the second "
        "answer counts. null means one turn.",
    )
    retries: int = Field(
        2,
        ge=0,
        description="How often a conversation is held again whose episode failed, as where an environment "
        "was lost. One that is lost every time counts as wrong; `conversations.lost` is their share.",
    )
    seed: Seed = Field(
        1000,
        description="The seed of the evaluation's sampling; the recipe's own seed does not affect it.",
    )
