"""CSV and TSV as pandas writes them, images inside: base64, lists of it, or the index of another row."""

from __future__ import annotations

import ast
import csv
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from selfverify.data.fields import Blob, Place, Record, shown
from selfverify.errors import DataError

LONGEST_CELL = 256 * 2**20
"""In characters."""
REFERENCE = 64
"""What VLMEvalKit takes for the index of another row: an ``image`` of at most so many characters."""
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")

# The limit belongs to the process and is there to be raised; the usual one is smaller than an image.
csv.field_size_limit(LONGEST_CELL)


class Table:
    """Rows of a table by where they begin. Cells are texts; ``image`` becomes blobs.

    Args:
        file: UTF-8, with or without a byte-order mark, its first line names the columns.
        delimiter: Between cells.
    """

    def __init__(self, file: Path, delimiter: str) -> None:
        self.file, self.delimiter = file, delimiter
        self.late: dict[int, str] = {}
        self.columns: list[str] = []
        self._offsets, self._lines = array("q"), array("q")
        self._by_index: dict[str, int] = {}
        """Rows that have their own images, by index."""

    def scan(self) -> Iterator[tuple[int, Place, Record | DataError]]:
        """See `Source`. References to unknown rows are `late`: the row may still come."""
        wanted: list[tuple[int, list[str]]] = []
        with self.file.open("rb") as opened:
            lines = _Lines(opened)
            offset, line = 0, 1
            for row in _cells(lines, self.delimiter):
                begin, number, place = offset, len(self._lines), Place(self.file, line)
                offset, line = lines.offset, lines.number + 1
                if not row:
                    continue
                if begin == 0:
                    self.columns = self._header(row)
                    continue
                self._add(begin, place.number)
                try:
                    record = self._record(row)
                    images = _images(record.get("image"))
                except DataError as error:
                    yield number, place, error
                    continue
                if references := [image for image in images if _is_reference(image)]:
                    wanted.append((number, references))
                elif images:
                    self._by_index.setdefault(record.get("index", ""), number)
                yield number, place, self._with_blobs(record, images, number)
        for number, references in wanted:
            for reference in references:
                if reference not in self._by_index:
                    self.late[number] = (
                        f"its image is {shown(reference)}, and no row of that index has an image of its own"
                    )

    def record(self, number: int) -> tuple[Place, Record]:
        """See `Source`."""
        record = self._read(number)
        return Place(self.file, self._lines[number]), self._with_blobs(
            record, _images(record.get("image")), number
        )

    def _add(self, offset: int, line: int) -> None:
        self._offsets.append(offset)
        self._lines.append(line)

    def _read(self, number: int) -> Record:
        try:
            with self.file.open("rb") as opened:
                opened.seek(self._offsets[number])
                return self._record(next(_cells(_Lines(opened), self.delimiter)))
        except (OSError, csv.Error, StopIteration) as error:
            raise DataError(f"{self.file} has changed since it was opened: {error}") from None

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

    def _with_blobs(self, record: Record, images: list[str], number: int) -> Record:
        if "image" in record:
            blobs = [
                Blob(lambda place=place: self._image(number, place))  # type: ignore[misc]
                for place in range(len(images))
            ]
            record["image"] = blobs
        return record

    def _image(self, number: int, place: int) -> str:
        image = _images(self._read(number).get("image"))[place]
        if not _is_reference(image):
            return image
        if image not in self._by_index:
            raise DataError(f"its image is {shown(image)}, and no row of that index has an image of its own")
        return _images(self._read(self._by_index[image]).get("image"))[0]


def _cells(lines: _Lines, delimiter: str) -> Iterator[list[str] | csv.Error]:
    """The rows of a table. `csv` goes character by character; images are long, and hardly ever quoted."""
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
    """A file's lines as text, and how far one is. What is no UTF-8 is kept as lone surrogates."""

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
    """The images of a cell: one, or a list in Python's or in bare notation."""
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
