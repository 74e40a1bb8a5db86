"""What DeepSpeed's ZeRO holds in pieces, in one piece, by DeepSpeed's own helpers: for checkpoints.

Its own checkpoints are pickles of one file per process; ours are the same under every wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state of ``model`` on every process; every process has to call it."""
    import deepspeed

    whole: dict[str, Tensor] = {}
    found: dict[int, Tensor] = {}
    pieces = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in model.state_dict().items():
        source = pieces.get(name, tensor)
        # Tied weights stay one tensor, as `save_pretrained` expects.
        if id(source) not in found:
            with deepspeed.zero.GatheredParameters([source] if name in pieces else []):
                found[id(source)] = source.detach().cpu().clone()
        whole[name] = found[id(source)]
    return whole


class ZeroOptimizer:
    """AdamW under ZeRO as a checkpoint sees it: as if it were alone. Every process has to make one.

    Args:
        raw: The optimizer that DeepSpeed wrapped, whose parameters are now flat pieces.
        parameters: Those it was made with, in their order.
    """

    def __init__(self, raw: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
        self.raw, self.parameters = raw, parameters
        shapes = [torch.empty(getattr(p, "ds_shape", p.shape), device="meta") for p in parameters]
        self.param_groups = [{**raw.param_groups[0], "params": shapes}]
        self.state = {number: self._entry(p) for number, p in enumerate(parameters)}

    def state_dict(self) -> dict[str, Any]:
        """As `torch.optim.Optimizer.state_dict` of one process."""
        group = {**self.param_groups[0], "params": list(range(len(self.parameters)))}
        return {"state": self.state, "param_groups": [group]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put it back, whatever it was taken from."""
        from deepspeed.utils import safe_set_full_optimizer_state

        for number, parameter in enumerate(self.parameters):
            entry = state_dict["state"][number]
            for key in ("exp_avg", "exp_avg_sq"):
                safe_set_full_optimizer_state(parameter, entry[key].to(parameter.device), key)
            for kept in self.raw.state.values():
                kept["step"].copy_(entry["step"])
        for key, value in state_dict["param_groups"][0].items():
            if key not in ("params", "param_names"):
                self.raw.param_groups[0][key] = value

    def _entry(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        from deepspeed.utils import safe_get_full_optimizer_state

        kept = next(iter(self.raw.state.values()))
        entry = {
            key: safe_get_full_optimizer_state(parameter, key).cpu() for key in ("exp_avg", "exp_avg_sq")
        }
        return {"step": kept["step"].detach().clone().cpu(), **entry}
