"""Every mode that PIL has becomes RGB, or is refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from selfverify.core.rgb import to_rgb


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV"]
)
def test_ordinary_modes(mode: str) -> None:
    made = to_rgb(Image.new(mode, (5, 3)))
    assert (made.mode, made.size) == ("RGB", (5, 3))


def test_sixteen_bits_are_scaled() -> None:
    """Also as files hold them, in both orders of bytes and in 32 bits."""
    values = np.array([[0, 128, 129, 257, 32896, 65407, 65535]], dtype=np.uint16)
    expected = [0, 0, 1, 1, 128, 255, 255]
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    for image in (
        Image.fromarray(values),
        Image.open(io.BytesIO(buffer.getvalue())),
        Image.frombytes("I;16B", (7, 1), values.astype(">u2").tobytes()),
        Image.fromarray(values.astype(np.int32)),
    ):
        made = to_rgb(image)
        assert made.mode == "RGB" and np.asarray(made)[0, :, 0].tolist() == expected, image.mode


def test_eight_bits_in_thirty_two() -> None:
    made = to_rgb(Image.fromarray(np.array([[0, 7, 255]], dtype=np.int32)))
    assert np.asarray(made)[0, :, 2].tolist() == [0, 7, 255]


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (Image.fromarray(np.array([[0, 65536]], dtype=np.int32)), "from 0 to 65536"),
        (Image.fromarray(np.array([[-1, 5]], dtype=np.int32)), "from -1 to 5"),
        (Image.fromarray(np.array([[0.5]], dtype=np.float32)), "a fraction without a known range"),
    ],
)
def test_brightness_without_a_range_is_refused(image: Image.Image, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        to_rgb(image)


def test_more_pixels_than_pil_reads_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    assert to_rgb(Image.new("L", (10, 10))).size == (10, 10)
    with pytest.raises(ValueError, match="it has 101 x 1 pixels, and at most 100 are read"):
        to_rgb(Image.new("L", (101, 1)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert to_rgb(Image.new("L", (101, 1))).size == (101, 1)
