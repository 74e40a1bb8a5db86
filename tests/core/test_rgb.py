"""Every mode that PIL has becomes RGB, or is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image
from transformers.image_transforms import convert_to_rgb
from transformers.image_utils import load_image

from selfverify.core.images import to_rgb
from selfverify.data.images import ImageRef, decode_image, read_image


def drawing(mode: str) -> Image.Image:
    """Black on what is transparent, wholly, in part and not at all."""
    alpha = np.repeat(np.linspace(0, 255, 12).astype(np.uint8)[None], 5, 0)
    rgba = np.zeros((5, 12, 4), np.uint8)
    rgba[..., 1], rgba[..., 3] = np.arange(12) * 20, alpha
    image = Image.fromarray(rgba)
    if mode == "P":  # one colour of its palette is transparent
        image = image.convert("RGB").quantize(12)
        image.info["transparency"] = image.getpixel((3, 3))
    elif mode == "L":  # a level of grey is
        image = image.convert("RGB").convert("L")
        image.info["transparency"] = image.getpixel((3, 3))
    elif mode == "RGB":
        image = image.convert("RGB")
        image.info["transparency"] = image.getpixel((3, 3))
    elif mode == "La":
        image = image.convert("LA")
    return image.convert(mode) if mode != image.mode else image


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "RGBa", "La", "P", "L", "RGB"])
@pytest.mark.parametrize("stored", [False, True])
def test_what_is_transparent_shows_white(mode: str, stored: bool) -> None:
    """By hand, and, apart from modes that no file has, as `transformers`: c * a + white * (1 - a)."""
    image = drawing(mode)
    if stored:
        if mode in ("PA", "RGBa", "La"):
            pytest.skip("PNG knows no such mode")
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        image = Image.open(buffer)
    plain = image.convert("LA") if mode == "La" else image
    rgba = np.asarray(plain.convert("RGBA")).astype(float)
    alpha = rgba[..., 3:] / 255
    assert alpha.min() == 0 < alpha.max()
    made = np.asarray(to_rgb(image))
    np.testing.assert_allclose(made, rgba[..., :3] * alpha + 255 * (1 - alpha), atol=1)
    assert mode in ("RGBa", "La") or (made == convert_to_rgb(image, return_numpy=True)).all()


def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(0, 255, (24, 40, 3), dtype=np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", [*range(1, 9), 0, 9, 77])
def test_images_are_turned_as_their_files_say(kind: str, value: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = value
    path = tmp_path / f"photo.{kind.lower()}"
    photo().save(path, exif=exif, lossless=True)
    expected = load_image(str(path))
    made = to_rgb(Image.open(path))
    assert made.size == expected.size and made.tobytes() == expected.tobytes()
    assert made.size == ((24, 40) if value in (5, 6, 7, 8) else (40, 24))
    for read in (read_image(path), decode_image(path.read_bytes())):
        assert read.tobytes() == expected.tobytes()
        assert to_rgb(read).tobytes() == expected.tobytes()  # it is not turned again
    for ref in (ImageRef("row 1", path), ImageRef("row 1", Image.open(path))):
        assert ref.size == expected.size == ref.open().size


def test_an_orientation_behind_the_pixels_is_not_seen(tmp_path: Path) -> None:
    """A size that is read from the header and the image agree."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    path = tmp_path / "photo.png"
    photo().save(path, exif=exif)
    content = path.read_bytes()
    start = content.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(content[start : start + 4])
    ends = content.index(b"IEND") - 4
    path.write_bytes(content[:start] + content[end:ends] + content[start:end] + content[ends:])
    ref = ImageRef("row 1", path)
    assert ref.size == (40, 24) == ref.open().size == to_rgb(ref.open()).size


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_data_about_an_image_turn_nothing(tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    photo().save(path, exif=b"Exif\0\0" + b"MM\0*\xff\xff\xff\xff" * 3, quality=100)
    assert to_rgb(Image.open(path)).size == (40, 24) == ImageRef("row 1", path).size


def test_ink_becomes_light(tmp_path: Path) -> None:
    photo().convert("CMYK").save(tmp_path / "ink.jpg")
    expected = load_image(str(tmp_path / "ink.jpg"))
    assert to_rgb(Image.open(tmp_path / "ink.jpg")).tobytes() == expected.tobytes()


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
