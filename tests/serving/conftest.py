"""A loop for servers, and a picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator

import pytest
from PIL import Image
from serving_servers import Loop


@pytest.fixture
def servers() -> Iterator[Loop]:
    """Closed after the test, with everything that was opened in it."""
    loop = Loop()
    yield loop
    loop.close()


def png(size: tuple[int, int] = (32, 32), mode: str = "RGB") -> bytes:
    """A picture's bytes."""
    buffer = io.BytesIO()
    Image.new(mode, size, 1).save(buffer, "PNG")
    return buffer.getvalue()


def data_url(data: bytes, kind: str = "png") -> str:
    """As requests carry it."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@pytest.fixture
def picture() -> str:
    """A small picture's data URL."""
    return data_url(png())
