"""Tasks whose problems are rows of data files: which row an index is, and its images among its text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from selfverify.data.images import read_image
from selfverify.errors import ConfigError, DataError
from selfverify.tasks.canvas import Split
from selfverify.tasks.data_file import DataFile

Row = Mapping[str, Any]


class Rows(Protocol):
    """Rows by number; a row's images may be read when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row: ...


class Splits:
    """The rows of each split: given as they are, or opened from a file when first asked for."""

    def __init__(
        self, files: Mapping[Split, DataFile | None], rows: Mapping[Split, Rows] | None = None
    ) -> None:
        self.files = files
        self._rows: dict[Split, Rows] = dict(rows or {})

    def rows(self, split: Split) -> Rows:
        """The rows of a split.

        Raises:
            ConfigError: The split has neither rows nor a path.
            DataError: Its file cannot be read, or has no rows.
        """
        if split not in self._rows:
            file = self.files.get(split)
            if file is None:
                raise ConfigError(f"the task has no {split} data; set task.{split} to a file or folder")
            self._rows[split] = file.open()
        rows = self._rows[split]
        if not len(rows):
            raise DataError(f"the {split} data{self._named(split)} has no rows")
        return rows

    def row(self, split: Split, seed: int, index: int) -> tuple[Row, str]:
        """The row that is problem ``index``, and the problem's id without the task's name.

        Training goes through all rows again and again, each time in another order (`training_place`);
        ids of further passes say so, since a step may need a row of two passes. The other splits come in
        the file's order, once.

        Raises:
            ConfigError: The split has no path.
            DataError: The row cannot be read, or there are not so many.
        """
        rows = self.rows(split)
        count = len(rows)
        if split == "train":
            place, turn = training_place(seed, index, count)
        elif index < count:
            place, turn = index, 0
        else:
            raise DataError(f"the {split} data{self._named(split)} has {count} rows, not {index + 1}")
        row = rows[place]
        name = row.get("id")
        id = f"{split}/{place if name is None else name}"
        return row, f"{id}/pass-{turn + 1}" if turn else id

    def count(self, split: Split) -> int:
        """Rows of a split."""
        return len(self.rows(split))

    def broken(self, split: Split) -> list[str]:
        """Rows of a split's file that were left out, each with its place and what is wrong."""
        return [str(bad) for bad in getattr(self.rows(split), "bad", ())]

    def _named(self, split: Split) -> str:
        file = self.files.get(split)
        return f" ({file.path})" if file else ""


def training_place(seed: int, index: int, count: int) -> tuple[int, int]:
    """Which of ``count`` rows problem ``index`` is, and in which pass from 0; a pass is a permutation."""
    turn, place = divmod(index, count)
    return int(_order(seed, turn, count)[place]), turn


@lru_cache(maxsize=4)
def _order(seed: int, turn: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, turn, count]).permutation(count)


def row_images(row: Row, name: str) -> list[Image.Image]:
    """The images of a row, read now where it has paths or references (`selfverify.data.ImageRef`).

    Raises:
        DataError: One cannot be read, or is neither an image nor a path.
    """
    images = []
    for image in row.get("images") or ():
        if isinstance(image, (str, Path)):
            try:
                image = read_image(image)
            except DataError as error:
                raise DataError(f"{name}: {error}") from None
        elif hasattr(image, "open") and not isinstance(image, Image.Image):
            image = image.open()
        if not isinstance(image, Image.Image):
            raise DataError(f"{name}: an image is {type(image).__name__}, not an image or a path")
        images.append(image)
    return images


_MARK = re.compile(r"<image(?: ?(\d{1,3}))?>")


def with_images(text: str, images: int, name: str) -> list[dict[str, Any]]:
    """A user's turn with the images at the marks in ``text``, or before it if there are none.

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
