"""Images among a question's text, at the marks that stand for them."""

from __future__ import annotations

import re
from typing import Any

from selfverify.core.errors import DataError

_MARK = re.compile(r"<image(?: ?(\d{1,3}))?>")


def with_images(text: str, images: int, name: str) -> list[dict[str, Any]]:
    """Return a user's turn with the images at the marks in ``text``, or before ``text`` if it has no marks.

    ``<image>`` stands for the next image; there must be as many marks as images. ``<image 2>`` (MMMU) stands
    for the second one, and again for "image 2". If the text does not name all images in their order, they
    all come first and every mark is such a name.

    Raises:
        DataError: Marks and images do not fit each other.
    """
    marks = list(_MARK.finditer(text))
    numbers = [int(mark[1]) if mark[1] else 0 for mark in marks]
    if 0 in numbers:
        if numbers != [0] * images:
            raise DataError(f"{name}: {len(marks)} image marks in the text, {images} images in the row")
        numbers = list(range(1, images + 1))
    if numbers and not 1 <= min(numbers) <= max(numbers) <= images:
        raise DataError(f"{name}: the text names image {max(numbers)}, the row has {images} images")
    inline = list(dict.fromkeys(numbers)) == list(range(1, images + 1))
    content: list[dict[str, Any]] = [] if inline else [{"type": "image"} for _ in range(images)]
    written, at, shown = "", 0, 0
    for mark, number in zip(marks, numbers, strict=True):
        written += text[at : mark.start()]
        at = mark.end()
        if inline and number > shown:
            content += [*_text(written), {"type": "image"}]
            written, shown = "", number
        else:
            written += f"image {number}"
    return [{"role": "user", "content": content + _text(written + text[at:])}]


def _text(written: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": written}] if written.strip() else []
