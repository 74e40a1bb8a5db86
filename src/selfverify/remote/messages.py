"""Problems as OpenAI's messages."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PIL import Image

from selfverify.core.errors import DataError

if TYPE_CHECKING:
    from selfverify.core.problem import Problem
from selfverify.core.images import to_rgb


def image_url(image: Image.Image) -> str:
    """Return a picture as a data URL (PNG, so without loss)."""
    buffer = io.BytesIO()
    to_rgb(image).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def openai_messages(problem: Problem) -> list[dict[str, Any]]:
    """Return a problem's messages with its images in their places.

    Raises:
        DataError: There are more or fewer places than images.
    """
    left: list[Image.Image] = list(problem.images)

    def parts(content: Sequence[Any]) -> list[dict[str, Any]]:
        found = []
        for part in content:
            if part.get("type") == "image":
                if not left:
                    raise DataError(f"problem {problem.id}: more places for images than images")
                found.append({"type": "image_url", "image_url": {"url": image_url(left.pop(0))}})
            else:
                found.append(dict(part))
        return found

    messages = [
        {**message, "content": content if isinstance(content, str) else parts(content)}
        for message in problem.messages
        for content in [message.get("content") or ""]
    ]
    if left:
        raise DataError(f"problem {problem.id}: {len(left)} images have no place in its messages")
    return messages
