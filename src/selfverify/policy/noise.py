"""Has a model compute while it learns what it computes while it samples."""

from __future__ import annotations

from typing import Any

from torch import nn


def draw_nothing(model: Any) -> None:
    """Switch off what a model drops, adds as noise, or takes from a batch as a whole, while it learns.

    What learns would be another policy than what has sampled. An adapter's dropout is a setting of its own.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.register_forward_pre_hook(_by_kept_statistics)
        for owner in (module, vars(module).get("config")):  # some layers ask their settings each time
            for name, value in [*vars(owner).items()] if owner is not None else ():
                if isinstance(value, float) and ("drop" in name or "jitter" in name):
                    setattr(owner, name, 0.0)


def _by_kept_statistics(module: nn.Module, args: Any) -> None:
    """Have a layer normalise by the means that it has kept, and keep those, also while others learn."""
    module.eval()
