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
        device: ``cuda`` or ``cpu``.
        memory: Bytes of memory. A data sheet's GB are read as 10^9 bytes; drivers show up to 7 % more.
        bf16: Dense bfloat16 operations per second of its matrix units, without sparsity.
        fp32: Float32 operations per second without TF32, which PyTorch leaves off.
        bandwidth: Bytes per second from its memory.
        link: Bytes per second to the other devices, one way.
    """

    name: str
    device: str
    memory: float
    bf16: float
    fp32: float
    bandwidth: float
    link: float

    def peak(self, dtype_bytes: int) -> float:
        """Return the operations per second with weights of ``dtype_bytes`` bytes."""
        return self.fp32 if dtype_bytes >= 4 else self.bf16


def _gpu(
    name: str, gb: float, bf16: float, fp32: float, bandwidth: float, link: float, device: str = "cuda"
) -> Hardware:
    """Return a `Hardware`; the figures are in GB, TFLOP/s, TFLOP/s, GB/s and GB/s."""
    return Hardware(name, device, gb * 1e9, bf16 * 1e12, fp32 * 1e12, bandwidth * 1e9, link * 1e9)


GPUS: dict[str, Hardware] = {
    "b200": _gpu("NVIDIA B200", 180, 2250, 75, 7700, 900),
    "h200": _gpu("NVIDIA H200 SXM", 141, 989, 67, 4800, 450),
    "h100": _gpu("NVIDIA H100 SXM", 80, 989, 67, 3350, 450),
    "a100": _gpu("NVIDIA A100 SXM 80GB", 80, 312, 19.5, 2039, 300),
    "a100-40gb": _gpu("NVIDIA A100 SXM 40GB", 40, 312, 19.5, 1555, 300),
    "l40s": _gpu("NVIDIA L40S", 48, 362, 91.6, 864, 32),
    "l4": _gpu("NVIDIA L4", 24, 121, 30.3, 300, 32),
    "a10": _gpu("NVIDIA A10", 24, 125, 31.2, 600, 32),
    "rtx-4090": _gpu("NVIDIA GeForce RTX 4090", 24, 165, 82.6, 1008, 32),
}
"""From NVIDIA's data sheets of each; ``link`` is half of NVLink's sum of both ways, else PCIe 4.0 x16."""

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
        return _gpu(f"this machine, {cores} cores", gb, speed, speed, CPU_GB_PER_S, 1.0, "cpu")
    if name.lower() not in GPUS:
        close = difflib.get_close_matches(name.lower(), GPUS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"--gpu {name}: not in the table; {hint}known: {', '.join(GPUS)}, cpu")
    return GPUS[name.lower()]
