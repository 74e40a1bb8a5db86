"""The learning of a step without weights: streams, the passes of an update, the optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch

from selfverify.core.errors import ConfigError
from selfverify.core.learner_settings import LearnerConfig
from selfverify.core.trajectory import Trajectory
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_task
from selfverify.learner.apart import ApartGradients
from selfverify.learner.channel_optimizer import LOW_PRECISION, ChannelOptimizer
from selfverify.learner.optimizer import make_optimizer
from selfverify.learner.passes import micro_batches
from selfverify.learner.streams import GroupStreams
from selfverify.learner.totals import UpdateTotals
from selfverify.learner.update import Updater
from selfverify.methods.base import Method
from selfverify.planner.conversation import Conversation, samples
from selfverify.planner.measured import MeasuredPass
from selfverify.planner.meter import Meter, Span
from selfverify.policy.continuations import Continuation
from selfverify.policy.encoding import Encoder, Prompt
from selfverify.policy.families import ImageInput
from selfverify.policy.policy import Policy


@dataclass(slots=True)
class _Row:
    """What follows a prompt: tokens, which of them learn, the images among the others."""

    tokens: list[int]
    trained: list[bool]
    images: list[ImageInput] = field(default_factory=list)


class Learning:
    """Runs the phases that learn. Each leaves the tensors that a real phase leaves.

    Args:
        recipe: The recipe.
        policy: The policy that learns.
        method: The recipe's method.
        meter: Counts what is held.
        measured: Gets what was measured.
    """

    def __init__(
        self, recipe: Recipe, policy: Policy, method: Method, meter: Meter, measured: MeasuredPass
    ) -> None:
        self.recipe, self.policy, self.method = recipe, policy, method
        self.meter, self.measured = meter, measured
        self.trainable = [p for p in policy.model.parameters() if p.requires_grad]
        self.apart = ApartGradients(lambda: self.trainable)
        mode = recipe.learner.channels
        self.moments = [""] if mode == "joint" else [*method.channels]
        """The channels that have moments of their own."""
        self.gradients = self.moments if mode == "apart" else []
        """The channels that have gradients of their own."""
        measured.apart = mode == "apart"
        for parameter in self.trainable:
            parameter.register_post_accumulate_grad_hook(lambda p: meter.relabel([p.grad], "gradients"))
        self.optimizer = self._optimizer(recipe.learner)

    def run(self, reference: Policy | None) -> None:
        """Learn from the step's groups, and let the optimiser step."""
        if self.policy.device.type == "cpu" and self.measured.reply_pixels:
            # The learner preprocesses all that the environments have shown before its first pass.
            self.measured.keep(self.policy, self.meter, self.measured.reply_pixels)
        self._learn(self._groups(), reference)
        with self.measured.phase(self.meter, "optimiser"):
            for channel in self.gradients or self.moments[:1]:
                if self.gradients:
                    self.apart.lend(channel)
                torch.nn.utils.clip_grad_norm_(self.trainable, self.recipe.learner.max_grad_norm)
                if self.optimizer is not None:
                    _step(self.optimizer, channel)

    def _optimizer(self, learner: LearnerConfig) -> torch.optim.Optimizer | None:
        """Return the learner's optimiser after a first step, which makes its state; None with 8 bits."""
        masters = self.recipe.policy.master_weights
        if learner.optimizer == "adamw_8bit":
            with self.meter.span("optimiser"):
                self._moments = [_eight_bits(p) for p in self.trainable for _ in self.moments]
                self._masters = [p.float() for p in self.trainable if masters and p.dtype in LOW_PRECISION]
            return None
        optimizer = make_optimizer(learner, self.policy.model.named_parameters(), masters)
        for parameter in self.trainable:
            parameter.grad = torch.zeros_like(parameter)
        with self.meter.span("optimiser"):
            for channel in self.moments:
                _step(optimizer, channel)
        optimizer.zero_grad()
        return optimizer

    def _groups(self) -> list[GroupStreams]:
        """Return the streams of every group, in which all that the policy says is trained."""
        shapes = self.measured.shapes
        if samples(self.recipe, self.method):
            talk = shapes.conversation
            lists = [
                [_Row(talk.tokens, talk.trained, talk.images(f"{b}/{g}")) for g in range(shapes.group_size)]
                for b in range(len(shapes.prompts))
            ]
        else:
            lists = self._demonstrations()
            stated = shapes.stated.split(";")[0]
            longest = max(len(row.tokens) for rows in lists for row in rows)
            self.measured.shapes = shapes = replace(
                shapes,
                group_size=max(len(rows) for rows in lists),
                conversation=Conversation(1, longest, Continuation([])),
                stated=f"{stated}; responses: the task's demonstrations, at their longest",
            )
        kl = float(self.method.config.needs_reference)
        names = self.method.channels
        return [_streams(prompt, rows, kl, names) for prompt, rows in zip(shapes.prompts, lists, strict=True)]

    def _demonstrations(self) -> list[list[_Row]]:
        task = make_task(self.recipe.task.name, **self.recipe.task.options)
        problems = self.measured.shapes.problems
        if not problems:
            raise ConfigError(
                f"--prompt-tokens, --image-tokens: {self.method.name} learns its task's demonstrations; "
                "their lengths cannot be given"
            )
        seeds, sampling = list(range(len(problems))), self.recipe.sampling
        made = self.method.rollout(self.policy, task, problems, seeds, sampling)
        encoder = self.policy.encoder
        return [[_demonstrated(t, encoder) for t in group.trajectories] for group in made.groups]

    def _backward(
        self, loss: torch.Tensor, last: bool, channel: str | None = None, more: bool = False
    ) -> None:
        """Do what `Parallel.backward` does, in one process."""
        with nullcontext() if channel is None else self.apart.adding(channel):
            loss.backward(retain_graph=more)

    def _learn(self, groups: Sequence[GroupStreams], reference: Policy | None) -> None:
        """Learn from the longest groups of one update, and scale their operations up to the step."""
        learner, policy = self.recipe.learner, self.policy
        per_update = -(-len(groups) // learner.updates_per_rollout)
        size = min(learner.micro_batch_groups, per_update)
        [every] = micro_batches(groups, len(groups))
        batch = [groups[part.group] for part in every.slices[-size:]]
        scale = _tokens(groups) / _tokens(batch)
        alone: Any = SimpleNamespace(
            policy=policy,
            reference=reference,
            autocast=nullcontext,
            one_pass=lambda last: nullcontext(),
            backward=self._backward,
        )
        updater = Updater(alone, learner, self.method.objective, self.recipe.sampling.temperature)
        passes = updater.passes(batch)
        with (
            self.measured.phase(self.meter, "reference")
            if reference is not None
            else nullcontext(Span()) as span
        ):
            updater.fix_logprobs(batch, passes)
        span.flops = round(span.flops * scale)
        policy.model.train()
        offloads = self.recipe.policy.activation_offload and policy.device.type == "cuda"
        hooks = _offloaded(self.trainable[0]) if offloads else nullcontext()
        with self.measured.phase(self.meter, "update") as span, hooks:
            with self.meter.span() as first:
                updater.gradient(batch, passes, UpdateTotals(), apart=self.gradients)
            if per_update > size:  # a second micro-batch finds the gradients of the first one
                updater.gradient(batch, passes, UpdateTotals(), apart=self.gradients)
        span.flops = round(first.flops * scale * learner.inner_epochs)
        self.measured.passes = -(-len(groups) // size) * len(passes) * learner.inner_epochs


def _step(optimizer: torch.optim.Optimizer, channel: str) -> None:
    if isinstance(optimizer, ChannelOptimizer):
        optimizer.take_turn(channel)
    optimizer.step()


def _eight_bits(parameter: torch.Tensor) -> torch.Tensor:
    """Return a tensor as large as AdamW8bit's two moments: a byte per value and a float per 256 values, or
    float32 for small tensors."""
    count = parameter.numel()
    size = 8 * count if count < 4096 else 2 * (count + 4 * -(-count // 256))
    return parameter.new_empty(size, dtype=torch.uint8)


def _offloaded(anchor: torch.Tensor) -> Any:
    """Return hooks that take what autograd saves off the device, and bring it back when it is wanted."""

    def pack(x: torch.Tensor) -> Any:
        return (x.shape, x.dtype) if x.is_meta else x

    def unpack(kept: Any) -> torch.Tensor:
        return anchor.new_empty(kept[0], dtype=kept[1]) if isinstance(kept, tuple) else kept

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _tokens(groups: Sequence[GroupStreams]) -> int:
    return sum(len(group.prompt.ids) + group.channel_gr.numel() for group in groups)


def _demonstrated(trajectory: Trajectory, encoder: Encoder) -> _Row:
    segments = trajectory.segments
    trained = [s.author == "policy" for s in segments for _ in s.tokens]
    images = [encoder.image(image, "planned", True) for s in segments for image in s.images]
    return _Row(trajectory.tokens, trained, images)


def _streams(prompt: Prompt, rows: Sequence[_Row], kl: float, channels: tuple[str, ...]) -> GroupStreams:
    shape = (len(rows), max(len(row.tokens) for row in rows))
    channel = torch.full(shape, -1)
    for number, row in enumerate(rows):
        channel[number, : len(row.tokens)] = torch.where(torch.tensor(row.trained), 0, -1)
    ones, tokens = torch.ones(shape), [row.tokens for row in rows]
    streams = GroupStreams(prompt, tokens, channel, ones, kl * ones, ones, 0 * ones, channels=channels)
    images = [row.images for row in rows]
    return replace(streams, images=images if any(images) else [])
