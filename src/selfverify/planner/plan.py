"""A plan of one training step, which `selfverify plan` prints as a table or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from selfverify.core.sampling_settings import VLLMSettings
from selfverify.experiments.recipe import Recipe
from selfverify.planner.hardware import Hardware, hardware
from selfverify.planner.measure import measure
from selfverify.planner.measured import MeasuredPass
from selfverify.planner.memory import ITEMS, Memory, memory_of
from selfverify.planner.plan_settings import PlanSettings

_SHORT = {
    "weights": "weight",
    "reference": "refer.",
    "gradients": "grad.",
    "optimiser": "optim.",
    "gathered": "gather",
    "activations": "activ.",
    "reserve": "other",
}
"""Short heads of columns, so that the table fits on a terminal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step of a recipe takes on given hardware."""

    recipe: Recipe
    settings: PlanSettings
    hardware: Hardware
    measured: MeasuredPass
    memory: Memory
    flops: dict[str, float]

    @property
    def assumptions(self) -> list[str]:
        """What the figures rest on, for people."""
        by_vllm = self.recipe.sampling.engine == "vllm"
        return [
            self.measured.shapes.stated,
            *(["sampling by vLLM is not in the plan but for its share of the memory"] if by_vllm else []),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return everything in bytes and operations; tokens are those of all GPUs."""
        p, shapes = self.measured.parameters, self.measured.shapes
        return {
            "recipe": self.recipe.name,
            "model": self.recipe.policy.path,
            "gpu": self.hardware.name,
            "gpus": self.settings.gpus,
            "shard": self.settings.shard,
            "parameters": {"total": p.total, "trainable": p.trainable},
            "tokens": {
                "shared": shapes.shared_tokens * self.settings.gpus,
                "plain": shapes.plain_tokens * self.settings.gpus,
                "images": shapes.image_tokens * self.settings.gpus,
                "response": shapes.response_tokens,
                "longest_prompt": max(len(prompt.ids) for prompt in shapes.prompts),
                "problems": len(shapes.prompts) * self.settings.gpus,
                "group_size": shapes.group_size,
            },
            "memory": {
                "phases": self.memory.phases,
                "worst": self.memory.worst,
                "total": self.memory.total,
                "limit": self.memory.limit,
                "fits": self.memory.fits,
            },
            "flops": self.flops,
            "assumptions": self.assumptions,
            "verdict": self.memory.verdict,
        }

    def as_table(self) -> RenderableType:
        """Return the plan as tables for people."""
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
        work = Table("phase", "TFLOP per GPU", title="operations per step", box=box.SIMPLE)
        for phase, flops in self.flops.items():
            work.add_row(phase, f"{flops / 1e12:.4g}")
        work.add_section()
        work.add_row("sum", f"{sum(self.flops.values()) / 1e12:.4g}")
        rests = Text("\n".join(f"- {line}" for line in self.assumptions), "dim")
        verdict = Text(self.memory.verdict, "bold green" if self.memory.fits else "bold red")
        return Group(facts, memory, work, rests, verdict)

    def _facts(self) -> list[tuple[str, str]]:
        p, shapes = self.measured.parameters, self.measured.shapes
        shared, plain = shapes.shared_tokens * self.settings.gpus, shapes.plain_tokens * self.settings.gpus
        lengths = [len(prompt.ids) for prompt in shapes.prompts]
        off = "" if self.measured.shared else " (prompts are not shared: the update forwards these)"
        sharding = f", {self.settings.shard}" if self.settings.gpus > 1 else ""
        return [
            ("hardware", f"{self.settings.gpus} x {self.hardware.name}{sharding}"),
            ("parameters", f"{p.total:,}, of which {p.trainable:,} learn"),
            (
                "one step",
                f"{len(lengths) * self.settings.gpus} problems x {shapes.group_size} responses of "
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


def make_plan(recipe: Recipe, settings: PlanSettings) -> Plan:
    """Plan one step of a recipe without loading weights; problems are shared out evenly between GPUs.

    Raises:
        ConfigError: The GPU, the model or the lengths cannot be planned for.
        DataError: The task cannot make its problems.
    """
    device = hardware(settings.gpu)
    measured = measure(recipe, device.device, -(-recipe.learner.groups_per_step // settings.gpus), settings)
    memory = memory_of(measured, settings, device, _vllm_share(recipe))
    return Plan(recipe, settings, device, measured, memory, measured.flops)
