"""Images as policies see them: upright and in RGB, on white where they are transparent."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import ExifTags, Image

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The transposition that makes an image upright, by the orientation in its EXIF data."""
_TELLING = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")
"""Keys of `Image.info` whose values tell an orientation."""


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a copy of an image in RGB, turned and mirrored as its EXIF data say.

    Transparent parts show white. Brightness of 16 bits becomes one of 8: 65535 is white. (PIL cuts it off at
    255, so that most of such an image turns white.)

    Raises:
        TypeError: It is no image.
        ValueError: The image has brightness without a known range, or more pixels than PIL decodes.
        Exception: PIL cannot read the image; its own exceptions are passed on.
    """
    if not isinstance(image, Image.Image):
        raise TypeError(f"it is of type {type(image).__name__} and no image of PIL")
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and image.width * image.height > 2 * most:
        raise ValueError(f"it has {image.width} x {image.height} pixels, and at most {2 * most} are read")
    return _rgb(upright(image))


def png(image: Image.Image) -> bytes:
    """Return a picture in RGB as a PNG, so without loss."""
    buffer = io.BytesIO()
    to_rgb(image).save(buffer, "PNG")
    return buffer.getvalue()


def image_url(image: Image.Image) -> str:
    """Return a picture as a data URL."""
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"


def image_part(image: Image.Image) -> dict[str, Any]:
    """Return a picture as a part of a message in OpenAI's form."""
    return {"type": "image_url", "image_url": {"url": image_url(image)}}


def is_rgb(image: Image.Image) -> bool:
    """Whether this is an image in memory, as `to_rgb` would make it; its copy takes 4 bytes a pixel."""
    if type(image) is not Image.Image:
        return False
    told = [key for key in (*_TELLING, "transparency") if key in image.info]
    return image.mode == "RGB" and not told


def upright(image: Image.Image) -> Image.Image:
    """Return an image turned and mirrored as its EXIF data say, without those data; itself where it has none.

    Raises:
        Exception: PIL cannot read the image; its own exceptions are passed on.
    """
    turn = _TURNS.get(orientation(image))
    image.load()
    if turn is None and not any(key in image.info for key in _TELLING):
        return image
    # A plain image of PIL: one that knows its file may find the data there again.
    seen = image.copy() if turn is None else image.transpose(turn)
    for key in _TELLING:
        seen.info.pop(key, None)
    return seen


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height of an image that was opened and not decoded, as `upright` will give them."""
    width, height = image.size
    return (height, width) if orientation(image) in (5, 6, 7, 8) else (width, height)


def orientation(image: Image.Image) -> int:
    """The orientation of an image by EXIF, from 1 (upright) to 8, from what stands before its pixels."""
    if not any(key in image.info for key in _TELLING) or image.format == "TIFF":
        return 1  # PIL turns TIFF files itself
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # PIL raises many types for damaged data
        return 1
    return found if found in _TURNS else 1


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if image.mode == "I":
        low, high = image.getextrema()
        if not 0 <= low <= high <= 65_535:  # type: ignore[operator]
            raise ValueError(f"its brightness goes from {low} to {high}; make it an image of 8 or 16 bits")
        return _from_16_bits(image) if high > 255 else image.convert("RGB")  # type: ignore[operator]
    if image.mode == "F":
        raise ValueError("its brightness is a fraction without a known range; make it an image of 8 bits")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = image.convert("LA") if image.mode == "La" else image  # PIL knows no other way
        white.alpha_composite(image.convert("RGBA"))
        return white.convert("RGB")
    return image.convert("RGB")


def _from_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.uint32)
    grey = ((values + 128) // 257).astype(np.uint8)
    if isinstance(clear := image.info.get("transparency"), int):
        grey[values == clear] = 255
    return Image.fromarray(grey).convert("RGB")
