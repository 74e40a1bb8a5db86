"""The bytes on each GPU, from the bytes that one GPU would hold alone."""

from __future__ import annotations

from dataclasses import dataclass

from selfverify.planner.hardware import Hardware
from selfverify.planner.measured import MeasuredPass
from selfverify.planner.plan_settings import PlanSettings

ITEMS = {
    "weights": "weights",
    "reference": "the reference policy",
    "gradients": "gradients",
    "optimiser": "optimiser state",
    "gathered": "gathered weights",
    "activations": "activations",
    "caches": "caches",
    "logits": "logits",
    "vllm": "vLLM's share",
    "reserve": "what CUDA and its allocator keep",
}
"""The items that are counted, in words for people; caches are keys, values and image features."""

ROLLOUT = ("images", "sampling", "scores")
"""Phases for which all weights are gathered at once, since processes sample for different times."""

SHARDED = ("weights", "reference", "gradients", "optimiser")
RESERVE_BYTES, RESERVE_SHARE = 1.5e9, 0.03
"""Assumed, not measured: the CUDA context with its libraries, and what the allocator cannot use."""

_CURES = {
    "weights": "policy.dtype=bfloat16, --shard fsdp with more GPUs, or a smaller model",
    "reference": "policy.lora={} (its reference is the same model), method.kl=0, or --shard fsdp",
    "gradients": "policy.lora={}, or --shard fsdp with more GPUs",
    "optimiser": "learner.optimizer=adamw_8bit, policy.lora={}, or --shard fsdp with more GPUs",
    "gathered": "policy.dtype=bfloat16 or a smaller model: a rollout has all weights in place",
    "activations": "policy.gradient_checkpointing=true, or a smaller learner.micro_batch_groups",
    "caches": "a smaller learner.groups_per_step, sampling.max_new_tokens or policy.vision_cache_mb",
    "vllm": "a smaller sampling.vllm.gpu_memory_utilization, or mode: server",
    "logits": "a smaller policy.logprob_chunk; while sampling, a smaller learner.groups_per_step",
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on each GPU.

    Args:
        phases: Bytes of every item (see `ITEMS`) at the worst moment of each phase.
        limit: The bytes that the GPU has.
    """

    phases: dict[str, dict[str, int]]
    limit: float

    @property
    def worst(self) -> str:
        """The phase that holds the most bytes."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def total(self) -> int:
        """The bytes at the worst moment."""
        return sum(self.phases[self.worst].values())

    @property
    def fits(self) -> bool:
        """Whether the worst moment is within the limit."""
        return self.total <= self.limit

    @property
    def verdict(self) -> str:
        """One line that says whether the step fits, what is largest, and what would help."""
        items = self.phases[self.worst]
        largest = max(items.keys() - {"reserve"}, key=lambda name: items[name])
        words = f"{ITEMS[largest]}, {items[largest] / 1e9:.3g} GB"
        held = f"{self.total / 1e9:.3g} GB of {self.limit / 1e9:.3g} GB in phase {self.worst!r}"
        if self.fits:
            return f"fits: {held}; largest: {words}"
        cure = _CURES[largest]
        if self.worst == "sampling" and largest == "activations":
            cure = "a smaller learner.groups_per_step: all its problems are sampled at once"
        return f"does not fit: {held}; largest: {words}; try {cure}"


def memory_of(
    measured: MeasuredPass, settings: PlanSettings, hardware: Hardware, vllm_share: float = 0.0
) -> Memory:
    """Return what each GPU holds.

    ``fsdp`` (FSDP2) gives each GPU its part of weights, gradients and optimiser state. It gathers all
    weights for the rollout, and later a layer when it is needed (the next one in advance). ``none`` (DDP)
    keeps all of them on each GPU.

    Args:
        measured: One GPU's part of a step.
        settings: The number of GPUs and how they share the model.
        hardware: The GPU.
        vllm_share: The share of the GPU's memory that a vLLM beside the policy takes.
    """
    gpus = settings.gpus
    phases: dict[str, dict[str, int]] = {}
    p = measured.parameters
    for name, span in measured.phases.items():
        items = {item: span.peak.get(item, 0) for item in ITEMS}
        if gpus > 1 and settings.shard == "fsdp":
            for item in SHARDED:
                items[item] = -(-items[item] // gpus)
            if name == "optimiser":
                items["activations"] = -(-items["activations"] // gpus)
            elif name in ROLLOUT:
                items["gathered"] = p.weight_bytes
            else:
                layers = 3 if name == "update" else 2  # and one layer's gradients until they are scattered
                items["gathered"] = p.root_bytes + layers * p.block_bytes
        elif gpus > 1:
            # DDP's buckets hold them and are never given back. Gradients that channels keep apart are beside.
            beside = items["gradients"] if measured.apart else 0
            items["gradients"] = p.trainable_bytes + beside
        if hardware.device == "cuda":
            items["reserve"] = round(RESERVE_BYTES + RESERVE_SHARE * sum(items.values()))
            items["vllm"] = round(vllm_share * hardware.memory)
        phases[name] = {item: size for item, size in items.items() if size > 0}
    return Memory(phases, hardware.memory)
