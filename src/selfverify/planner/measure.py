"""Runs one training step without weights, and measures the memory and the operations of each phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from selfverify.core.errors import ConfigError
from selfverify.core.learner_settings import LearnerConfig
from selfverify.core.trajectory import Group
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_method, make_task
from selfverify.learner.apart import ApartGradients
from selfverify.learner.channel_optimizer import LOW_PRECISION, ChannelOptimizer
from selfverify.learner.optimizer import make_optimizer
from selfverify.learner.passes import micro_batches
from selfverify.learner.streams import GroupStreams
from selfverify.learner.totals import UpdateTotals
from selfverify.learner.update import Updater
from selfverify.methods.base import Method
from selfverify.planner.dry_run import DryRun
from selfverify.planner.meter import Meter, Span
from selfverify.planner.plan_settings import PlanSettings
from selfverify.planner.shapes import Shapes, shapes_of
from selfverify.policy.chunked import prefill, scores_at_once
from selfverify.policy.encoding import Prompt
from selfverify.policy.families import FAMILIES
from selfverify.policy.features import image_features
from selfverify.policy.flash import assume_cuda
from selfverify.policy.loading import load_structure
from selfverify.policy.policy import Policy
from selfverify.policy.scores import READ_BATCH, score_tree


@dataclass(slots=True)
class Parameters:
    """Counts of parameters, and bytes of what sharding and decoding move.

    Args:
        total: The number of all parameters, those of an adapter included.
        trainable: The number of parameters that learn.
        weight_bytes: The bytes of all parameters.
        trainable_bytes: The bytes of the parameters that learn.
        read_bytes: The bytes that one decoding step reads: the decoder and the head.
        block_bytes: The bytes of the largest decoder layer.
        root_bytes: The bytes of the parameters outside the decoder's layers.
        dtype_bytes: The bytes of one weight.
    """

    total: int
    trainable: int
    weight_bytes: int
    trainable_bytes: int
    read_bytes: int
    block_bytes: int
    root_bytes: int
    dtype_bytes: int


@dataclass(slots=True)
class MeasuredPass:
    """One step on one GPU.

    Args:
        phases: Each phase's memory at its worst moment, and its operations in the whole step.
        parameters: Counts and bytes of the model's parameters.
        shapes: The prompts and responses that were forwarded.
        shared: Whether prompts are shared in the passes that learn.
        steps: The number of decoding steps; 0 when nothing is sampled.
        step_flops: The operations of the decoding step half way.
        cache_bytes: The bytes of keys and values that this decoding step reads.
        passes: The number of micro-batches that are forwarded and backwarded.
        apart: Whether channels keep gradients of their own.
    """

    phases: dict[str, Span]
    parameters: Parameters
    shapes: Shapes
    shared: bool
    steps: int = 0
    step_flops: int = 0
    cache_bytes: int = 0
    passes: int = 0
    apart: bool = False


def measure(recipe: Recipe, device: str, groups: int, lengths: PlanSettings) -> MeasuredPass:
    """Return what one step of ``recipe`` with ``groups`` problems takes; no weights are loaded.

    Raises:
        ConfigError: The model is not there, or of a family whose prompts are not shared.
        DataError: The task cannot make its problems.
    """
    dry, meter = DryRun(torch.device(device)), Meter()
    # The plan takes offloaded activations off a GPU itself, in `_learn`. On a CPU they stay in its memory.
    settings = recipe.policy.model_copy(update={"device": device, "activation_offload": False})
    with assume_cuda(), dry.running(), meter:
        with dry.weights(), meter.span("weights"):
            policy = Policy(load_structure(settings), settings)
        if not policy.loaded.family.shares_prompts:
            raise ConfigError(
                f"policy.path={recipe.policy.path}: models of type {policy.model.config.model_type!r} sample "
                "by transformers' own generate, which cannot be planned; vision-language families that can: "
                + ", ".join(FAMILIES)
            )
        if recipe.policy.gradient_checkpointing:
            policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dry.checkpointing)
        meter.vocabulary = policy.model.get_output_embeddings().weight.shape[0]
        method = make_method(recipe.method.name, **recipe.method.options)
        return _Step(recipe, policy, method, meter, shapes_of(recipe, policy, groups, lengths)).run()


class _Step:
    """Runs the phases in the order of a real step. Each leaves the tensors that a real phase leaves."""

    def __init__(self, recipe: Recipe, policy: Policy, method: Method, meter: Meter, shapes: Shapes) -> None:
        self.recipe, self.policy, self.method = recipe, policy, method
        self.meter, self.shapes = meter, shapes
        self.trainable = [p for p in policy.model.parameters() if p.requires_grad]
        self.apart = ApartGradients(lambda: self.trainable)
        mode = recipe.learner.channels
        self.moments = [""] if mode == "joint" else [*method.channels]
        """The channels that have moments of their own."""
        self.gradients = self.moments if mode == "apart" else []
        """The channels that have gradients of their own."""
        self.measured = MeasuredPass({}, parameters_of(policy), shapes, policy.shares_prefix is not False)
        self.measured.apart = mode == "apart"

    def run(self) -> MeasuredPass:
        """Run the step and return what was measured."""
        learner, meter = self.recipe.learner, self.meter
        policy = self.policy
        policy.model.eval()
        with meter.span("reference"):
            reference = policy.frozen_copy() if self.method.config.needs_reference else None
        for parameter in self.trainable:
            parameter.register_post_accumulate_grad_hook(lambda p: meter.relabel([p.grad], "gradients"))
        optimizer = self._optimizer(learner)
        with torch.no_grad():
            self._images()
            # A policy checks its very first batch against the plain forward, which no later step does.
            policy.logprobs(self.shapes.prompts[:1], [[[0, 0]]])
            if self._samples:
                if self.recipe.sampling.engine == "own":
                    self._sample()
                if self.method.config.reads_scores:
                    self._read_scores()
        groups = self._groups()
        self._learn(groups, reference)
        with self._phase("optimiser"):
            for channel in self.gradients or self.moments[:1]:
                if self.gradients:
                    self.apart.lend(channel)
                torch.nn.utils.clip_grad_norm_(self.trainable, learner.max_grad_norm)
                if optimizer is not None:
                    _step(optimizer, channel)
        return self.measured

    @contextmanager
    def _phase(self, name: str) -> Iterator[Span]:
        """A span that the result shows under ``name``."""
        with self.meter.span() as span:
            self.measured.phases[name] = span
            yield span

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

    def _images(self) -> None:
        """Encode the largest image with the vision tower; make features of the right size for the others."""
        policy, cache = self.policy, self.policy.cache
        images = {image.key: image for prompt in self.shapes.prompts for image in prompt.images}
        if cache is None or not images:
            return
        before = dict(self.meter.live)
        largest = max(images.values(), key=lambda image: image.placeholders)
        with self._phase("images") as span:
            features = image_features(policy.loaded, [largest], cache, self.recipe.policy.prefill_chunk)[
                largest.key
            ]
        factor = sum(image.placeholders for image in images.values()) / largest.placeholders
        span.flops = round(span.flops * factor)
        # The tower's memory grows with its patches. It gets all images at once, but on a CPU one by one.
        at_once = factor if policy.device.type != "cpu" else 1
        for label, held in span.peak.items():
            span.peak[label] = round(before.get(label, 0) + at_once * (held - before.get(label, 0)))
        for key, image in images.items():
            cache.put(key, features.new_empty(image.placeholders, features.shape[1]))
        self.meter.relabel((cache.get(key) for key in images), "caches")

    def _sample(self) -> None:
        sampling, prompts, forward = self.recipe.sampling, self.shapes.prompts, self.policy.forward
        b, g, steps = len(prompts), self.shapes.group_size, self.shapes.response_tokens
        with self._phase("sampling") as span:
            last, prefilled = prefill(forward, prompts)
            self.meter.relabel((x for kv in prefilled.prompt_keys.values() for x in kv), "caches")
            layout, voice = prefilled.to_grow(g, scores_at_once(forward)), self.policy.voice(sampling)
            tokens, draws = torch.zeros(b, g, 1, dtype=torch.long), torch.zeros(b, g)
            places = tokens.expand(forward.family.position_axes, b, g, 1)
            hidden = last[:, None].expand(b, g, -1)
            with self.meter.span() as one:
                voice.choose(hidden, draws)
                layout.place(tokens[..., 0], steps // 2, True)
                hidden = forward.grow(tokens, places, layout)[:, :, 0]
            self.meter.relabel((x for kv in layout.own_keys.values() for x in kv), "caches")
            layout.place(tokens[..., 0], steps - 1, True)
            voice.choose(forward.grow(tokens, places, layout)[:, :, 0], draws)
            # When rows have ended, the caches are copied without them: here without a fifth of the rows.
            layout.select(torch.arange(b), torch.arange(max(g * 4 // 5, 1)).expand(b, -1))
        span.flops -= 2 * one.flops
        prompt = sum(x.nbytes for kv in prefilled.prompt_keys.values() for x in kv)
        own = sum(x.nbytes for kv in layout.own_keys.values() for x in kv)
        self.measured.steps, self.measured.step_flops = steps, one.flops
        self.measured.cache_bytes = prompt + own // 2

    def _read_scores(self) -> None:
        prompts, tree = self.shapes.prompts[:READ_BATCH], score_tree(self.policy.tokenizer)
        paths = tree.paths()
        length = self.shapes.response_tokens + max(len(path) for path in paths) + 1
        rows = [[[0] * length] * (self.shapes.group_size * len(paths)) for _ in prompts]
        with self._phase("scores") as span:
            self.policy.hidden_states(prompts, self.policy.stack(rows))
        span.flops = round(span.flops * len(self.shapes.prompts) / len(prompts))

    @property
    def _samples(self) -> bool:
        """Whether the method samples. Of fine-tuning methods, only that of second turns does."""
        return self.method.objective == "surrogate" or "second_turn" in self.recipe.method.options

    def _groups(self) -> list[GroupStreams]:
        """Return the streams of every group. All tokens are trained."""
        if self._samples:
            lists = [[[0] * self.shapes.response_tokens] * self.shapes.group_size] * len(self.shapes.prompts)
        else:
            lists = [[t.tokens for t in group.trajectories] for group in self._demonstrations()]
            stated = self.shapes.stated.split(";")[0]
            self.shapes = self.measured.shapes = replace(
                self.shapes,
                group_size=max(len(rows) for rows in lists),
                response_tokens=max(len(row) for rows in lists for row in rows),
                stated=f"{stated}; responses: the task's demonstrations, at their longest",
            )
        kl = float(self.method.config.needs_reference)
        names = self.method.channels
        return [
            _streams(prompt, rows, kl, names) for prompt, rows in zip(self.shapes.prompts, lists, strict=True)
        ]

    def _demonstrations(self) -> Sequence[Group]:
        task = make_task(self.recipe.task.name, **self.recipe.task.options)
        problems = self.shapes.problems
        if not problems:
            raise ConfigError(
                f"--prompt-tokens, --image-tokens: {self.method.name} learns its task's demonstrations; "
                "their lengths cannot be given"
            )
        seeds = list(range(len(problems)))
        sampling = self.recipe.sampling
        return self.method.rollout(self.policy, task, problems, seeds, sampling).groups

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
        with self._phase("reference") if reference is not None else nullcontext(Span()) as span:
            updater.fix_logprobs(batch, passes)
        span.flops = round(span.flops * scale)
        policy.model.train()
        offloads = self.recipe.policy.activation_offload and policy.device.type == "cuda"
        hooks = _offloaded(self.trainable[0]) if offloads else nullcontext()
        with self._phase("update") as span, hooks:
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


def _streams(prompt: Prompt, tokens: list[list[int]], kl: float, channels: tuple[str, ...]) -> GroupStreams:
    lengths = torch.tensor([len(row) for row in tokens])
    shape = (len(tokens), int(lengths.max()))
    channel = torch.where(torch.arange(shape[1]) < lengths[:, None], 0, -1)
    ones = torch.ones(shape)
    logprobs = torch.zeros(shape)
    return GroupStreams(prompt, tokens, channel, ones, kl * ones, ones, logprobs, channels=channels)


def parameters_of(policy: Policy) -> Parameters:
    """Return counts and bytes of a policy's parameters."""
    model, decoder = policy.model, policy.loaded.family.backbone(policy.model)
    every = list(model.parameters())
    size = {id(p): p.nbytes for p in every}
    trainable = [p for p in every if p.requires_grad]
    head = model.get_output_embeddings().weight
    embeddings = model.get_input_embeddings().weight
    # Decoding reads a few rows of the embeddings, and all of them only where they are the head as well.
    read = {id(p) for p in decoder.parameters()} - {id(embeddings)} | {id(head)}
    layers = [sum(p.nbytes for p in layer.parameters()) for layer in getattr(decoder, "layers", [])]
    weights = sum(size.values())
    return Parameters(
        total=sum(p.numel() for p in every),
        trainable=sum(p.numel() for p in trainable),
        weight_bytes=weights,
        trainable_bytes=sum(size[id(p)] for p in trainable),
        read_bytes=sum(size[i] for i in read),
        block_bytes=max(layers, default=0),
        root_bytes=weights - sum(layers),
        dtype_bytes=model.dtype.itemsize,
    )
