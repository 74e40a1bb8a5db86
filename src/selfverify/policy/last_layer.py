"""Skips the last decoder layer's feed-forward block for tokens whose output nothing reads.

Behind the last layer, only the last token of a prompt is read: it predicts the first token of the
continuations. Other tokens act through the keys and values that the layer's attention makes of them. So the
feed-forward block, which is most of the layer's cost, gets only the tokens that predict something. Forward
and backward passes become cheaper, most of all in shallow models and with long prompts. Hidden states that
are read stay the same. The others lack what the block would add.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from selfverify.policy.layout import SharedLayout


class ReadOnly:
    """Hooks on a layer's attention and feed-forward block, for rows with a `SharedLayout`.

    Gradient checkpointing calls both modules again, and with them the hooks. Nothing is kept between calls. A
    deep copy of the model has its own hooks.
    """

    def __init__(self) -> None:
        self._layout: SharedLayout | None = None

    @classmethod
    def install(cls, decoder: Any) -> None:
        """Put the hooks on the last of the decoder's ``layers``, if it has ``self_attn`` and ``mlp``."""
        last = decoder.layers[-1] if getattr(decoder, "layers", None) else None
        attention, block = getattr(last, "self_attn", None), getattr(last, "mlp", None)
        if not isinstance(attention, nn.Module) or not isinstance(block, nn.Module):
            return
        hooks = cls()
        decoder.register_forward_pre_hook(hooks.begin)
        attention.register_forward_pre_hook(hooks.enter, with_kwargs=True)
        block.register_forward_pre_hook(hooks.narrow)
        block.register_forward_hook(hooks.widen)

    def begin(self, decoder: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a pass: forget the layout of one whose block ran before its attention, or that failed."""
        self._layout = None

    def enter(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the layer's attention: note the layout of rows with prompts. Other rows are read whole."""
        layout = kwargs.get("shared")
        prompts = layout is not None and layout.mode in ("packed", "prefill")
        self._layout = layout if prompts else None

    def narrow(self, block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Before the block: ``[B, P + G*R, H]`` to ``[B, 1 + G*R, H]``."""
        if self._layout is None:
            return None
        hidden: Tensor = args[0]
        rows = torch.arange(len(hidden), device=hidden.device)
        last = hidden[rows, self._layout.prompt_lengths - 1].unsqueeze(1)
        return torch.cat([last, hidden[:, self._layout.prompt_width :]], dim=1), *args[1:]

    def widen(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """After the block: back to ``[B, P + G*R, H]``, with zeros for the tokens that were left out."""
        if self._layout is None:
            return None
        layout, self._layout = self._layout, None
        if isinstance(output, tuple):  # experts hand out their routing beside the hidden states
            return self._padded(output[0], layout), *output[1:]
        return self._padded(output, layout)

    @staticmethod
    def _padded(hidden: Tensor, layout: SharedLayout) -> Tensor:
        rows = torch.arange(len(hidden), device=hidden.device)
        prompt = hidden.new_zeros(len(hidden), layout.prompt_width, hidden.shape[2])
        prompt = prompt.index_put((rows, layout.prompt_lengths - 1), hidden[:, 0])
        return torch.cat([prompt, hidden[:, 1:]], dim=1)
