"""Depth: how near the things in an image are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

from selfverify.looking.tools.hub_models import pipeline_of
from selfverify.looking.tools.model_tool import ModelTool
from selfverify.looking.tools.pictures import Gallery, Made
from selfverify.looking.tools.shared import shared
from selfverify.looking.tools.visual_tool import Found, OnImage

_DISTANCES = ("glpn", "zoedepth")
"""Families whose values grow with the distance; the others' grow with nearness."""


class Depth(ModelTool[OnImage]):
    """Shows how near the things in an image are, as a map of brightness.

    Args:
        model: A folder or a hub id of transformers' pipeline ``depth-estimation`` (Depth Anything, DPT).
        device: Where it runs.
    """

    name = "depth"
    also = ("depth_action", "DepthAction")
    arguments = OnImage
    setting = "depth_model"

    def run(self, asked: OnImage, gallery: Gallery) -> Found:
        """See `VisualTool`."""
        full = gallery.picture(asked.image_index).full
        [depth] = shared(("depth", self.model, self.device), self._load)([full])
        label = f"depth of image {asked.image_index}"
        return Found("Brighter is nearer.", [Made(depth, asked.image_index, (0, 0, *full.size), label)])

    def _load(self) -> Callable[[list[Image.Image]], list[Image.Image]]:
        measure = pipeline_of("depth-estimation", self.named, self.device)
        config = measure.model.config
        distance = (
            config.model_type in _DISTANCES or config.to_dict().get("depth_estimation_type") == "metric"
        )

        def see(images: list[Image.Image]) -> list[Image.Image]:
            found = [one["predicted_depth"].float().cpu().numpy() for one in measure(images)]
            return [
                depth_map(-values if distance else values, image.size)
                for values, image in zip(found, images, strict=True)
            ]

        return see


def depth_map(nearness: np.ndarray, size: tuple[int, int]) -> Image.Image:
    """Values ``[height, width]`` as brightness at an image's size: the nearest is white."""
    low, high = float(nearness.min()), float(nearness.max())
    grey = (nearness - low) / (high - low) if high > low else np.zeros_like(nearness)
    shades = (255 * np.squeeze(grey)).round().astype(np.uint8)
    return Image.fromarray(shades).resize(size, Image.Resampling.BILINEAR)
