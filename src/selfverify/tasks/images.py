"""Reading image files that may be away for a moment: network disks, folders that are being copied."""

from __future__ import annotations

import io
import logging
import time
from pathlib import Path

from PIL import Image

from selfverify.errors import DataError
from selfverify.events import note

logger = logging.getLogger(__name__)

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
"""What is read. Not EPS and its like, which are programs for another program to run."""


def read_image(path: Path | str, tries: int = 6, wait_s: float = 0.1) -> Image.Image:
    """The image in a file, decoded, the file closed.

    A file that cannot be read is tried again, since it may be moving or half written: after ``wait_s``
    seconds, then after twice as long each time (3.1 s in all by default).

    Raises:
        DataError: It cannot be read at any try, or is larger than PIL allows; the message names the file.
    """
    for attempt in range(1, tries + 1):
        try:
            image = Image.open(io.BytesIO(Path(path).read_bytes()), formats=FORMATS)
            image.load()
        except Image.DecompressionBombError as error:
            raise DataError(f"the image {path}: {error}") from None
        # PIL raises SyntaxError, ValueError and others for files that are cut off inside their header.
        except Exception as error:
            if attempt == tries:
                raise DataError(
                    f"the image {path} cannot be read, at {tries} {'tries' if tries > 1 else 'try'}: "
                    f"{type(error).__name__}: {error}"
                ) from None
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
