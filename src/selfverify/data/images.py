"""Images of data files: read when asked for, and tried again where a disk is away for a moment."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from selfverify.errors import DataError
from selfverify.events import note

logger = logging.getLogger(__name__)

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is read. Not EPS and its like, which are programs for another program to run."""

TRIES = 6
"""How often a file is tried by default."""


@dataclass(frozen=True, slots=True)
class ImageRef:
    """An image of a row, not read yet.

    Args:
        place: Where it is mentioned; as a text it is file and line, with which errors begin.
        path: The image's file, or
        load: what gives its encoded bytes, wherever they are. It may also return a path, and raise
            `DataError`.
    """

    place: object
    path: Path | None = None
    load: Callable[[], bytes | Path] | None = None

    def open(self, tries: int = TRIES) -> Image.Image:
        """The image, decoded. Each call reads it anew.

        Raises:
            DataError: It cannot be read, is no image, or is larger than PIL allows; named by its row.
        """
        try:
            found = self._find()
            return read_image(found, tries) if isinstance(found, Path) else decode_image(found)
        except DataError as error:
            raise DataError(f"{self.place}: {error}") from None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, from the image's header.

        Raises:
            DataError: As `open`; a file is tried once.
        """
        try:
            return self._header().size
        except DataError as error:
            raise DataError(f"{self.place}: {error}") from None

    def data(self) -> bytes:
        """The encoded bytes.

        Raises:
            DataError: They cannot be read; a file is tried once.
        """
        try:
            found = self._find()
            if not isinstance(found, Path):
                return found
            try:
                return found.read_bytes()
            except OSError as error:
                raise DataError(f"the image {found} cannot be read: {error.strerror}") from None
        except DataError as error:
            raise DataError(f"{self.place}: {error}") from None

    def _find(self) -> bytes | Path:
        if self.path is not None:
            return self.path
        if self.load is None:
            raise DataError("an image without a path and without bytes")
        return self.load()

    def _header(self) -> Image.Image:
        found = self._find()
        try:
            if not isinstance(found, Path):
                return Image.open(io.BytesIO(found), formats=FORMATS)
            with Image.open(found, formats=FORMATS) as image:
                return image
        except Exception as error:
            beginning = b"" if isinstance(found, Path) else found[:16]
            raise DataError(_why(found if isinstance(found, Path) else None, beginning, error)) from None


def read_image(path: Path | str, tries: int = TRIES, wait_s: float = 0.1) -> Image.Image:
    """The image in a file, decoded, the file closed.

    A file that cannot be read is tried again, since it may be moving or half written: after ``wait_s``
    seconds, then after twice as long each time (3.1 s in all by default).

    Raises:
        DataError: It cannot be read at any try, or is larger than PIL allows (refused by its header, before
            it is decoded); the message names the file.
    """
    for attempt in range(1, tries + 1):
        beginning = b""
        try:
            encoded = Path(path).read_bytes()
            beginning = encoded[:16]
            image = _decoded(encoded)
        except Image.DecompressionBombError as error:
            raise DataError(f"the image {path}: {error}") from None
        # PIL raises SyntaxError, ValueError and others for files that are cut off inside their header.
        except Exception as error:
            if attempt == tries:
                times = f", at {tries} {'tries' if tries > 1 else 'try'}"
                raise DataError(_why(path, beginning, error, times)) from None
            time.sleep(wait_s * 2 ** (attempt - 1))
            continue
        if attempt > 1:
            note(
                logger,
                "image_retried",
                f"the image {path} could be read at try {attempt}",
                path=str(path),
                tries=attempt,
            )
        return image
    raise ValueError(f"tries={tries}: at least one is needed")


def decode_image(encoded: bytes) -> Image.Image:
    """The image in ``encoded``.

    Raises:
        DataError: It is none, is cut off, or is larger than PIL allows.
    """
    try:
        return _decoded(encoded)
    except Exception as error:
        raise DataError(_why(None, encoded[:16], error)) from None


def _decoded(encoded: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(encoded), formats=FORMATS)
    image.load()
    return image


def _why(path: Path | str | None, beginning: bytes, error: Exception, times: str = "") -> str:
    name = f"the image {path}" if path is not None else "the image"
    if isinstance(error, Image.DecompressionBombError):
        return f"{name}: {error}"
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, UnidentifiedImageError):
        reason = f"it is in none of the formats {', '.join(FORMATS)}"
        reason += f", it begins with {beginning!r}" if beginning else ""
    return f"{name} cannot be read{times}: {reason}"
