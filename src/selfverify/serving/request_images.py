"""The images of requests: read from data URLs, and checked before use."""

from __future__ import annotations

import asyncio
import binascii
import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from selfverify.core.images import to_rgb
from selfverify.data.images import FORMATS
from selfverify.serving.api_errors import ApiError, invalid_value
from selfverify.serving.serve_settings import ImageLimits

_DATA_URL = re.compile(r"data:image/[a-zA-Z0-9.+-]{1,32};base64,", re.ASCII)


@dataclass(frozen=True, slots=True)
class Picture:
    """A checked image: its encoded bytes, its format, such as ``PNG``, and how many pixels it has."""

    data: bytes
    format: str
    pixels: int

    def decode(self) -> Image.Image:
        """Return the image decoded, in RGB: 24 bits a pixel.

        Raises:
            ApiError: The image is cut off or broken inside.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                return to_rgb(Image.open(io.BytesIO(self.data), formats=[self.format]))
        except Exception as error:  # PIL raises many types for broken files
            raise _bad(f"the image cannot be decoded: {type(error).__name__}: {error}") from None


async def take_images(messages: Sequence[Mapping[str, Any]], limits: ImageLimits) -> list[Picture]:
    """Return every image of a conversation, in order, checked.

    Args:
        messages: OpenAI's messages, which are not changed.
        limits: Which images are accepted.

    Raises:
        ApiError: There are too many images, or one is missing, too large, no image, or
            elsewhere than in the request.
    """
    urls = [
        image_url(part, place)
        for place, part in parts_of(messages)
        if isinstance(part, Mapping) and part.get("type") == "image_url"
    ]
    if len(urls) > limits.count:
        raise _bad(f"{len(urls)} images in a request, and {limits.count} are allowed", 413, "too_many_images")
    found: list[Picture] = []
    for url in urls:
        if not url.startswith("data:"):
            raise _bad(
                "images are not fetched from addresses; send the image itself (data:image/png;base64,...)",
                code="remote_image_refused",
            )
        found.append(await asyncio.to_thread(_from_data_url, url, limits))
        total = sum(picture.pixels for picture in found)
        if total > limits.pixels:
            text = f"the images have {total:,} pixels together, and {limits.pixels:,} are allowed"
            raise _bad(text, 413, "image_too_large")
    return found


def parts_of(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of all messages, each with its place, such as ``messages.0.content.1``."""
    for m, message in enumerate(messages):
        content = message.get("content")
        for p, part in enumerate(content if isinstance(content, list) else ()):
            yield f"messages.{m}.content.{p}", part


def image_url(part: Mapping[str, Any], place: str) -> str:
    """Return the address in an ``image_url`` part, which is an object or the address itself.

    Raises:
        ApiError: There is none.
    """
    inner = part.get("image_url")
    url = inner.get("url") if isinstance(inner, Mapping) else inner
    if not isinstance(url, str) or not url:
        raise invalid_value(f"{place}.image_url.url", "there is no url")
    return url


def _from_data_url(url: str, limits: ImageLimits) -> Picture:
    head = _DATA_URL.match(url)
    if not head:
        raise _bad("an image's data URL has to begin with data:image/TYPE;base64,")
    if (len(url) - head.end()) * 3 // 4 > limits.bytes + 2:
        raise _too_large(limits)
    try:
        data = binascii.a2b_base64(url[head.end() :], strict_mode=True)
    except ValueError as error:
        raise _bad(f"an image's base64 is broken: {error}") from None
    return check_image(data, limits)


def check_image(data: bytes, limits: ImageLimits) -> Picture:
    """Check an image by its header.

    Raises:
        ApiError: The bytes are no image, or the image is larger than allowed.
    """
    if len(data) > limits.bytes:
        raise _too_large(limits)
    try:
        with warnings.catch_warnings():  # PIL's own limits are a warning here and an error there
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                (width, height), kind = image.size, image.format
    except Image.DecompressionBombError:
        raise _bad(f"an image has more than {limits.pixels:,} pixels", 413, "image_too_large") from None
    except Exception:  # PIL raises many types for what is no image
        raise _bad(
            f"what was sent as an image is none, or in none of the formats {', '.join(FORMATS)}"
        ) from None
    if width * height > limits.pixels:
        text = f"an image has {width} x {height} pixels, and {limits.pixels:,} are allowed: make it smaller"
        raise _bad(text, 413, "image_too_large")
    return Picture(data, str(kind), width * height)


def _too_large(limits: ImageLimits) -> ApiError:
    return _bad(f"an image takes more than {limits.bytes:,} bytes", 413, "image_too_large")


def _bad(message: str, status: int = 400, code: str = "invalid_image") -> ApiError:
    return ApiError(status, message, code, "messages")
