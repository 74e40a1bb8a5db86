"""What one step of a recipe takes: memory per GPU, tokens and operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from selfverify.core.config import VLLMConfig
from selfverify.experiments.plan.lengths import Lengths
from selfverify.experiments.plan.planned_step import PlannedStep
from selfverify.experiments.recipe import Recipe
from selfverify.policy.policy import Policy

ROLLOUT = ("images", "sampling", "scores")
"""Phases for which all weights are gathered at once, since processes sample for different times."""

SHARDED = ("weights", "reference", "gradients", "optimiser")
"""What FSDP shares out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step takes.

    Args:
        memory: Bytes on each GPU at the worst moment of each phase, by what they hold: weights, the reference
            policy, gradients, the optimiser's state, activations, caches (keys, values and image features),
            logits, and weights that FSDP has gathered.
        flops: The operations of each phase, on each GPU.
        lengths: The prompts and conversations of one GPU.
        parameters: How many there are, and how many of them learn.
        gpus: They share the problems of a step.
        sharded: Whether FSDP shares the model out to them, too; else each has all of it.
        notes: What is not in the plan.
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
        shared, plain = at.shared_tokens * self.gpus, at.plain_tokens * self.gpus
        sizes = [len(prompt.ids) for prompt in at.prompts]
        width = max(map(len, self.memory))
        kind = "sharded" if self.sharded else "whole on each"
        where = f" on each of {self.gpus} GPUs (the model {kind})" if self.gpus > 1 else ""
        return [
            f"{self.parameters[0]:,} parameters, of which {self.parameters[1]:,} learn",
            f"step: {count * self.gpus} problems x {at.group_size} conversations of {len(at.trained)} tokens",
            f"prompts of {sum(sizes) / count:.0f} tokens, at most {max(sizes)}, "
            f"{at.image_tokens / count:.0f} of them for images",
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
    notes = []
    if recipe.sampling.engine == "vllm":
        vllm = recipe.sampling.vllm or VLLMConfig()
        beside = vllm.mode == "colocate" and not vllm.enable_sleep_mode
        share = f", which keeps {vllm.gpu_memory_utilization:.0%} of the GPU" if beside else ""
        notes.append(f"sampling by vLLM{share} is not planned")
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
    (the next one in advance). DDP keeps all on each GPU, and its buckets hold gradients that stay.
    """
    total, learning, block, root = _weight_bytes(step.policy)
    if not sharded:
        held["gradients"] = learning + (held.get("gradients", 0) if step.gradients else 0)
        return
    for item in SHARDED:
        if item in held:
            held[item] = -(-held[item] // gpus)
    if phase == "optimiser":
        held["activations"] = -(-held.get("activations", 0) // gpus)
    elif phase in ROLLOUT:
        held["gathered"] = total
    else:
        layers = 3 if phase == "update" else 2  # and one layer's gradients until they are scattered
        held["gathered"] = root + layers * block


def _weight_bytes(policy: Policy) -> tuple[int, int, int, int]:
    """The bytes of all parameters, of those that learn, of the largest layer, and outside of layers."""
    every = [*policy.model.parameters()]
    layers = [
        sum(p.nbytes for p in layer.parameters())
        for layer in getattr(policy.loaded.family.backbone(policy.model), "layers", [])
    ]
    total = sum(p.nbytes for p in every)
    learning = sum(p.nbytes for p in every if p.requires_grad)
    return total, learning, max(layers, default=0), total - sum(layers)
