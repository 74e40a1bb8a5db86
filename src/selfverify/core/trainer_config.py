"""Settings of the trainer: how long, how fast, how the loss is averaged, what is written down."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from selfverify.core.config import Config

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Rate = Annotated[float, Field(gt=0.0)]


class TrainerConfig(Config):
    """The training loop. It knows no method: methods give it per-token streams."""

    steps: int = Field(
        ge=1, description="Training steps; one step is one rollout of `groups_per_step` groups."
    )
    epochs: float | None = Field(
        None,
        gt=0,
        description="Passes over the training problems, or over those that `keep` keeps, where a task has so "
        "many and no more. A run ends after them, and after `steps` at the latest. null: after `steps`.",
    )
    groups_per_step: int = Field(24, ge=1, description="Problems sampled in one step.")
    keep: str | None = Field(
        None,
        min_length=1,
        description="A file that `selfverify data filter` wrote: only problems that it keeps are trained on. "
        "None: all of the task's.",
    )
    updates_per_rollout: int = Field(
        1, ge=1, description="Minibatches a rollout is split in; each is one optimizer update."
    )
    inner_epochs: int = Field(1, ge=1, description="Times training goes through each rollout.")
    micro_batch_groups: int = Field(
        8,
        ge=1,
        description="Groups forwarded at once; gradients accumulate, so memory depends on it, and the "
        "result only by rounding.",
    )
    micro_batch_tokens: int | None = Field(
        16_384,
        ge=1,
        description="Tokens forwarded at once, padding included. A longer group is cut into slices of "
        "rows of like lengths, each behind its own copy of the prompt; a longer row goes alone. Memory and "
        "time depend on it, and the result only by rounding. null cuts nothing.",
    )
    learning_rate: float = Field(1e-4, gt=0.0, description="Peak learning rate of AdamW.")
    schedule: Literal["constant", "linear", "cosine", "stable_decay"] = Field(
        "constant",
        description="What the learning rate does after the warm-up; linear and cosine fall to 0; "
        "stable_decay is constant, and falls over the last fifth (warmup-stable-decay, arXiv:2404.06395). "
        "Counted in updates: steps in which no group was left to learn from do not move it; updates that are "
        "skipped, as their gradient is not finite, do.",
    )
    warmup_steps: int = Field(
        0, ge=0, description="Steps over which the learning rate rises linearly from 0 to its peak."
    )
    warmup_share: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="The share of all steps over which the learning rate rises, instead of `warmup_steps`.",
    )
    optimizer: Literal["adamw", "adamw_8bit"] = Field(
        "adamw",
        description="`adamw_8bit` keeps its two moments in 8 bits (bitsandbytes): 2 bytes instead of 8 for "
        "each trained value, in tensors of 4,096 values or more.",
    )
    weight_decay: float = Field(0.0, ge=0.0, description="Decoupled weight decay of AdamW.")
    betas: tuple[Decay, Decay] = Field((0.9, 0.99), description="AdamW's two decay rates, each in [0, 1).")
    max_grad_norm: float = Field(
        1.0, gt=0.0, description="Gradients with a larger norm are scaled down to it."
    )
    channels: Literal["joint", "alternate", "separate"] = Field(
        "joint",
        description="How the channels of a method share the optimizer. `joint`: one gradient, one pair of "
        "moments. `alternate`: updates take turns, each learns the tokens of one channel, with moments and "
        "clipping of its own; a channel that shall learn from every group needs as many `inner_epochs` as "
        "there are channels. `separate`: in every update each channel has its own backward pass, moments, "
        "clipping and step.",
    )
    channel_rates: dict[str, Rate] = Field(
        {},
        description="Factors on the learning rate by channel (`{score: 0.5}`), with `channels: alternate` or "
        "`separate`; 1 for a channel that is not named.",
    )
    log_channels_every: int = Field(
        0,
        ge=0,
        description="Steps between measurements of each channel's gradient norm with `channels: joint`. They "
        "take another forward pass, and a backward pass per channel; 0 is never. The other modes log the "
        "norms in every step.",
    )
    clip_low: float = Field(0.2, ge=0.0, le=1.0, description="The ratio is clipped below at 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0.0, description="The ratio is clipped above at 1 + clip_high.")
    importance_cap: float | None = Field(
        2.0,
        ge=1.0,
        description="Cap (C) of the importance weight of a token that another engine has sampled: how much "
        "likelier it was under the trained model; null corrects nothing. No effect with `sampling.engine: "
        "own`.",
    )
    denominator: Literal["sequence", "channel", "batch", "trajectory"] = Field(
        "sequence",
        description="What a token's loss is divided by: the trained tokens of its trajectory (ADPO's and "
        "AdaPO's choice), of its channel within the trajectory, or of the whole batch. `trajectory` sums a "
        "trajectory's tokens and divides by the number of trajectories (VTS-V, SmartSnap).",
    )
    ratio: Literal["token", "trajectory"] = Field(
        "token",
        description="What the importance ratio is taken of and clipped: each token, or all trained tokens of "
        "a trajectory together (SmartSnap's Eq. 1, with `denominator: trajectory`). The first update after a "
        "rollout is the same with both. Where `channels` are learnt apart, each has its own.",
    )
    drop_truncated: bool = Field(
        False,
        description="Leave trajectories that were cut off out of the group before rewards are compared.",
    )
    drop_zero_advantage: bool = Field(
        True, description="Leave out (and count) groups whose channels all have advantage 0."
    )
    checkpoint_every: int = Field(
        50, ge=0, description="Steps between checkpoints; 0 writes one only at the end or on interruption."
    )
    keep_last: int = Field(2, ge=1, description="Checkpoints kept besides the best one.")
    rollout_log: Literal["auto", "never", "recent", "all"] = Field(
        "auto",
        description="Which steps' rollouts are kept on the disk: those behind the oldest checkpoint "
        "(`recent`), so that a killed run whose conversations cannot be repeated ends with the same bits, or "
        "`all`, for `selfverify train --replay`. `auto` is `recent` where the task's environment or a "
        "deadline of its conversations may change what is said, else `never`.",
    )
    best_metric: str | None = Field(
        None, description="Evaluation metric by which the best checkpoint is kept (higher is better)."
    )
    evaluate_every: int = Field(0, ge=0, description="Steps between evaluations during training; 0 is never.")
    log_every: int = Field(1, ge=1, description="Steps between lines of metrics.jsonl and on the terminal.")
    trackers: list[str] = Field(
        [], description="Trackers that get the metrics besides metrics.jsonl: `tensorboard`, `wandb`, ..."
    )
    time_limit_s: float | None = Field(
        None, gt=0.0, description="Stop with a checkpoint after this many seconds; None is no limit."
    )

    @model_validator(mode="after")
    def _check(self) -> TrainerConfig:
        faults = []
        if self.best_metric is not None and self.evaluate_every == 0:
            faults.append(
                f"best_metric={self.best_metric} needs evaluate_every >= 1: without evaluations there is "
                "nothing to choose the best checkpoint by"
            )
        if self.warmup_steps > self.steps:
            faults.append(
                f"warmup_steps={self.warmup_steps} is more than steps={self.steps}: the learning rate would "
                "never reach its peak"
            )
        if self.warmup_share is not None and self.warmup_steps:
            faults.append("warmup_share and warmup_steps both say how long the warm-up is; leave one out")
        if self.updates_per_rollout > self.groups_per_step:
            faults.append(
                f"updates_per_rollout={self.updates_per_rollout} is more than groups_per_step="
                f"{self.groups_per_step}: some minibatches would be empty"
            )
        if self.channel_rates and self.channels == "joint":
            faults.append(
                "channel_rates needs channels=alternate or channels=separate: with channels=joint they "
                "share one step"
            )
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def lasting(self, problems: int | None = None, epochs: float | None = None) -> TrainerConfig:
        """Return these settings with the steps that passes over so many problems take, and their warm-up.

        Args:
            problems: The number of problems in one pass; None leaves `steps` as it is.
            epochs: Passes; None means `epochs` of these settings, and with none there either `steps`.
        """
        epochs = self.epochs if epochs is None else epochs
        steps = self.steps
        if problems is not None and epochs is not None:
            steps = min(steps, max(math.ceil(epochs * problems / self.groups_per_step), 1))
        warmup = self.warmup_steps if self.warmup_share is None else math.floor(self.warmup_share * steps)
        changed = {
            "steps": steps,
            "epochs": None,
            "warmup_steps": min(warmup, steps),
            "warmup_share": None,
            "evaluate_every": min(self.evaluate_every, steps),
        }
        return self.model_copy(update=changed)
