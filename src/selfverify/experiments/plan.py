"""The memory and work of one step of a recipe: memory per GPU, tokens and operations.

`PlannedStep` runs one training step without weights, and counts the memory and the operations of each phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from selfverify.core.config import EngineConfig
from selfverify.core.errors import ConfigError
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Trajectory
from selfverify.experiments.dry_run import CHECKPOINTING, DryRun, Host, Lengths, Meter, Span, samples
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_method, make_task
from selfverify.policy.encoding import Encoder, Prompt
from selfverify.policy.families import ImageInput
from selfverify.policy.features import image_features
from selfverify.policy.forward import prefill, scores_at_once
from selfverify.policy.loading import load_structure, resolve
from selfverify.policy.packing import SharedLayout
from selfverify.policy.policy import Policy
from selfverify.policy.scores import READ_BATCH, score_tree
from selfverify.trainer.batch import TokenStreams
from selfverify.trainer.loss import LossComputer, UpdateMetrics, micro_batches
from selfverify.trainer.optim import (
    LOW_PRECISION,
    ApartGradients,
    ChannelOptimizer,
    make_optimizer,
    sum_in_float32,
)

ENDED = 5
"""Of so many conversations one has ended when the others' keys are copied without it."""


@dataclass(frozen=True, slots=True)
class _Row:
    """The rows behind a prompt: tokens, which of them learn, the images among the others."""

    tokens: list[int]
    trained: list[bool]
    images: list[ImageInput] = field(default_factory=list)


class PlannedStep:
    """One step on one GPU, run phase by phase; each leaves the tensors that a real phase leaves.

    Args:
        recipe: The recipe.
        groups: The number of problems.
        heard: The tokens of what an environment says at a time; None where that is not known.

    Raises:
        ConfigError: The model is not there, or samples without sharing prompts.
        DataError: The task cannot make its problems.
    """

    def __init__(self, recipe: Recipe, groups: int, heard: int | None) -> None:
        self.recipe, self.method = recipe, make_method(recipe.method.name, **recipe.method.options)
        self.meter, self.phases, self.flops = Meter(), dict[str, Span](), dict[str, float]()
        # Offloaded activations are taken away in `_learn`: on a CPU they would stay in its memory.
        settings = recipe.policy.model_copy(update={"device": "cpu", "activation_offload": False})
        with torch.device("meta"):
            loaded = load_structure(settings.model_copy(update={"device": "meta"}))
        with DryRun(), Host(), self.meter:
            self.policy = policy = Policy(loaded, settings)
            self.meter.relabel((*policy.model.parameters(), *policy.model.buffers()), "weights")
            if settings.gradient_checkpointing:
                policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
            self.meter.vocabulary = policy.model.get_output_embeddings().weight.shape[0]
            self.lengths = Lengths.of(recipe, self.method, policy, groups, heard)
            self._run()

    def _run(self) -> None:
        policy, method, recipe = self.policy, self.method, self.recipe
        policy.model.eval()
        # Once a run, and before the reference is made, as in training: no step pays for it.
        policy.check_gradients()
        with self.meter.span("reference"):
            reference = policy.frozen_copy() if method.config.needs_reference else None
        self.trainable = [p for p in policy.model.parameters() if p.requires_grad]
        sum_in_float32(self.trainable)
        for parameter in self.trainable:
            parameter.register_post_accumulate_grad_hook(lambda p: self.meter.relabel([p.grad], "gradients"))
        self.apart = ApartGradients(lambda: self.trainable)
        self.moments = [""] if recipe.learner.optim.channels == "joint" else [*method.channels]
        """The channels that have moments of their own."""
        self.gradients = self.moments if recipe.learner.optim.channels == "separate" else []
        """The channels that have gradients of their own."""
        self.optimizer = self._optimizer(recipe.learner)
        with torch.no_grad():
            self._see()
            if samples(recipe, method) and recipe.sampling.engine == "own":
                self._sample()
            if method.config.reads_scores:
                self._read_scores()
        self._learn(self._groups(), reference)
        with self._phase("optimiser"):
            for channel in self.gradients or self.moments[:1]:
                if self.gradients:
                    self.apart.lend(channel)
                torch.nn.utils.clip_grad_norm_(self.trainable, recipe.learner.optim.max_grad_norm)
                if self.optimizer is not None:
                    _step(self.optimizer, channel)

    @contextmanager
    def _phase(self, name: str) -> Iterator[Span]:
        with self.meter.span() as span:
            self.phases[name] = span
            yield span
        self.flops[name] = span.flops

    def _see(self) -> None:
        """Encode the images of the drawn problems one by one; the others' features are made of their size."""
        policy, cache = self.policy, self.policy.cache
        images = {image.key: image for prompt in self.lengths.prompts for image in prompt.images}
        if cache is None or not images:
            return
        drawn = [i for prompt in self.lengths.prompts[: len(self.lengths.problems)] for i in prompt.images]
        with self._phase("images"):
            features = image_features(policy.loaded, drawn, cache, policy.config.prefill_chunk)
        self.flops["images"] *= len(images) / len(drawn)
        like = next(iter(features.values()))
        for key, image in images.items():
            cache.put(key, like.new_empty(image.placeholders, like.shape[1]))
        self.meter.relabel((cache.get(key) for key in images), "caches")

    def _sample(self) -> None:
        """Read the prompts, and draw one token half way and one at the end, where most keys are kept."""
        policy, lengths, meter = self.policy, self.lengths, self.meter
        if policy.shares_prefix is False or not policy.loaded.family.shares_prompts:
            raise ConfigError(
                f"policy.path={policy.config.path}: where prompts are not shared, sampling is transformers' "
                "own and cannot be planned"
            )
        b, g, total = len(lengths.prompts), lengths.group_size, len(lengths.trained)
        voice = policy.voice(self.recipe.sampling)
        with self._phase("sampling"):
            with meter.span() as reading:
                last_bh, prefilled = prefill(policy.forward, lengths.prompts)
            meter.relabel(prefilled.prompt_keys.values(), "caches")
            layout = prefilled.to_grow(g, scores_at_once(policy.forward))
            layout.least_room = SharedLayout.FIRST_ROOM
            while layout.least_room < total - 1:  # as it grows by itself
                layout.least_room *= 2
            for kept in (total - 2, total // 2):
                with meter.span() as drawing:
                    voice.choose(last_bh[:, None].expand(b, g, -1), torch.zeros(b, g))
                    self._grow(layout, kept, 1)
            if lengths.heard:  # by all conversations together, in chunks
                chunk = min(lengths.heard, max(policy.config.prefill_chunk // (b * g), 1))
                self._grow(layout, total - 1 - chunk, chunk)
            layout.select(torch.arange(b), torch.arange(max(g - g // ENDED, 1)).expand(b, -1))
        # An environment's words are read as prompts are.
        heard = b * g * (total - lengths.sampled) / sum(len(prompt.ids) for prompt in lengths.prompts)
        del self.flops["sampling"]
        self.flops |= {"reading": reading.flops * (1 + heard), "drawing": lengths.sampled * drawing.flops}

    def _grow(self, layout: SharedLayout, kept: int, width: int) -> None:
        """Forward ``width`` tokens behind ``kept`` ones of each conversation."""
        axes = self.policy.loaded.family.position_axes
        shape = len(layout.prompt_lengths), layout.continuations
        ids = torch.zeros(*shape, width, dtype=torch.long)
        layout.place(ids[..., 0], max(kept, 0), True)
        self.policy.forward.grow(ids, ids.expand(axes, *ids.shape), layout)
        self.meter.relabel(layout.own_keys.values(), "caches")

    def _read_scores(self) -> None:
        """Read the scores of all answers, as methods do whose verifier is read and not sampled."""
        prompts = self.lengths.prompts[:READ_BATCH]
        paths = score_tree(self.policy.tokenizer).paths()
        length = len(self.lengths.trained) + max(len(path) for path in paths) + 1
        rows = [[[0] * length] * (self.lengths.group_size * len(paths)) for _ in prompts]
        with self._phase("scores"):
            self.policy.hidden_states(prompts, self.policy.stack(rows))
        self.flops["scores"] *= len(self.lengths.prompts) / len(prompts)

    def _groups(self) -> list[TokenStreams]:
        """Return the streams of every group, in which all that the policy says is trained."""
        lengths = self.lengths
        if samples(self.recipe, self.method):
            rows = [_Row(len(lengths.trained) * [0], lengths.trained)] * lengths.group_size
            lists = [rows] * len(lengths.prompts)
        else:
            lists = [*islice(cycle(self._demonstrations()), len(lengths.prompts))]
            longest = max((row.trained for rows in lists for row in rows), key=len)
            most = max(len(rows) for rows in lists)
            stated = f"{lengths.stated}, with their demonstrations"
            self.lengths = replace(lengths, group_size=most, trained=longest, stated=stated)
        kl = float(self.method.config.needs_reference)
        pairs = zip(lengths.prompts, lists, strict=True)
        return [_streams(prompt, rows, kl, self.method.channels) for prompt, rows in pairs]

    def _demonstrations(self) -> list[list[_Row]]:
        task = make_task(self.recipe.task.name, **self.recipe.task.options)
        problems = self.lengths.problems
        seeds = [*range(len(problems))]
        made = self.method.rollout(self.policy, task, problems, seeds, self.recipe.sampling)
        return [[_demonstrated(t, self.policy.encoder) for t in group.trajectories] for group in made.groups]

    def _backward(self, loss: torch.Tensor, channel: str | None = None, more: bool = False) -> None:
        """Do what `Parallel.backward` does, in one process."""
        with nullcontext() if channel is None else self.apart.adding(channel):
            loss.backward(retain_graph=more)

    def _optimizer(self, learner: TrainerConfig) -> torch.optim.Optimizer | None:
        """Return the trainer's optimiser after a first step, which makes its state; None with 8 bits."""
        masters = self.recipe.policy.master_weights
        if learner.optim.name == "adamw_8bit":
            with self.meter.span("optimiser"):
                self._moments = [_eight_bits(p) for p in self.trainable for _ in self.moments]
                self._masters = [p.float() for p in self.trainable if masters and p.dtype in LOW_PRECISION]
            return None
        optimizer = make_optimizer(learner.optim, self.policy.model.named_parameters(), masters)
        for parameter in self.trainable:
            parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
        with self.meter.span("optimiser"):
            for channel in self.moments:
                _step(optimizer, channel)
        optimizer.zero_grad()
        return optimizer

    def _learn(self, groups: Sequence[TokenStreams], reference: Policy | None) -> None:
        """Learn from the longest groups of one update, and scale their operations up to the step."""
        learner, policy = self.recipe.learner, self.policy
        per_update = -(-len(groups) // learner.batch.updates_per_rollout)
        size = min(learner.batch.micro_batch_groups, per_update)
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
        updater = LossComputer(alone, learner, self.method.objective, self.recipe.sampling.temperature)
        passes = updater.passes(batch)
        with self._phase("reference"):
            updater.fix_logprobs(batch, passes)
        self.flops["reference"] *= scale
        if reference is None:
            del self.flops["reference"], self.phases["reference"]
        policy.model.train()
        offloads = self.recipe.policy.activation_offload and self.recipe.policy.device != "cpu"
        hooks = _offloaded(self.trainable[0]) if offloads else nullcontext()
        with self._phase("update"), hooks:
            with self.meter.span() as first:
                updater.gradient(batch, passes, UpdateMetrics(), apart=self.gradients)
            if per_update > size:  # a second micro-batch finds the gradients of the first one
                updater.gradient(batch, passes, UpdateMetrics(), apart=self.gradients)
        self.flops["update"] = first.flops * scale * learner.batch.inner_epochs


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


def _tokens(groups: Sequence[TokenStreams]) -> int:
    return sum(len(group.prompt.ids) + group.channel_gr.numel() for group in groups)


def _demonstrated(trajectory: Trajectory, encoder: Encoder) -> _Row:
    segments = trajectory.segments
    trained = [s.author == "policy" for s in segments for _ in s.tokens]
    images = [encoder.image(image, "planned", True) for s in segments for image in s.images]
    return _Row(trajectory.tokens, trained, images)


def _streams(prompt: Prompt, rows: Sequence[_Row], kl: float, channels: tuple[str, ...]) -> TokenStreams:
    shape = (len(rows), max(len(row.tokens) for row in rows))
    channel = torch.full(shape, -1)
    for number, row in enumerate(rows):
        channel[number, : len(row.tokens)] = torch.where(torch.tensor(row.trained), 0, -1)
    ones, tokens = torch.ones(shape), [row.tokens for row in rows]
    streams = TokenStreams(prompt, tokens, channel, ones, kl * ones, ones, 0 * ones, channels=channels)
    images = [row.images for row in rows]
    return replace(streams, images=images if any(images) else [])


ROLLOUT = ("images", "sampling", "scores")
"""Phases for which all weights are gathered at once, since processes sample for different times."""

SHARDED = ("weights", "reference", "gradients", "optimiser")
"""The bytes that FSDP shares out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory and work of one step.

    Args:
        memory: Bytes on each GPU at the worst moment of each phase, by what they hold: weights, the reference
            policy, gradients, the optimiser's state, activations, caches (keys, values and image features),
            logits, and weights that FSDP has gathered.
        flops: The operations of each phase, on each GPU.
        lengths: The prompts and conversations of one GPU.
        parameters: How many there are, and how many of them learn.
        gpus: They share the problems of a step.
        sharded: Whether FSDP shares the model out to them, too; else each has all of it.
        notes: Sentences about all that is not in the plan.
    """

    memory: dict[str, dict[str, int]]
    flops: dict[str, float]
    lengths: Lengths
    parameters: tuple[int, int]
    gpus: int
    sharded: bool
    notes: list[str]

    @property
    def worst(self) -> str:
        """The phase that holds the most bytes."""
        return max(self.memory, key=lambda phase: sum(self.memory[phase].values()))

    @property
    def total(self) -> int:
        """The bytes at the worst moment."""
        return sum(self.memory[self.worst].values())

    def lines(self) -> list[str]:
        """Return the plan in words for people."""
        at, count = self.lengths, len(self.lengths.prompts)
        sizes, own = [len(prompt.ids) for prompt in at.prompts], count * len(at.trained)
        shared = self.gpus * (sum(sizes) + at.group_size * own)  # the sum of P + G R over all prompts
        plain = self.gpus * at.group_size * (sum(sizes) + own)
        shown = sum(image.placeholders for prompt in at.prompts for image in prompt.images)
        width = max(map(len, self.memory))
        kind = "sharded" if self.sharded else "whole on each"
        where = f" on each of {self.gpus} GPUs (the model {kind})" if self.gpus > 1 else ""
        return [
            f"{self.parameters[0]:,} parameters, of which {self.parameters[1]:,} learn",
            f"step: {count * self.gpus} problems x {at.group_size} conversations of {len(at.trained)} tokens",
            f"prompts of {sum(sizes) / count:.0f} tokens, at most {max(sizes)}, "
            f"{shown / count:.0f} of them for images",
            f"tokens of a pass: {shared:,}; with prompts written out {plain:,}",
            at.stated,
            f"GB that tensors hold{where} at the worst moment of each phase, most in {self.worst}:",
            *(f"  {phase:{width}} {_sum(held, 1e9, '.3f', 5e5)}" for phase, held in self.memory.items()),
            f"TFLOP of a step{where}: {_sum(self.flops, 1e12, '.4g', 1)}",
            *self.notes,
        ]


def _sum(parts: Mapping[str, float], unit: float, form: str, least: float) -> str:
    """Return a sum with its parts, but for those below ``least``."""
    shown = " + ".join(f"{name} {x / unit:{form}}" for name, x in parts.items() if x >= least)
    return f"{sum(parts.values()) / unit:{form}} = {shown}"


def make_plan(recipe: Recipe, gpus: int = 1, sharded: bool = False, heard: int | None = None) -> Plan:
    """Plan one step without loading weights; problems are shared out evenly between GPUs.

    Args:
        recipe: The recipe.
        gpus: The number of GPUs.
        sharded: Whether FSDP shares the model out to them.
        heard: The tokens of what an environment says at a time.

    Raises:
        ConfigError: The model is not there, or it cannot be planned.
        DataError: The task cannot make its problems.
    """
    step = PlannedStep(recipe, -(-recipe.learner.groups_per_step // gpus), heard)
    every = [*step.policy.model.parameters()]
    counts = sum(p.numel() for p in every), sum(p.numel() for p in every if p.requires_grad)
    notes = ["sampling by vLLM is not planned"] if recipe.sampling.engine == "vllm" else []
    memory = {
        phase: {item: size for item, size in span.peak.items() if size > 0}
        for phase, span in step.phases.items()
    }
    if gpus > 1:
        for phase, held in memory.items():
            _share_out(held, phase, step, gpus, sharded)
    return Plan(memory, step.flops, step.lengths, counts, gpus, sharded, notes)


def _share_out(held: dict[str, int], phase: str, step: PlannedStep, gpus: int, sharded: bool) -> None:
    """Turn what one GPU would hold alone into what each holds.

    FSDP2 gives each its part. It gathers all weights for the rollout, and later a layer when it is needed
    (the next one in advance). DDP keeps all on each GPU, and its buckets hold gradients that stay, unless
    they are summed in another type than the weights'.
    """
    model, learning = step.policy.model, sum(p.nbytes for p in step.trainable)
    summed = sum(p.numel() * p.grad_dtype.itemsize for p in step.trainable)
    if not sharded:
        beside = step.gradients or summed > learning
        held["gradients"] = learning + (held.get("gradients", 0) if beside else 0)
        return
    if "gradients" in held:  # FSDP2 keeps them in the weights' type
        held["gradients"] = held["gradients"] * learning // summed
    for item in SHARDED:
        if item in held:
            held[item] = -(-held[item] // gpus)
    if phase == "optimiser":
        held["activations"] = -(-held.get("activations", 0) // gpus)
        return
    held["gathered"] = sum(p.nbytes for p in model.parameters())
    if phase not in ROLLOUT:
        layers = getattr(step.policy.loaded.family.backbone(model), "layers", [])
        sizes = [sum(p.nbytes for p in layer.parameters()) for layer in layers]
        most = 3 if phase == "update" else 2  # and one layer's gradients until they are scattered
        held["gathered"] += most * max(sizes, default=0) - sum(sizes)


GPU_GB = 80
"""The memory of the GPUs that large models are trained on (A100, H100)."""


def engine_lines(recipe: Recipe, engine: EngineConfig, config: Mapping[str, Any]) -> list[str]:
    """Say what training in another engine holds on each GPU, by arithmetic on shapes; no weight is read.

    Counted are verl's parts with FSDP2 and activation checkpoints: weights, gradients, AdamW's moments and
    the reference, shared out to all GPUs; the largest layers, gathered; the checkpoints and logits of a
    micro-batch. Servers that sample hold their memory at other times.

    Args:
        recipe: The recipe.
        engine: Its section ``engine``.
        config: verl's configuration.

    Raises:
        ConfigError: The model's config.json is not on this machine, and the Hub does not give it.
    """
    policy, gpus = recipe.policy, engine.nodes * engine.gpus_per_node
    tokens = config["actor_rollout_ref"]["actor"]["ppo_max_token_len_per_gpu"]
    try:
        path = resolve(policy.path)
        settings = AutoConfig.from_pretrained(path, trust_remote_code=policy.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"policy.path={policy.path}: its config.json, of which a plan is made, is not on this machine, "
            "and the Hub does not give it; put this one file into a folder, and name that"
        ) from error
    sees = getattr(settings, "vision_config", None) is not None
    with torch.device("meta"):
        model: Any = (AutoModelForImageTextToText if sees else AutoModelForCausalLM).from_config(settings)
    text, size = settings.get_text_config(), 2 if policy.dtype == "bfloat16" else 4
    every = sum(p.numel() for p in model.parameters())
    tower = sum(p.numel() for name, p in model.named_parameters() if "visual" in name or "vision" in name)
    learning = every if policy.train_vision else every - tower
    if policy.lora is not None:
        linear = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
        learning = policy.lora.rank * sum(m.in_features + m.out_features for m in linear)
    method = make_method(recipe.method.name, **recipe.method.options)
    refers = method.config.needs_reference and policy.lora is None
    kept = 4 if policy.master_weights else size
    wide = text.vocab_size * text.hidden_size
    parts = {
        "weights": kept * every / gpus,
        "gradients": kept * learning / gpus,
        "optimiser": 2 * kept * learning / gpus,
        "reference": size * every / gpus if refers else 0,
        "gathered": size * (2 * wide + 2 * (every - tower - 2 * wide) / text.num_hidden_layers),
        "activations": size * tokens * text.hidden_size * (text.num_hidden_layers + 16),
        "logits": (size + 4) * tokens * text.vocab_size,
    }
    total, server = sum(parts.values()) / 1e9, size * every / 1e9
    fits = "fits" if total < 0.9 * GPU_GB else "does NOT fit"
    return [
        f"{every:,} parameters, of which {learning:,} learn, on {gpus} GPUs",
        f"tokens of a micro-batch on each GPU: {tokens:,}",
        f"GB on each GPU while it learns: {_sum(parts, 1e9, '.1f', 5e7)}",
        f"this {fits} into {GPU_GB} GB, of which a tenth is left to CUDA and allocators",
        f"GB of a server's weights: {server:.1f}, shared out by tensor_model_parallel_size",
    ]
