"""What was measured of a step that ran without weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from selfverify.planner.meter import Meter, Span
from selfverify.planner.parameters import Parameters
from selfverify.planner.shapes import Shapes
from selfverify.policy.policy import Policy


@dataclass(slots=True)
class MeasuredPass:
    """One step on one GPU.

    Args:
        phases: Each phase's memory at its worst moment, and its operations in the whole step. Those of
            sampling are without decoding.
        parameters: Counts and bytes of the model's parameters.
        shapes: The prompts and responses that were forwarded.
        shared: Whether prompts are shared in the passes that learn.
        steps: The number of decoding steps; 0 when nothing is sampled.
        step_flops: The operations of the decoding step half way.
        passes: The number of micro-batches that are forwarded and backwarded.
        apart: Whether channels keep gradients of their own.
    """

    phases: dict[str, Span]
    parameters: Parameters
    shapes: Shapes
    shared: bool
    steps: int = 0
    step_flops: int = 0
    passes: int = 0
    apart: bool = False
    _kept: list[Tensor] = field(default_factory=list)

    @property
    def flops(self) -> dict[str, float]:
        """The operations of each phase in one step, on one GPU; decoding apart from its prompts' pass."""
        found: dict[str, float] = {}
        for name, span in self.phases.items():
            found["prefill" if name == "sampling" else name] = span.flops
            if name == "sampling":
                found["decoding"] = self.steps * self.step_flops
        return {name: flops for name, flops in found.items() if flops}

    @property
    def reply_pixels(self) -> int:
        """The bytes of the preprocessed images in all replies."""
        shapes, talk = self.shapes, self.shapes.conversation
        tensors = [t for image in talk.reply.images for t in image.tensors.values() if isinstance(t, Tensor)]
        count = len(shapes.prompts) * shapes.group_size * talk.replies
        return count * sum(t.nbytes for t in tensors)

    def keep(self, policy: Policy, meter: Meter, size: int) -> None:
        """Hold ``size`` bytes of preprocessed images until the step ends; `keep` again for more of them."""
        weight = policy.model.get_input_embeddings().weight
        self._kept = [weight.new_empty(size, dtype=torch.uint8)]
        meter.relabel(self._kept, "caches")

    @contextmanager
    def phase(self, meter: Meter, name: str) -> Iterator[Span]:
        """A span of ``meter`` that is shown under ``name``."""
        with meter.span() as span:
            self.phases[name] = span
            yield span
