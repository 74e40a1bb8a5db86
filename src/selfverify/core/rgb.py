"""Images as policies see them: in RGB, whatever they were."""

from __future__ import annotations

import numpy as np
from PIL import Image


def to_rgb(image: Image.Image) -> Image.Image:
    """A copy of an image in RGB.

    Brightness of 16 bits becomes one of 8: 65535 is white. (PIL cuts it off at 255, so that most of such an
    image turns white.) Transparency is left out, as Hugging Face's image processors do.

    Raises:
        TypeError: It is no image.
        ValueError: The image has brightness without a known range, or more pixels than PIL decodes.
        Exception: Whatever PIL raises for an image that cannot be read.
    """
    if not isinstance(image, Image.Image):
        raise TypeError(f"it is of type {type(image).__name__} and no image of PIL")
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and image.width * image.height > 2 * most:
        raise ValueError(f"it has {image.width} x {image.height} pixels, and at most {2 * most} are read")
    if image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if image.mode == "I":
        low, high = image.getextrema()
        if not 0 <= low <= high <= 65_535:  # type: ignore[operator]
            raise ValueError(f"its brightness goes from {low} to {high}; make it an image of 8 or 16 bits")
        return _from_16_bits(image) if high > 255 else image.convert("RGB")  # type: ignore[operator]
    if image.mode == "F":
        raise ValueError("its brightness is a fraction without a known range; make it an image of 8 bits")
    return image.convert("RGB")


def _from_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.uint32)
    return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")
