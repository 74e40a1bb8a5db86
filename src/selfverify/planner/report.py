"""A plan: what `selfverify plan` prints, as a table and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from selfverify.planner.compute import Phase, times
from selfverify.planner.hardware import Hardware, hardware
from selfverify.planner.measure import Measured, measure
from selfverify.planner.memory import ITEMS, Memory, Shard, memory_of
from selfverify.planner.shapes import Lengths
from selfverify.policy.config import VLLMSettings
from selfverify.recipe import Recipe

_SHORT = {
    "weights": "weight",
    "reference": "refer.",
    "gradients": "grad.",
    "optimiser": "optim.",
    "gathered": "gather",
    "activations": "activ.",
    "reserve": "other",
}
"""Heads of columns that fit on a terminal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step of a recipe takes on given hardware."""

    recipe: Recipe
    hardware: Hardware
    gpus: int
    shard: Shard
    utilisation: float
    bandwidth_utilisation: float
    measured: Measured
    memory: Memory
    phases: list[Phase]

    @property
    def seconds(self) -> float:
        """Estimated seconds per step."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def assumptions(self) -> list[str]:
        """What the figures rest on."""
        engine = self.recipe.sampling.engine
        outside = ["sampling by vLLM is not in the plan but for its share of the memory"]
        return [
            self.measured.shapes.stated,
            *(outside if engine == "vllm" else []),
            f"compute at {self.utilisation:.0%} of {self._peak / 1e12:.4g} TFLOP/s, decoding reads at "
            f"{self.bandwidth_utilisation:.0%} of {self.hardware.bandwidth / 1e9:.4g} GB/s, communication at "
            "full speed without overlap; rewards and image preprocessing are not in it",
        ]

    @property
    def _peak(self) -> float:
        return self.hardware.peak(self.measured.parameters.dtype_bytes)

    def as_json(self) -> dict[str, Any]:
        """Everything, in bytes, operations and seconds; tokens are those of all GPUs."""
        p, shapes = self.measured.parameters, self.measured.shapes
        return {
            "recipe": self.recipe.name,
            "model": self.recipe.policy.path,
            "gpu": self.hardware.name,
            "gpus": self.gpus,
            "shard": self.shard,
            "parameters": {"total": p.total, "trainable": p.trainable},
            "tokens": {
                "shared": shapes.shared_tokens * self.gpus,
                "plain": shapes.plain_tokens * self.gpus,
                "images": shapes.image_tokens * self.gpus,
                "response": shapes.response_tokens,
                "longest_prompt": max(len(prompt.ids) for prompt in shapes.prompts),
                "problems": len(shapes.prompts) * self.gpus,
                "group_size": shapes.group_size,
            },
            "memory": {
                "phases": self.memory.phases,
                "worst": self.memory.worst,
                "total": self.memory.total,
                "limit": self.memory.limit,
                "fits": self.memory.fits,
            },
            "time": {
                "phases": {phase.name: phase.seconds for phase in self.phases},
                "flops": {phase.name: phase.flops for phase in self.phases if phase.flops},
                "seconds": self.seconds,
                "utilisation": self.utilisation,
                "bandwidth_utilisation": self.bandwidth_utilisation,
            },
            "assumptions": self.assumptions,
            "verdict": self.memory.verdict,
        }

    def as_table(self) -> RenderableType:
        """The same for people."""
        facts = Table(
            show_header=False, box=box.SIMPLE, title=Text(f"{self.recipe.name}: {self.recipe.policy.path}")
        )
        for name, value in self._facts():
            facts.add_row(Text(name), Text(value))
        items = [item for item in ITEMS if any(held.get(item) for held in self.memory.phases.values())]
        heads = [_SHORT.get(item, item) for item in items]
        memory = Table("phase", *heads, "sum", title="GB per GPU at each phase's peak", box=None)
        for phase, held in self.memory.phases.items():
            sizes = [*(held.get(item, 0) for item in items), sum(held.values())]
            memory.add_row(phase, *(_gb(size) for size in sizes))
        clock = Table("phase", "TFLOP per GPU", "seconds", title="time per step, estimated", box=box.SIMPLE)
        for work in self.phases:
            clock.add_row(work.name, f"{work.flops / 1e12:.4g}" if work.flops else "", f"{work.seconds:.3g}")
        clock.add_section()
        clock.add_row("sum", "", f"{self.seconds:.3g}")
        rests = Text("\n".join(f"- {line}" for line in self.assumptions), "dim")
        verdict = Text(self.memory.verdict, "bold green" if self.memory.fits else "bold red")
        return Group(facts, memory, clock, rests, verdict)

    def _facts(self) -> list[tuple[str, str]]:
        p, shapes = self.measured.parameters, self.measured.shapes
        shared, plain = shapes.shared_tokens * self.gpus, shapes.plain_tokens * self.gpus
        lengths = [len(prompt.ids) for prompt in shapes.prompts]
        off = "" if self.measured.shared else " (policy.shared_prefix is off: the update forwards these)"
        sharding = f", {self.shard}" if self.gpus > 1 else ""
        return [
            ("hardware", f"{self.gpus} x {self.hardware.name}{sharding}"),
            ("parameters", f"{p.total:,}, of which {p.trainable:,} learn"),
            (
                "one step",
                f"{len(lengths) * self.gpus} problems x {shapes.group_size} responses of "
                f"{shapes.response_tokens} tokens",
            ),
            (
                "prompts",
                f"{sum(lengths) / len(lengths):.0f} tokens on average, {max(lengths)} at most; "
                f"{shapes.image_tokens / len(lengths):.0f} of them for images",
            ),
            ("tokens per pass, prompts shared", f"{shared:,}"),
            ("tokens per pass, written out", f"{plain:,} ({plain / shared:.2g} times as many){off}"),
        ]


def _gb(size: float) -> str:
    gb = size / 1e9
    return f"{gb:.3f}" if 5e-4 <= gb < 1 else f"{gb:.{2 if gb < 100 else 0}f}" if gb >= 1 else ""


def _vllm_share(recipe: Recipe) -> float:
    settings = recipe.sampling.vllm or VLLMSettings()
    if recipe.sampling.engine != "vllm" or settings.mode != "colocate" or settings.enable_sleep_mode:
        return 0.0
    return settings.gpu_memory_utilization


def make_plan(
    recipe: Recipe,
    gpu: str = "h200",
    gpus: int = 1,
    shard: Shard = "none",
    lengths: Lengths | None = None,
    utilisation: float = 0.4,
    bandwidth_utilisation: float = 0.6,
) -> Plan:
    """Plan one step of a recipe without loading weights.

    Args:
        recipe: What would be trained; problems are shared out evenly between GPUs.
        gpu: A name of `hardware.GPUS`, or ``cpu``.
        gpus: How many.
        shard: See `memory_of`.
        lengths: Lengths to plan for instead of the task's.
        utilisation: Share of the peak that computing reaches.
        bandwidth_utilisation: Share of the memory's bandwidth that decoding reaches.

    Raises:
        ConfigError: The GPU, the model or the lengths cannot be planned for.
        DataError: The task cannot make its problems.
    """
    device = hardware(gpu)
    groups = -(-recipe.learner.groups_per_step // gpus)
    measured = measure(recipe, device.device, groups, lengths or Lengths())
    return Plan(
        recipe,
        device,
        gpus,
        shard,
        utilisation,
        bandwidth_utilisation,
        measured,
        memory_of(measured, gpus, shard, device, _vllm_share(recipe)),
        times(measured, gpus, shard, device, utilisation, bandwidth_utilisation),
    )
