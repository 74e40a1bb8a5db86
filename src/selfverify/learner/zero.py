"""Gathers the weights and the optimizer's state that DeepSpeed's ZeRO holds in pieces, for checkpoints.

DeepSpeed's own checkpoints are pickles, one file per process. Ours are the same under every wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selfverify.core import ranks


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the whole state of ``model`` on the first process; every process has to call this."""
    import deepspeed

    whole: dict[str, Tensor] = {}
    found: dict[int, Tensor] = {}
    pieces = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in model.state_dict().items():
        source = pieces.get(name, tensor)
        # Tied weights stay one tensor, as `save_pretrained` expects.
        if id(source) not in found:
            with deepspeed.zero.GatheredParameters([source] if name in pieces else []):
                found[id(source)] = source.detach().cpu().clone() if ranks.index() == 0 else torch.empty(0)
        whole[name] = found[id(source)]
    return whole


_MOMENTS = ("exp_avg", "exp_avg_sq")


class ZeroOptimizer:
    """AdamW under ZeRO, with its state in one piece, as a checkpoint holds it.

    Every process has to make one at the same time.

    Args:
        raw: The optimizer that DeepSpeed wrapped, whose parameters are now flat pieces.
        zero: DeepSpeed's wrapper of ``raw``.
        parameters: The parameters that ``raw`` was made with, in their order.
    """

    def __init__(self, raw: torch.optim.Optimizer, zero: Any, parameters: Sequence[nn.Parameter]) -> None:
        self.raw, self.zero, self.parameters = raw, zero, parameters
        shapes = [torch.empty(getattr(p, "ds_shape", p.shape), device="meta") for p in parameters]
        self.param_groups = [{**raw.param_groups[0], "params": shapes}]
        self.state = {number: self._entry(p) for number, p in enumerate(parameters)} if raw.state else {}

    def state_dict(self) -> dict[str, Any]:
        """Return what `torch.optim.Optimizer.state_dict` would return in a run of one process."""
        group = {**self.param_groups[0], "params": list(range(len(self.parameters)))}
        return {"state": self.state, "param_groups": [group]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put a state back that was taken under any wrapper."""
        from deepspeed.utils import safe_set_full_optimizer_state

        steps = [entry["step"] for entry in state_dict["state"].values()]
        # The first attribute is that of stage 3, the second that of stages 1 and 2.
        pieces = getattr(self.zero, "fp32_partitioned_groups_flat", None)
        for piece in self.zero.single_partition_of_fp32_groups if pieces is None else pieces:
            moments = {key: torch.zeros_like(piece.data) for key in _MOMENTS}
            self.raw.state[piece] = {"step": max(steps).clone(), **moments} if steps else {}
        for number, entry in state_dict["state"].items():
            for key in _MOMENTS:
                parameter = self.parameters[number]
                safe_set_full_optimizer_state(parameter, entry[key].to(parameter.device), key)
        for key, value in state_dict["param_groups"][0].items():
            if key not in ("params", "param_names"):
                self.raw.param_groups[0][key] = value

    def _entry(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        from deepspeed.utils import safe_get_full_optimizer_state

        kept = next(iter(self.raw.state.values()))
        whole = {key: safe_get_full_optimizer_state(parameter, key) for key in _MOMENTS}
        if ranks.index() != 0:
            return {}
        entry = {key: tensor.cpu() for key, tensor in whole.items()}
        return {"step": kept["step"].detach().clone().cpu(), **entry}
