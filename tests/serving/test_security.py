"""Images that are meant to do harm."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from data_files import huge_png
from selfverify.serving.config import ImageLimits
from selfverify.serving.images import Picture, take_images
from selfverify.serving.schemas import ApiError
from serving_servers import data_url, png


def take(url: Any, limits: ImageLimits | None = None, count: int = 1) -> list[Picture]:
    part = {"type": "image_url", "image_url": {"url": url}}
    messages = [{"role": "user", "content": [part] * count}]
    return asyncio.run(take_images(messages, limits or ImageLimits()))


def test_an_image_is_taken() -> None:
    [picture] = take(data_url(png((4, 3), "RGBA")))
    assert picture.format == "PNG" and picture.decode().size == (4, 3) and picture.decode().mode == "RGB"
    [large] = take("data:image/bmp;base64," + data_url(png((900, 900))).partition(",")[2])
    assert large.format == "PNG"


@pytest.mark.parametrize(
    ("url", "code", "status"),
    [
        (data_url(b"no image"), "invalid_image", 400),
        (data_url(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "invalid_image", 400),
        (data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "invalid_image", 400),
        (data_url(png()[:20]), "invalid_image", 400),
        ("data:image/png;base64,!!!!", "invalid_image", 400),
        ("data:image/png,abc", "invalid_image", 400),
        ("data:text/html;base64,YQ==", "invalid_image", 400),
        (data_url(huge_png(10_000, 10_000)), "image_too_large", 413),
        (data_url(huge_png(4480, 4480)), "image_too_large", 413),  # over 20 million pixels
        (data_url(huge_png(60_000, 60_000)), "image_too_large", 413),
        (data_url(png() + b"0" * 200_000), "image_too_large", 413),
        (data_url(png() + b"0" * 900_000), "image_too_large", 413),
        ("https://example.org/cat.png", "remote_image_refused", 400),
        ("file:///etc/passwd", "remote_image_refused", 400),
        ("", "invalid_value", 400),
        (None, "invalid_value", 400),
    ],
)
def test_images_that_are_refused(url: Any, code: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        take(url, ImageLimits(bytes=100_000))
    assert (caught.value.code, caught.value.status) == (code, status)


def test_a_broken_image_is_found_when_it_is_decoded() -> None:
    [picture] = take(data_url(png((300, 300))[:90]))
    with pytest.raises(ApiError, match="decoded"):
        picture.decode()


def test_a_requests_pixels_are_counted_together() -> None:
    limits, url = ImageLimits(pixels=3000), data_url(png((32, 32)))
    assert len(take(url, limits, count=2)) == 2
    with pytest.raises(ApiError, match="3,072 pixels together") as caught:
        take(url, limits, count=3)
    assert (caught.value.code, caught.value.status) == ("image_too_large", 413)


def test_too_many_images() -> None:
    with pytest.raises(ApiError, match="17 images"):
        take(data_url(png()), count=17)
