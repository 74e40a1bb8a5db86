"""From counted operations and bytes to seconds."""

from __future__ import annotations

from dataclasses import dataclass

from selfverify.planner.hardware import Hardware
from selfverify.planner.measure import Measured
from selfverify.planner.memory import Shard


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase's work on one GPU and its time."""

    name: str
    flops: float
    seconds: float


def times(
    measured: Measured,
    gpus: int,
    shard: Shard,
    hardware: Hardware,
    utilisation: float,
    bandwidth_utilisation: float,
) -> list[Phase]:
    """Estimated seconds of each phase of a step, one after another.

    Operations run at ``utilisation`` of the GPU's peak in the type of the weights. A decoding step takes
    as long as its operations or as reading decoder, head and caches at ``bandwidth_utilisation`` of the
    bandwidth, whichever is longer. Between GPUs bytes move at the link's full speed and overlap with
    nothing. Not in it: rewards, images' preprocessing, kernel launches, waiting for the slowest GPU.
    """
    p = measured.parameters
    speed = utilisation * hardware.peak(p.dtype_bytes)
    found = []
    for name, span in measured.phases.items():
        if name == "optimiser":
            # Weight, gradient and two moments are read, all but the gradient written.
            moved = 7 * p.trainable_bytes / (gpus if shard == "fsdp" else 1)
            found.append(Phase(name, span.flops, moved / (bandwidth_utilisation * hardware.bandwidth)))
        elif name == "sampling":
            found.append(Phase("prefill", span.flops, span.flops / speed))
            bytes_read = p.read_bytes + measured.cache_bytes
            step = max(measured.step_flops / speed, bytes_read / (bandwidth_utilisation * hardware.bandwidth))
            found.append(Phase("decoding", measured.steps * measured.step_flops, measured.steps * step))
        else:
            found.append(Phase(name, span.flops, span.flops / speed))
    if gpus > 1:
        found.append(Phase("communication", 0, _moved(measured, gpus, shard) / hardware.link))
    return found


def _moved(measured: Measured, gpus: int, shard: Shard) -> float:
    """Bytes that each GPU receives in a step."""
    p, part = measured.parameters, (gpus - 1) / gpus
    if shard == "none":
        return 2 * part * p.trainable_bytes
    gathers = bool(measured.steps) + 2 * measured.passes
    if "reference" in measured.phases:
        gathers += measured.passes
    return part * (gathers * p.weight_bytes + measured.passes * p.trainable_bytes)
