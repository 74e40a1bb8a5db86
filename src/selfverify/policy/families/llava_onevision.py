"""LLaVA-OneVision: the whole image, then its tiles without their padding and with a mark per line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn

from selfverify.policy.families.base import ImageInput, VisionFamily


class LlavaOnevision(VisionFamily):
    """LLaVA-OneVision in transformers' format."""

    splits_single_images = True

    def preprocess(self, processor: Any, image: Image, several: bool) -> dict[str, Any]:
        """See `Family`."""
        made = processor(images=[[image] * (1 + several)], return_tensors="pt")
        return {
            "pixel_values": made["pixel_values"][:1],
            "image_sizes": made["image_sizes"][:1],
            "batch_num_images": torch.tensor([1 + several]),
        }

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        """See `Family`. Counted by letting the model pack features of width 1."""
        vision = model.config.vision_config
        tile = (vision.image_size // vision.patch_size) ** 2
        tiles = torch.zeros(tensors["pixel_values"].shape[1], tile, 1)
        packed, _ = model.model.pack_image_features(
            [tiles], tensors["image_sizes"], torch.zeros(1), model.config.vision_aspect_ratio
        )
        return self.slot(model, tokenizer) * len(packed[0])

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        """See `Family`. One by one: images differ in their number of tiles."""
        features = []
        for image in images:
            made = model.model.get_image_features(
                image.tensors["pixel_values"].to(model.device),
                image.tensors["image_sizes"].to(model.device),
                batch_num_images=image.tensors["batch_num_images"],  # one image, but did it stand alone?
                return_dict=True,
            )
            features.append(made.pooler_output[0])
        return features

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        """See `Family`."""
        return [*super().vision_parameters(model), model.model.image_newline]
