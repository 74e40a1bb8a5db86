"""CSV and TSV as pandas writes them, images inside: base64, lists of it, or the index of another row."""

from __future__ import annotations

import ast
import csv
from array import array
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from selfverify.core.errors import DataError
from selfverify.core.files import open_regular
from selfverify.data.fields import Blob, Place, Record, RowSource, shown

LONGEST_CELL = 256 * 2**20
"""The longest cell, in characters."""
REFERENCE = 64
"""An ``image`` of at most so many characters is the index of another row, as in VLMEvalKit."""
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")

_NO_IMAGE = "and no row of that index has an image of its own"

# The limit holds for the whole process; the usual one is smaller than an image.
csv.field_size_limit(LONGEST_CELL)


class Table(RowSource):
    """Rows of a table, found again by where they begin. Cells are texts; those of ``image`` become blobs.

    Args:
        file: A text in UTF-8, with or without a byte-order mark, whose first line names the columns.
        delimiter: The character between cells.
    """

    def __init__(self, file: Path, delimiter: str) -> None:
        super().__init__(file)
        self.delimiter = delimiter
        self.columns: list[str] = []
        self._offsets, self._lines = array("q"), array("q")
        self._by_index: dict[str, int] = {}
        """Rows that have their own images, by index."""
        self._wanted: dict[int, list[str]] = {}
        """Rows whose images are those of other rows, and the indices of these."""

    def walk(self) -> Iterator[list[str] | csv.Error]:
        """See `RowSource.walk`. References to unknown rows are `late`: the row may still come."""
        with open_regular(self.file) as opened:
            lines = _Lines(opened)
            offset, line = 0, 1
            for row in _cells(lines, self.delimiter):
                if row and offset == 0:
                    self.columns = self._header(row)
                elif row:
                    self._offsets.append(offset)
                    self._lines.append(line)
                    yield row
                offset, line = lines.offset, lines.number + 1
        for number, references in self._wanted.items():
            for reference in references:
                if reference not in self._by_index:
                    self.late[number] = f"its image is {shown(reference)}, {_NO_IMAGE}"

    def stored(self, number: int) -> list[str] | csv.Error:
        """See `RowSource.stored`."""
        try:
            with open_regular(self.file) as opened:
                opened.seek(self._offsets[number])
                return next(_cells(_Lines(opened), self.delimiter))
        except (OSError, StopIteration) as error:
            raise DataError(f"{self.file} has changed since it was opened: {error}") from None

    def parsed(self, stored: list[str] | csv.Error, number: int) -> Record:
        """See `RowSource.parsed`."""
        record = self._record(stored)
        images = _images(record.get("image"))
        if references := [image for image in images if _is_reference(image)]:
            self._wanted[number] = references
        elif images:
            self._by_index.setdefault(record.get("index", ""), number)
        if "image" in record:
            record["image"] = [Blob(partial(self._image, number, place)) for place in range(len(images))]
        return record

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
        return Place(self.file, self._lines[number])

    def _header(self, cells: list[str] | csv.Error) -> list[str]:
        if isinstance(cells, csv.Error) or len(set(cells)) < len(cells):
            raise DataError(f"its first line does not name columns: {shown(cells)}")
        return cells

    def _record(self, cells: list[str] | csv.Error) -> Record:
        if isinstance(cells, csv.Error):
            raise DataError(f"it is no row of a table ({cells}): is a quote never closed?")
        if len(cells) != len(self.columns):
            raise DataError(f"it has {len(cells)} cells, the first line names {len(self.columns)} columns")
        if any(not cell.isascii() and _undecoded(cell) for cell in cells):
            raise DataError("it is not UTF-8")
        return dict(zip(self.columns, cells, strict=True))

    def _image(self, number: int, place: int) -> str:
        image = _images(self._record(self.stored(number)).get("image"))[place]
        if not _is_reference(image):
            return image
        if image not in self._by_index:
            raise DataError(f"its image is {shown(image)}, {_NO_IMAGE}")
        return _images(self._record(self.stored(self._by_index[image])).get("image"))[0]


def _cells(lines: _Lines, delimiter: str) -> Iterator[list[str] | csv.Error]:
    """Yield the rows of a table. Lines without quotes are split directly: `csv` is slow on long images."""
    for line in lines:
        if '"' in line:
            try:
                yield next(csv.reader(chain([line], lines), delimiter=delimiter, strict=True))
            except csv.Error as error:
                yield error
        elif line := line.rstrip("\r\n"):
            yield line.split(delimiter)
        else:
            yield []


class _Lines:
    """A file's lines as text, with the offset and the number of the next one. Bytes that are no UTF-8 become
    lone surrogates."""

    def __init__(self, opened: BinaryIO) -> None:
        self.opened = opened
        self.offset, self.number = opened.tell(), 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        raw = self.opened.readline(LONGEST_CELL)
        if not raw:
            raise StopIteration
        begin = self.offset
        self.offset += len(raw)
        self.number += 1
        line = raw.decode("utf-8", "surrogateescape")
        return line.removeprefix("\ufeff") if begin == 0 else line


def _undecoded(cell: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in cell)


def _images(cell: str | None) -> list[str]:
    """Return the images of a cell, which holds one, or a list with or without quotes around its items."""
    if cell is None or not cell.strip():
        return []
    cell = cell.strip()
    if not (cell.startswith("[") and cell.endswith("]")):
        return [cell]
    try:
        found = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = [part.strip() for part in cell[1:-1].split(",")]
    if not isinstance(found, list) or not all(isinstance(image, str | int) for image in found):
        raise DataError(f"its image {shown(cell)} is no list of images")
    return [str(image) for image in found]


def _is_reference(image: str) -> bool:
    return len(image) <= REFERENCE and not image.lower().endswith(PICTURES)
