"""What differs between model families: placeholders, positions, image features.

A family is one small class. Everything else in `policy/` is the same for all.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Family(Protocol):
    """One model family's peculiarities."""

    name: str
    position_axes: int
    """Rows of the position ids: 3 for multimodal rotary embeddings, 1 for plain ones."""

    def backbone(self, model: Any) -> nn.Module:
        """The decoder that maps embeddings to hidden states."""
        ...

    def suppressed(self, model: Any) -> list[int]:
        """Token ids that a policy must never sample (image placeholders)."""
        ...

    def placeholder(self, model: Any) -> int | None:
        """The token id that stands for one image feature; None for text-only models."""
        ...

    def positions(self, model: Any, ids: Tensor, grids: Tensor | None) -> Tensor:
        """Position ids ``[axes, L]`` of one sequence ``ids`` [L] with image grids ``[images, 3]``."""
        ...

    def image_features(self, model: Any, pixels: Tensor, grids: Tensor) -> list[Tensor]:
        """One ``[tokens, hidden]`` tensor per image, in order."""
        ...

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        """The parameters that "freeze the vision tower" freezes."""
        ...


class TextFamily:
    """Any text-only causal language model whose attention goes through transformers' interface."""

    name = "text"
    position_axes = 1

    def backbone(self, model: Any) -> nn.Module:
        """See `Family`."""
        decoder: nn.Module = model.get_decoder()
        return decoder

    def suppressed(self, model: Any) -> list[int]:
        """See `Family`."""
        return []

    def placeholder(self, model: Any) -> int | None:
        """See `Family`."""
        return None

    def positions(self, model: Any, ids: Tensor, grids: Tensor | None) -> Tensor:
        """See `Family`."""
        return torch.arange(len(ids), device=ids.device)[None]

    def image_features(self, model: Any, pixels: Tensor, grids: Tensor) -> list[Tensor]:
        """Text-only models have none; the encoder refuses images before it comes here."""
        raise TypeError("a text-only model has no image features")

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        """See `Family`."""
        return []


class Qwen25VLFamily:
    """Qwen2.5-VL: one placeholder per merged patch, three-axis rotary positions."""

    name = "qwen2_5_vl"
    position_axes = 3

    def backbone(self, model: Any) -> nn.Module:
        """See `Family`."""
        decoder: nn.Module = model.model.language_model
        return decoder

    def suppressed(self, model: Any) -> list[int]:
        """See `Family`."""
        c = model.config
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        ids = (getattr(c, name, None) for name in names)
        return sorted({i for i in ids if i is not None and i < c.text_config.vocab_size})

    def placeholder(self, model: Any) -> int | None:
        """See `Family`."""
        token: int = model.config.image_token_id
        return token

    def positions(self, model: Any, ids: Tensor, grids: Tensor | None) -> Tensor:
        """See `Family`."""
        kinds = (ids == model.config.image_token_id).int()
        places, _ = model.model.get_rope_index(ids[None], kinds[None], image_grid_thw=grids)
        result: Tensor = places[:, 0]
        return result

    def image_features(self, model: Any, pixels: Tensor, grids: Tensor) -> list[Tensor]:
        """See `Family`."""
        return list(model.model.get_image_features(pixels, grids, return_dict=True).pooler_output)

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        """See `Family`."""
        return list(model.model.visual.parameters())


FAMILIES: dict[str, type[Family]] = {"qwen2_5_vl": Qwen25VLFamily}


def family_of(model: Any) -> Family:
    """The family of a loaded model, by its ``model_type``; text-only models share one."""
    model_type = model.config.model_type
    return FAMILIES[model_type]() if model_type in FAMILIES else TextFamily()
