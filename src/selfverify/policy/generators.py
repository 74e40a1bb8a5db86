"""torch's global random generators: one of the CPU, and one of each other device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_generators(device: torch.device) -> Iterator[None]:
    """A context after which the generators of the CPU and of ``device`` are as they were before."""
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        yield
