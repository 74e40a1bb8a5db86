"""Estimates the seconds of a step from counted operations and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from selfverify.planner.hardware import Hardware
from selfverify.planner.measured import MeasuredPass
from selfverify.planner.plan_settings import PlanSettings


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a step: its operations on one GPU, and its seconds."""

    name: str
    flops: float
    seconds: float


def times(measured: MeasuredPass, settings: PlanSettings, hardware: Hardware) -> list[Phase]:
    """Return the estimated seconds of each phase of a step, one after another.

    Operations run at ``settings.utilisation`` of the GPU's peak in the type of the weights. A decoding step
    takes as long as its operations, or as reading decoder, head and caches at
    ``settings.bandwidth_utilisation`` of the bandwidth, whichever is longer. Between GPUs bytes move at the
    link's full speed and overlap with nothing. Rewards, the images' preprocessing, kernel launches and
    waiting for the slowest GPU are not counted.
    """
    p, gpus = measured.parameters, settings.gpus
    speed = settings.utilisation * (hardware.peak_tflops(p.dtype_bytes) * 1e12)
    bandwidth = settings.bandwidth_utilisation * (hardware.bandwidth_gb_s * 1e9)
    found = []
    for name, span in measured.phases.items():
        if name == "optimiser":
            # Weight, gradient and state (moments, masters) are read, all but the gradient written.
            moved: float = 3 * p.trainable_bytes + 2 * span.peak.get("optimiser", 0)
            moved /= gpus if settings.shard == "fsdp" else 1
            found.append(Phase(name, span.flops, moved / bandwidth))
        elif name == "sampling":
            found.append(Phase("prefill", span.flops, span.flops / speed))
            bytes_read = p.read_bytes + measured.cache_bytes
            step = max(measured.step_flops / speed, bytes_read / bandwidth)
            found.append(Phase("decoding", measured.steps * measured.step_flops, measured.steps * step))
        else:
            found.append(Phase(name, span.flops, span.flops / speed))
    if gpus > 1:
        found.append(Phase("communication", 0, _moved(measured, settings) / (hardware.link_gb_s * 1e9)))
    return found


def _moved(measured: MeasuredPass, settings: PlanSettings) -> float:
    """Return the bytes that each GPU receives in a step."""
    p, part = measured.parameters, (settings.gpus - 1) / settings.gpus
    if settings.shard == "none":
        return 2 * part * p.trainable_bytes
    gathers = bool(measured.steps) + 2 * measured.passes
    if "reference" in measured.phases:
        gathers += measured.passes
    return part * (gathers * p.weight_bytes + measured.passes * p.trainable_bytes)
