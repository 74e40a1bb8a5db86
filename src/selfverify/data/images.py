"""Images of data files: read when they are asked for, and tried again if a disk fails for a moment."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from selfverify.core.errors import DataError, IrregularFileError
from selfverify.core.events import note
from selfverify.core.files import open_regular, read_regular
from selfverify.core.images import upright, upright_size

logger = logging.getLogger(__name__)

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""The formats that are read. EPS and its like are left out: they are programs, which a reader would run."""

TRIES = 6
"""How often a file is tried by default."""


@dataclass(frozen=True, slots=True)
class ImageRef:
    """An image of a row, not read yet.

    Args:
        place: Where the row stands that has the image; errors begin with it.
        source: The image's file, its encoded bytes, an image in memory, or what returns one of the first two
            and may raise `DataError`.
    """

    place: object
    source: Path | bytes | Image.Image | Callable[[], bytes | Path]

    def open(self, tries: int = TRIES) -> Image.Image:
        """Return the image, decoded and upright. Each call reads it anew.

        Raises:
            DataError: The image cannot be read, is none, or is larger than PIL allows; its row is named.
        """
        with self._found() as found:
            return read_image(found, tries) if isinstance(found, Path) else decode_image(found)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels as `open` gives them, from the image's header.

        Raises:
            DataError: As for `open`; a file is tried once.
        """
        with self._found() as found:
            if isinstance(found, Image.Image):
                return upright_size(found)
            try:
                with (
                    open_regular(found) if isinstance(found, Path) else io.BytesIO(found) as file,
                    Image.open(file, formats=FORMATS) as image,
                ):
                    return upright_size(image)
            except Exception as error:
                raise _unreadable(found, error) from None

    def data(self) -> bytes:
        """Return the encoded bytes.

        Raises:
            DataError: The bytes cannot be read, or are not there; a file is tried once.
        """
        with self._found() as found:
            if isinstance(found, Image.Image):
                raise DataError("an image in memory has no encoded bytes")
            try:
                return read_regular(found) if isinstance(found, Path) else found
            except OSError as error:
                raise _unreadable(found, error) from None

    @contextmanager
    def _found(self) -> Iterator[bytes | Path | Image.Image]:
        """Give the image's file, bytes or pixels. Errors that come meanwhile begin with the row's place."""
        try:
            yield self.source() if callable(self.source) else self.source
        except DataError as error:
            raise DataError(f"{self.place}: {error}") from None


def file_inside(folder: Path, name: str) -> Path:
    """Return the file in a folder that a name leads to; it may be missing.

    Raises:
        DataError: The name leads out of the folder, also through links; or no file can have it.
    """
    try:
        path = (folder / name).resolve()
        inside = path.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a null character, a circle of links
        inside = False
    if not inside:
        raise DataError(f"image {name[:80]} lies outside the folder {folder.name}")
    try:
        path.is_file()
    except OSError as error:
        raise DataError(f"image {name[:80]}: {error.strerror}") from None
    return path


def read_image(path: Path | str, tries: int = TRIES, wait_s: float = 0.1) -> Image.Image:
    """Return the decoded image in a file, turned as its EXIF data say, and close the file.

    A file that cannot be read is tried again, since it may be moving or half written: after ``wait_s``
    seconds, then after twice as long each time (3.1 s in all by default).

    Raises:
        DataError: No try could read the file, or the image is larger than PIL allows (seen in its header,
            before it is decoded); the message names the file.
    """
    for attempt in range(1, tries + 1):
        encoded = b""
        try:
            encoded = read_regular(Path(path))
            image = _decoded(encoded)
        # PIL raises SyntaxError, ValueError and others for files that are cut off inside their header.
        except Exception as error:
            if attempt == tries or isinstance(error, (Image.DecompressionBombError, IrregularFileError)):
                times = f", at {attempt} {'tries' if attempt > 1 else 'try'}"
                raise _unreadable(Path(path), error, encoded, times) from None
            time.sleep(wait_s * 2 ** (attempt - 1))
            continue
        if attempt > 1:
            said = f"the image {path} could be read at try {attempt}"
            note(logger, "image_retried", said, path=str(path), tries=attempt)
        return image
    raise ValueError(f"tries={tries}: at least one is needed")


def decode_image(encoded: bytes | Image.Image, most_pixels: int | None = None) -> Image.Image:
    """Decode an image, and turn it as its EXIF data say.

    Args:
        encoded: The encoded bytes, or an image that PIL has opened.
        most_pixels: The most pixels that are decoded; None leaves it to PIL.

    Raises:
        DataError: The bytes are no image, are cut off, or the image is larger than allowed (seen in its
            header, before it is decoded).
    """
    try:
        return _decoded(encoded, most_pixels)
    except Exception as error:
        raise _unreadable(encoded, error) from None


def _decoded(encoded: bytes | Image.Image, most_pixels: int | None = None) -> Image.Image:
    if isinstance(encoded, Image.Image):
        return upright(encoded)
    image = Image.open(io.BytesIO(encoded), formats=FORMATS)
    if most_pixels is not None and image.width * image.height > most_pixels:
        found = f"it has {image.width} x {image.height} pixels"
        raise Image.DecompressionBombError(f"{found}, and {most_pixels:,} are allowed")
    return upright(image)


def _unreadable(
    source: Path | bytes | Image.Image, error: Exception, encoded: bytes = b"", times: str = ""
) -> DataError:
    """Return what to raise for an image, given as its file, bytes or pixels, that PIL or the disk refuses."""
    name = f"the image {source}" if isinstance(source, Path) else "the image"
    if isinstance(error, Image.DecompressionBombError):
        return DataError(f"{name}: {error}")
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, UnidentifiedImageError):
        beginning = (source if isinstance(source, bytes) else encoded)[:16]
        reason = f"it is in none of the formats {', '.join(FORMATS)}"
        reason += f", it begins with {beginning!r}" if beginning else ""
    elif isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    return DataError(f"{name} cannot be read{times}: {reason}")
