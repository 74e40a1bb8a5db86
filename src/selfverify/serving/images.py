"""The images of requests, read from data URLs and checked, and messages prepared for a model.

Messages get the request for the answer format, and a place for each image.
"""

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
from selfverify.core.tags import SCORE_INSTRUCTION
from selfverify.data.images import FORMATS
from selfverify.serving.config import BestOf, ImageLimits
from selfverify.serving.schemas import ApiError, invalid_value

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


def wants_instruction(settings: BestOf, body: Mapping[str, Any]) -> bool:
    """Whether the request for the answer format belongs to a question.

    A model that is to call tools, or to write another format, would have to do both; unless somebody says so.
    """
    if "instruction" in settings.model_fields_set:
        return settings.instruction
    return settings.instruction and not (is_formatted(body) or body.get("tools") or body.get("functions"))


def is_formatted(body: Mapping[str, Any]) -> bool:
    """Whether a request asks for a format of its own."""
    return body.get("response_format") not in (None, {"type": "text"})


def with_instruction(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, the last of them with the request for the answer format at its end.

    A last message that is not a user's, or that mentions ``<score>``, stays as it is.
    """
    last = messages[-1]
    content = last.get("content")
    if last.get("role") != "user":
        return messages
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        return messages
    texts = [part for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    texts = [part for part in texts if part.get("type") == "text"]
    if any("<score>" in part["text"] for part in texts):
        return messages
    if texts:
        text = f"{texts[-1]['text'].strip()} {SCORE_INSTRUCTION}"
        parts = [{**part, "text": text} if part is texts[-1] else part for part in parts]
    else:
        parts = [*parts, {"type": "text", "text": SCORE_INSTRUCTION}]
    changed = parts[0]["text"] if isinstance(content, str) else parts
    return [*messages[:-1], {**last, "content": changed}]


def with_places(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages as parts of text, and a place for each image.

    Raises:
        ApiError: A message or a part is of another kind.
    """
    found = []
    for m, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant"):
            raise invalid_value(f"messages.{m}.role", f"{role!r} is not understood by this model")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not content:
            raise invalid_value(f"messages.{m}.content", "a text or a list of parts is needed")
        parts = [_plain(part, f"messages.{m}.content.{p}") for p, part in enumerate(content)]
        found.append({"role": role, "content": parts})
    return found


def _plain(part: Any, place: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        return {"type": "image"}
    raise invalid_value(place, f"a part of type {kind!r} is not understood by this model")
