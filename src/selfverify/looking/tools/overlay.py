"""Overlay: one image laid over another."""

from __future__ import annotations

from PIL import Image
from pydantic import Field

from selfverify.looking.tools.pictures import Gallery, Made
from selfverify.looking.tools.visual_tool import Arguments, Found, ImageIndex, VisualTool


class OverlayArguments(Arguments):
    """Arguments of `Overlay`."""

    background_image_index: ImageIndex
    """The number of the image below."""
    overlay_image_index: ImageIndex
    """The number of the image that is laid over it; it is brought to the same size."""
    overlay_proportion: float = Field(0.3, ge=0.0, le=1.0)
    """How much of it is seen: 0 is nothing, 1 covers the image below."""


class Overlay(VisualTool[OverlayArguments]):
    """Lays one image, such as a depth map, half-transparent over another."""

    name = "overlay"
    also = ("overlay_action", "Overlay")
    arguments = OverlayArguments
    at_once = True

    def run(self, asked: OverlayArguments, gallery: Gallery) -> Found:
        """See `VisualTool`."""
        below = gallery.picture(asked.background_image_index).full
        above = gallery.picture(asked.overlay_image_index).full
        if above.size != below.size:
            above = above.resize(below.size, Image.Resampling.BICUBIC)
        label = f"image {asked.overlay_image_index} over image {asked.background_image_index}"
        blended = Image.blend(below, above, asked.overlay_proportion)
        return Found("", [Made(blended, asked.background_image_index, (0, 0, *below.size), label)])
