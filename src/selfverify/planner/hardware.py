"""The memory and the speed of GPUs, from their maker's data sheets."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass

from selfverify.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device.

    Args:
        name: The name that people read.
        memory_gb: GB of memory. A data sheet's GB are read as 10^9 bytes; drivers show up to 7 % more.
        bf16_tflops: Dense bfloat16 TFLOP/s of its matrix units, without sparsity.
        fp32_tflops: Float32 TFLOP/s without TF32, which PyTorch leaves off.
        bandwidth_gb_s: GB/s from its memory.
        link_gb_s: GB/s to the other devices, one way.
        device: ``cuda`` or ``cpu``.
    """

    name: str
    memory_gb: float
    bf16_tflops: float
    fp32_tflops: float
    bandwidth_gb_s: float
    link_gb_s: float
    device: str = "cuda"

    @property
    def memory(self) -> float:
        """The bytes of memory."""
        return self.memory_gb * 1e9

    def peak_tflops(self, dtype_bytes: int) -> float:
        """Return the TFLOP/s with weights of ``dtype_bytes`` bytes."""
        return self.fp32_tflops if dtype_bytes >= 4 else self.bf16_tflops


GPUS: dict[str, Hardware] = {
    "b200": Hardware("NVIDIA B200", 180, 2250, 75, 7700, 900),
    "h200": Hardware("NVIDIA H200 SXM", 141, 989, 67, 4800, 450),
    "h100": Hardware("NVIDIA H100 SXM", 80, 989, 67, 3350, 450),
    "a100": Hardware("NVIDIA A100 SXM 80GB", 80, 312, 19.5, 2039, 300),
    "a100-40gb": Hardware("NVIDIA A100 SXM 40GB", 40, 312, 19.5, 1555, 300),
    "l40s": Hardware("NVIDIA L40S", 48, 362, 91.6, 864, 32),
    "l4": Hardware("NVIDIA L4", 24, 121, 30.3, 300, 32),
    "a10": Hardware("NVIDIA A10", 24, 125, 31.2, 600, 32),
    "rtx-4090": Hardware("NVIDIA GeForce RTX 4090", 24, 165, 82.6, 1008, 32),
}
"""From NVIDIA's data sheets. ``link_gb_s`` is half of what NVLink moves both ways, else PCIe 4.0 x16."""

CPU_GFLOPS, CPU_GB_PER_S = 40.0, 20.0
"""A CPU's assumed speed per core and its assumed bandwidth: cores differ too much for a table."""


def hardware(name: str) -> Hardware:
    """Return a GPU of `GPUS`, or this machine for ``cpu``.

    Raises:
        ConfigError: There is no such entry.
    """
    if name == "cpu":
        cores, gb = os.cpu_count() or 1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        speed = cores * CPU_GFLOPS / 1e3
        return Hardware(f"this machine, {cores} cores", gb, speed, speed, CPU_GB_PER_S, 1.0, "cpu")
    if name.lower() not in GPUS:
        close = difflib.get_close_matches(name.lower(), GPUS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"--gpu {name}: not in the table; {hint}known: {', '.join(GPUS)}, cpu")
    return GPUS[name.lower()]
