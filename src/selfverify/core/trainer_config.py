"""Configs of the trainer: how long, how fast, how the loss is averaged, what is written down."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from selfverify.core.config import Config

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]
Rate = Annotated[float, Field(gt=0.0)]


class OptimConfig(Config):
    """The optimizer, its learning rate over the run, and how channels share it."""

    name: Literal["adamw", "adamw_8bit"] = "adamw"
    """`adamw_8bit` keeps its two moments in 8 bits (bitsandbytes): 2 bytes instead of 8 for each trained
    value, in tensors of 4,096 values or more."""

    learning_rate: float = Field(1e-4, gt=0.0)
    """Peak learning rate of AdamW."""

    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up; linear and cosine fall to 0. Counted in updates: steps
    in which no group was left to learn from do not move it; updates that are skipped, as their gradient is
    not finite, do."""

    warmup: int | float = Field(0, ge=0)
    """Steps over which the learning rate rises linearly from 0 to its peak; below 1, their share of all
    steps."""

    weight_decay: float = Field(0.0, ge=0.0)
    """Decoupled weight decay of AdamW."""

    betas: tuple[Decay, Decay] = (0.9, 0.99)
    """AdamW's two decay rates, each in [0, 1)."""

    max_grad_norm: float = Field(1.0, gt=0.0)
    """Gradients with a larger norm are scaled down to it."""

    channels: Literal["joint", "alternate", "separate"] = "joint"
    """How the channels of a method share the optimizer. `joint`: one gradient, one pair of moments.
    `alternate`: updates take turns, each learns the tokens of one channel, with moments and clipping of its
    own; a channel that shall learn from every group needs as many `batch.inner_epochs` as there are channels.
    `separate`: in every update each channel has its own backward pass, moments, clipping and step."""

    channel_rates: dict[str, Rate] = {}
    """Factors on the learning rate by channel (`{score: 0.5}`), with `channels: alternate` or `separate`; 1
    for a channel that is not named."""

    @model_validator(mode="after")
    def _check(self) -> OptimConfig:
        if self.warmup > 1 and self.warmup % 1:
            raise ValueError(f"warmup={self.warmup:g} is neither a share below 1 nor a whole number of steps")
        if self.channel_rates and self.channels == "joint":
            raise ValueError(
                "channel_rates needs channels=alternate or channels=separate: with channels=joint they "
                "share one step"
            )
        return self


class LossConfig(Config):
    """The loss of each token, and the choice of tokens that have one."""

    denominator: Literal["sequence", "channel", "batch", "trajectory"] = "sequence"
    """What a token's loss is divided by: the trained tokens of its trajectory (ADPO's and AdaPO's choice), of
    its channel within the trajectory, or of the whole batch. `trajectory` sums a trajectory's tokens and
    divides by the number of trajectories (VTS-V, SmartSnap)."""

    ratio: Literal["token", "trajectory"] = "token"
    """What the importance ratio is taken of and clipped: each token, or all trained tokens of a trajectory
    together (SmartSnap's Eq. 1, with `denominator: trajectory`). The first update after a rollout is the same
    with both. Where `optim.channels` are learnt apart, each has its own."""

    clip_low: float = Field(0.2, ge=0.0, le=1.0)
    """The ratio is clipped below at 1 - clip_low."""

    clip_high: float = Field(0.2, ge=0.0)
    """The ratio is clipped above at 1 + clip_high."""

    importance_cap: float | None = Field(2.0, ge=1.0)
    """Cap (C) of the importance weight of a token that another engine has sampled: how much likelier it was
    under the trained model; null corrects nothing. No effect with `sampling.engine: own`."""

    drop_truncated: bool = False
    """Leave trajectories that were cut off out of the group before rewards are compared."""

    drop_zero_advantage: bool = True
    """Leave out (and count) groups whose channels all have advantage 0."""


class BatchConfig(Config):
    """How a rollout is split into updates, and an update into what is forwarded at once."""

    updates_per_rollout: int = Field(1, ge=1)
    """Minibatches a rollout is split in; each is one optimizer update."""

    inner_epochs: int = Field(1, ge=1)
    """Times training goes through each rollout."""

    micro_batch_groups: int = Field(8, ge=1)
    """Groups forwarded at once; gradients accumulate, so memory depends on it, and the result only by
    rounding."""

    micro_batch_tokens: int | None = Field(16_384, ge=1)
    """Tokens forwarded at once, padding included. A longer group is cut into slices of rows of like lengths,
    each behind its own copy of the prompt; a longer row goes alone. Memory and time depend on it, and the
    result only by rounding. null cuts nothing."""


class CheckpointConfig(Config):
    """Which checkpoints and rollouts stay on the disk. Neither samples nor weights depend on it."""

    every: int = Field(50, ge=0)
    """Steps between checkpoints; 0 writes one only at the end or on interruption."""

    keep_last: int = Field(2, ge=1)
    """Checkpoints kept besides the best one."""

    best_metric: str | None = None
    """Evaluation metric by which the best checkpoint is kept (higher is better)."""

    rollout_log: Literal["auto", "never", "recent", "all"] = "auto"
    """Which steps' rollouts are kept on the disk: those behind the oldest checkpoint (`recent`), so that a
    killed run whose conversations cannot be repeated ends with the same bits, or `all`, so that another run
    can replay them. `auto` is `recent` where the task's environment or a deadline of its conversations may
    change what is said, else `never`."""


class LogConfig(Config):
    """Measurements and messages during training. Neither samples nor weights depend on it."""

    every: int = Field(1, ge=1)
    """Steps between lines of metrics.jsonl and on the terminal."""

    channels_every: int = Field(0, ge=0)
    """Steps between measurements of each channel's gradient norm with `optim.channels: joint`. They take
    another forward pass, and a backward pass per channel; 0 is never. The other modes log the norms in every
    step."""

    evaluate_every: int = Field(0, ge=0)
    """Steps between evaluations during training; 0 is never."""

    trackers: list[str] = []
    """Trackers that get the metrics besides metrics.jsonl: `tensorboard`, `wandb`, ..."""


class TrainerConfig(Config):
    """The training loop. It knows no method: methods give it per-token streams."""

    steps: int = Field(ge=1)
    """Training steps; one step is one rollout of `groups_per_step` groups."""

    epochs: float | None = Field(None, gt=0)
    """Passes over the training problems, or over those that `keep` keeps, where a task has so many and no
    more. A run ends after them, and after `steps` at the latest. null: after `steps`."""

    groups_per_step: int = Field(24, ge=1)
    """Problems sampled in one step."""

    keep: str | None = Field(None, min_length=1)
    """A file that `selfverify data filter` wrote: only problems that it keeps are trained on. None: all of
    the task's."""

    time_limit_s: float | None = Field(None, gt=0.0)
    """Stop with a checkpoint after this many seconds; None is no limit."""

    process_timeout_s: float = Field(7200.0, gt=0.0)
    """With several processes, the longest time that one waits for what another tells, such as its rollouts,
    in seconds; the run then ends with an error."""

    optim: OptimConfig = OptimConfig()
    """The optimizer."""

    loss: LossConfig = LossConfig()
    """The loss of each token."""

    batch: BatchConfig = BatchConfig()
    """Updates and what they forward."""

    checkpoint: CheckpointConfig = CheckpointConfig()
    """What stays on the disk."""

    log: LogConfig = LogConfig()
    """What is measured and told."""

    @model_validator(mode="after")
    def _check(self) -> TrainerConfig:
        faults = []
        if self.checkpoint.best_metric is not None and self.log.evaluate_every == 0:
            faults.append(
                f"checkpoint.best_metric={self.checkpoint.best_metric} needs log.evaluate_every >= 1: "
                "without evaluations there is nothing to choose the best checkpoint by"
            )
        if self.optim.warmup > self.steps:
            faults.append(
                f"optim.warmup={self.optim.warmup:g} is more than steps={self.steps}: the learning rate "
                "would never reach its peak"
            )
        if self.batch.updates_per_rollout > self.groups_per_step:
            faults.append(
                f"batch.updates_per_rollout={self.batch.updates_per_rollout} is more than groups_per_step="
                f"{self.groups_per_step}: some minibatches would be empty"
            )
        if faults:
            raise ValueError("\n".join(faults))
        return self

    @property
    def warmup_steps(self) -> int:
        """The steps of the warm-up, at most all."""
        warmup = self.optim.warmup
        return min(math.floor(warmup if warmup >= 1 else warmup * self.steps), self.steps)

    def lasting(self, problems: int, epochs: float | None = None) -> TrainerConfig:
        """Return this config with the steps that passes over so many problems take, at most its own.

        Args:
            problems: The number of problems in one pass.
            epochs: Passes; None means `epochs` of this config, and with none there either `steps`.
        """
        epochs = self.epochs if epochs is None else epochs
        steps = self.steps
        if epochs is not None:
            steps = min(steps, max(math.ceil(epochs * problems / self.groups_per_step), 1))
        every = min(self.log.evaluate_every, steps)
        log = self.log.model_copy(update={"evaluate_every": every})
        return self.model_copy(update={"steps": steps, "epochs": None, "log": log})
