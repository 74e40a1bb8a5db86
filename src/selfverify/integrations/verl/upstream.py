"""Faults of verl 0.9.1 that are worked around here, and nowhere else.

* ``maybe_fix_3d_position_ids``: where all rows of an image model's batch are equally long, torch has made
  M-RoPE's position ids ragged in their four axes, verl marks them as ragged in their length, and unbinding
  them fails.
* Qwen2-VL and Qwen2.5-VL, a micro-batch without images (rows of text, skipped problems): verl takes the mean
  of what the vision tower returns, which transformers wraps in an output without one.
* ``actor.freeze_vision_tower`` is read by no engine; `trainer.prepare` freezes the tower.
"""

from __future__ import annotations

from typing import Any

import torch
import verl.utils.tensordict_utils as tensordict_utils
import verl.workers.engine.base as engine_base
import verl.workers.engine_workers as engine_workers
from transformers.modeling_outputs import BaseModelOutputWithPooling
from verl.utils.transformers_compat import unpack_visual_output


def mend_position_ids(data: Any) -> None:
    """Make the position ids of rows ragged in their length where they have four axes."""
    ids = data.get("position_ids", None)
    if ids is None or ids.dim() != 3 or not ids.is_nested:
        return
    if ids._values.shape[0] != 4:
        rows = ids._values.unflatten(0, (-1, 4))
        count, _, length = rows.shape
        flat = rows.permute(1, 0, 2).reshape(4, count * length).contiguous()
        ends = torch.arange(count + 1, device=flat.device) * length
        data["position_ids"] = torch.nested.nested_tensor_from_jagged(flat, ends, jagged_dim=2)
    data["position_ids"]._ragged_idx = 2


def _mean(output: Any) -> torch.Tensor:
    return unpack_visual_output(output)[0].mean()


BaseModelOutputWithPooling.mean = _mean
for _module in (tensordict_utils, engine_base, engine_workers):
    _module.maybe_fix_3d_position_ids = mend_position_ids
