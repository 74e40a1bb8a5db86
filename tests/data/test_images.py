"""An image file that comes back is read as if it had never been away; another is named."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from selfverify.core.errors import DataError
from selfverify.data.images import read_image


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.png"
    Image.effect_noise((40, 30), 50).save(path)
    return path


@pytest.mark.parametrize("there", [None, 200])
def test_a_file_that_comes_back_is_read(
    file: Path, caplog: pytest.LogCaptureFixture, there: int | None
) -> None:
    """It was away, or half written."""
    whole, expected = file.read_bytes(), read_image(file).tobytes()
    file.unlink() if there is None else file.write_bytes(whole[:there])
    back = threading.Timer(0.3, file.write_bytes, (whole,))
    back.start()
    with caplog.at_level(logging.WARNING):
        assert read_image(file, tries=12, wait_s=0.01).tobytes() == expected
    [record] = caplog.records
    assert record.__dict__["event"] == "image_retried" and record.__dict__["fields"]["tries"] > 1
    back.join()


@pytest.mark.parametrize(
    "content", [None, b"", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"\x89PNG"]
)
def test_a_file_that_stays_bad_is_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    path = tmp_path / "bad.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.png cannot be read, at 3 tries"):
        read_image(path, tries=3, wait_s=0.02)
    assert waits == [0.02, 0.04]


def test_the_file_is_closed(file: Path) -> None:
    image = read_image(file)
    file.unlink()
    assert image.getpixel((39, 29)) is not None
