"""Texts and images of environments as blocks of JSON, and back, within limits."""

from __future__ import annotations

import base64
import io
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image
from pydantic_core import to_json

from selfverify.core.errors import DataError
from selfverify.core.images import to_rgb, upright
from selfverify.data.fields import shown
from selfverify.data.images import FORMATS, decode_image

_NOTE = re.compile(r"\(a block of type [a-z_ ]*, which cannot be shown\)")
_PICTURES, _SVG = {f"image/{format.lower()}" for format in FORMATS}, "image/svg+xml"
_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})


@dataclass(frozen=True, slots=True)
class ContentLimits:
    """Limits of the content that is accepted from the other side of a connection.

    Args:
        message_bytes: The largest message, in bytes.
        images: The most images in one message.
        image_pixels: The most pixels of one image. It is checked before the image is decoded.
    """

    message_bytes: int = 64 * 2**20
    images: int = 16
    image_pixels: int = 40_000_000


def to_blocks(text: str, images: Sequence[Image.Image]) -> list[dict[str, Any]]:
    """Return a text, unless it is empty, and images as content blocks. Images become PNG files.

    They are compressed by runs of equal bytes (zlib's ``Z_RLE``). That takes a third to half of the time of
    PIL's usual way, and the files are as large for photos; a screenshot's may be half as large again.
    """
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for image in images:
        file = io.BytesIO()
        seen = upright(image)
        (seen if seen.mode in _PNG_MODES else to_rgb(seen)).save(
            file, "PNG", compress_level=1, compress_type=zlib.Z_RLE
        )
        data = base64.b64encode(file.getvalue()).decode()
        blocks.append({"type": "image", "data": data, "mimeType": "image/png"})
    return blocks


def from_blocks(blocks: object, limits: ContentLimits) -> tuple[str, list[Image.Image]]:
    """Return what content blocks hold: their texts, one below the other, and their images.

    Of an embedded resource the text or the picture is taken. A block of which nothing can be shown, such as a
    sound, leaves a note in the text.

    Raises:
        DataError: This is no list of blocks, or an image is broken or larger than allowed.
    """
    if not isinstance(blocks, list):
        raise DataError(f"content is no list of blocks but {type(blocks).__name__}")
    texts: list[str] = []
    images: list[Image.Image] = []
    for number, block in enumerate(blocks):
        match block:
            case {"type": "text", "text": str(text)} | {"type": "resource", "resource": {"text": str(text)}}:
                texts.append(text)
            case {"type": "resource", "resource": {"blob": str(data), "mimeType": str(kind)}} if (
                kind in _PICTURES
            ):
                _add_image(images, data, f"block {number}", limits)
            case {"type": "image", "data": str(data)} if block.get("mimeType") != _SVG:
                _add_image(images, data, f"block {number}", limits)
            case {"type": str(kind)} if kind not in ("text", "image") or block.get("mimeType") == _SVG:
                texts.append(
                    f"(a block of type {re.sub(r'[^a-z_]+', ' ', kind[:40])}, which cannot be shown)"
                )
            case _:
                raise DataError(f"block {number} is no content block: {shown(block, 80)}")
    return "\n".join(texts), images


def from_result(result: Mapping[str, Any], limits: ContentLimits) -> tuple[str, list[Image.Image]]:
    """Return what a tool's result holds: its content blocks, or its structured content as JSON.

    The latter only where no block shows anything: with both, the blocks say the same in words.

    Raises:
        DataError: As `from_blocks`.
    """
    blocks = result.get("content")
    structured = result.get("structuredContent", result.get("structured_content"))
    text, images = from_blocks([] if blocks is None and structured is not None else blocks, limits)
    if structured is None or images or _NOTE.sub("", text).strip():
        return text, images
    return to_json(structured).decode(), []


def from_data_urls(
    fields: Mapping[str, Any], limits: ContentLimits
) -> tuple[dict[str, Any], list[Image.Image]]:
    """Take the images that stand in an object as data URLs out of it.

    Returns:
        The object without them, and the images.

    Raises:
        DataError: An image is broken or larger than allowed.
    """
    rest: dict[str, Any] = {}
    images: list[Image.Image] = []
    for name, value in fields.items():
        head = value[:64].lower() if isinstance(value, str) else ""
        if head.startswith("data:image/") and ";base64," in head:
            _add_image(images, value, name, limits)
        else:
            rest[name] = value
    return rest, images


def _add_image(images: list[Image.Image], data: str, place: str, limits: ContentLimits) -> None:
    if len(images) == limits.images:
        raise DataError(f"more than {limits.images} images in one message")
    try:
        # Some write it in lines, or as a data URL; base64 has no commas.
        encoded = base64.b64decode("".join(data.rpartition(",")[2].split()), validate=True)
        images.append(decode_image(encoded, limits.image_pixels))
    except ValueError as error:
        raise DataError(f"{place}: the image's base64 is broken: {error}") from None
    except DataError as error:
        raise DataError(f"{place}: {error}") from None
