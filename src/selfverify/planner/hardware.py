"""The memory of GPUs, from their maker's data sheets."""

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
        device: ``cuda`` or ``cpu``.
    """

    name: str
    memory_gb: float
    device: str = "cuda"

    @property
    def memory(self) -> float:
        """The bytes of memory."""
        return self.memory_gb * 1e9


GPUS: dict[str, Hardware] = {
    "b200": Hardware("NVIDIA B200", 180),
    "h200": Hardware("NVIDIA H200 SXM", 141),
    "h100": Hardware("NVIDIA H100 SXM", 80),
    "a100": Hardware("NVIDIA A100 SXM 80GB", 80),
    "a100-40gb": Hardware("NVIDIA A100 SXM 40GB", 40),
    "l40s": Hardware("NVIDIA L40S", 48),
    "l4": Hardware("NVIDIA L4", 24),
    "a10": Hardware("NVIDIA A10", 24),
    "rtx-4090": Hardware("NVIDIA GeForce RTX 4090", 24),
}
"""From NVIDIA's data sheets."""


def hardware(name: str) -> Hardware:
    """Return a GPU of `GPUS`, or this machine for ``cpu``.

    Raises:
        ConfigError: There is no such entry.
    """
    if name == "cpu":
        cores, gb = os.cpu_count() or 1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
        return Hardware(f"this machine, {cores} cores", gb, "cpu")
    if name.lower() not in GPUS:
        close = difflib.get_close_matches(name.lower(), GPUS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"--gpu {name}: not in the table; {hint}known: {', '.join(GPUS)}, cpu")
    return GPUS[name.lower()]
