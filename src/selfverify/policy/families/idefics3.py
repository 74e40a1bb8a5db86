"""Idefics3 and SmolVLM: an image is split into tiles, each with marks around its placeholders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from selfverify.policy.families.base import ImageInput, VisionFamily

AROUND, GLOBAL = "<fake_token_around_image>", "<global-img>"


class Idefics3(VisionFamily):
    """Both share their classes' structure; SmolVLM only has smaller tiles."""

    tower = ("vision_model", "connector")

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        """See `Family`."""
        return [*super().marks(model, tokenizer), AROUND, GLOBAL]

    def preprocess(self, processor: Any, image: Image, several: bool) -> dict[str, Any]:
        """See `Family`."""
        made = processor(images=[[image]], return_tensors="pt", return_row_col_info=True)
        return dict(made)

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Any]) -> str:
        """See `Family`: tiles row by row, then the whole image."""
        vision = model.config.vision_config
        tile = self.slot(model, tokenizer) * (
            (vision.image_size // vision.patch_size) ** 2 // model.config.scale_factor**2
        )
        rows, columns = int(tensors["rows"][0][0]), int(tensors["cols"][0][0])
        lines = [
            "".join(f"{AROUND}<row_{r + 1}_col_{c + 1}>{tile}" for c in range(columns)) + "\n"
            for r in range(rows)
        ]
        return "".join(lines) + ("\n" if lines else "") + f"{AROUND}{GLOBAL}{tile}{AROUND}"

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        """See `Family`. One by one: images differ in their number of tiles."""
        features = []
        for image in images:
            pixels = image.tensors["pixel_values"].to(model.device)
            mask = image.tensors["pixel_attention_mask"].to(model.device)
            made = model.model.get_image_features(pixels, mask, return_dict=True)
            features.append(torch.cat([tile.reshape(-1, tile.shape[-1]) for tile in made.pooler_output]))
        return features
