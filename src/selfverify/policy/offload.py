"""Keeps activations in the host's memory between the forward and the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def offloaded(model: nn.Module) -> Any:
    """A context for a forward pass, in which the tensors that autograd saves go to the host's memory.

    Weights stay where they are. `torch.autograd.graph.save_on_cpu` would copy them, too.
    """
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(saved: Tensor) -> tuple[torch.device, Tensor]:
        if saved.untyped_storage().data_ptr() in weights:
            return saved.device, saved
        pinned = saved.device.type == "cuda"
        copy = torch.empty(saved.shape, dtype=saved.dtype, layout=saved.layout, pin_memory=pinned)
        return saved.device, copy.copy_(saved)

    def unpack(kept: tuple[torch.device, Tensor]) -> Tensor:
        device, saved = kept
        return saved.to(device, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
