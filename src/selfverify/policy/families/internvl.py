"""InternVL (the checkpoints in transformers' format): tiles of equal size between a start and an end mark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL.Image import Image
from torch import Tensor

from selfverify.policy.families.base import ImageInput, VisionFamily, stacked


class InternVL(VisionFamily):
    """InternVL 2.5, 3 and 3.5."""

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        """See `Family`."""
        return [*super().marks(model, tokenizer), tokenizer.start_image_token, tokenizer.end_image_token]

    def preprocess(self, processor: Any, image: Image, several: bool) -> dict[str, Tensor]:
        """See `Family`. Tiles are what the family's processor class asks for, whatever the folder says."""
        return dict(processor(images=[image], return_tensors="pt", crop_to_patches=True))

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        """See `Family`."""
        vision = model.config.vision_config
        height, width = (
            size // patch for size, patch in zip(vision.image_size, vision.patch_size, strict=True)
        )
        tile = int(height * width * model.config.downsample_ratio**2)
        inside = self.slot(model, tokenizer) * (tile * len(tensors["pixel_values"]))
        return f"{tokenizer.start_image_token}{inside}{tokenizer.end_image_token}"

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        """See `Family`."""
        made = model.model.get_image_features(stacked(images, "pixel_values", model), return_dict=True)
        tiles = [len(image.tensors["pixel_values"]) for image in images]
        return [tile.flatten(0, 1) for tile in made.pooler_output.split(tiles)]
