"""GrabCut: segmentation without weights."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from PIL import Image

from selfverify.looking.tools.pictures import Region, smaller
from selfverify.looking.tools.segment import Mask, Segmenter
from selfverify.tasks.tool_calls import ToolError


class GrabCut(Segmenter):
    """GrabCut (Rother et al. 2004) in OpenCV: it tells things by their colours from what is around them.

    Args:
        working_pixels: It works on an image of at most so many pixels; its time grows with them.
    """

    def __init__(self, working_pixels: int = 250_000) -> None:
        self.working_pixels = working_pixels

    def missing(self) -> str:
        """See `Segmenter`."""
        return "" if find_spec("cv2") else "OpenCV is not installed: pip install 'selfverify[looking]'"

    def masks(self, image: Image.Image, regions: Sequence[Region]) -> list[Mask]:
        """The mask of what is inside each region.

        Raises:
            ToolError: A region fills the image, so that nothing is around it.
        """
        import cv2

        small = smaller(image, self.working_pixels)
        pixels = np.ascontiguousarray(np.asarray(small)[:, :, ::-1])
        scale = small.width / image.width, small.height / image.height
        found = []
        for number, region in enumerate(regions, start=1):
            if region == (0, 0, *image.size):
                raise ToolError(f"box {number} is the whole image; leave something around the thing")
            x1, y1, x2, y2 = (round(value * scale[i % 2]) for i, value in enumerate(region))
            marks = np.zeros(pixels.shape[:2], np.uint8)
            cv2.setRNGSeed(0)  # its clusters begin at random
            rectangle = (x1, y1, max(x2 - x1, 1), max(y2 - y1, 1))
            models = np.zeros((1, 65)), np.zeros((1, 65))
            cv2.grabCut(pixels, marks, rectangle, *models, 5, cv2.GC_INIT_WITH_RECT)
            inside = Image.fromarray(np.isin(marks, (cv2.GC_FGD, cv2.GC_PR_FGD)))
            found.append(np.asarray(inside.resize(image.size, Image.Resampling.NEAREST)))
        return found
