"""Records of JSON, of tables in text and of TAR archives, found again by their places in the file.

`datasets` refuses a whole JSON file for one line that is cut off, and makes texts of a column in which types
are mixed; pandas, by which it reads tables, fills rows up that are too short. These readers name the line and
go on. Nothing is copied: what stays in memory is some 20 bytes per record.
"""

from __future__ import annotations

import csv
import io
import json
import mmap
import re
import tarfile
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from selfverify.core.errors import DataError
from selfverify.core.files import open_regular, read_regular
from selfverify.data.fields import Blob, Place, Record, RowSource, listed, read_at, shown

LONGEST_LINE = 256 * 2**20
"""The longest line or cell in bytes; images may stand in it as base64."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")

Found = tuple[int, int, bytes | DataError]
"""A record's offset, its line, and its bytes or what is wrong with them."""

csv.field_size_limit(LONGEST_LINE)  # of the whole process; the usual one is smaller than an image


def parse_object(raw: bytes, encoding: str = "utf-8") -> Record:
    """Read a JSON object.

    Raises:
        DataError: The bytes are something else, or a key stands twice in an object of it.
    """
    try:
        found = json.loads(raw.decode(encoding), object_pairs_hook=_without_doubles)
    except UnicodeDecodeError as error:
        raise DataError(f"it is not {error.encoding} ({error.reason} at byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"it is JSON, but a {type(found).__name__} and not an object")
    return found


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(name, times)] = Counter(name for name, _ in pairs).most_common(1)
        raise DataError(f"its key {shown(name)} stands {times} times in one object")
    return found


class _Parts(RowSource):
    """Parts of one file, each of which is a record."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._offsets, self._lengths, self._lines = array("q"), array("q"), array("q")

    @abstractmethod
    def _find(self, opened: BinaryIO) -> Iterator[Found]:
        """Yield the file's records."""

    def _parse(self, raw: bytes) -> Record:
        return parse_object(raw)

    def scan(self) -> Iterator[Record | DataError]:
        """See `RowSource.scan`."""
        with open_regular(self.file) as opened:
            for offset, line, raw in self._find(opened):
                self._offsets.append(offset)
                self._lengths.append(0 if isinstance(raw, DataError) else len(raw))
                self._lines.append(line)
                try:
                    yield raw if isinstance(raw, DataError) else self._parse(raw)
                except DataError as error:
                    yield error

    def record(self, number: int) -> Record:
        """See `RowSource.record`."""
        return self._parse(read_at(self.file, self._offsets[number], self._lengths[number]))

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
        return Place(self.file, self._lines[number])


class JsonLines(_Parts):
    """One object per line; empty lines and a byte-order mark are passed over."""

    def _find(self, opened: BinaryIO) -> Iterator[Found]:
        line = offset = 0
        while raw := opened.readline(LONGEST_LINE):
            line += 1
            if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
                while (rest := opened.readline(2**20)) and not rest.endswith(b"\n"):
                    pass
                yield offset, line, DataError(f"it is longer than {LONGEST_LINE:,} bytes")
            elif raw.removeprefix(BYTE_ORDER_MARK).strip():
                mark = len(BYTE_ORDER_MARK) if offset == 0 and raw.startswith(BYTE_ORDER_MARK) else 0
                yield offset + mark, line, raw[mark:]
            offset = opened.tell()


class JsonList(_Parts):
    """A file that is one list of objects; a record's line is the one on which it begins."""

    _TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)

    def _find(self, opened: BinaryIO) -> Iterator[Found]:
        if self.file.stat().st_size == 0:
            return  # cannot be mapped
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            depth, begin, line, counted = 0, 0, 1, 0
            for token in self._TOKEN.finditer(content):
                kind = token.group()[:1]
                if kind in b"{[":
                    depth += 1
                    begin = token.start() if depth == 2 else begin
                elif kind in b"}]":
                    depth -= 1
                    if depth == 1:
                        line += content[counted:begin].count(b"\n")
                        counted = begin
                        yield begin, line, content[begin : token.end()]
                    elif depth == 0:
                        return
            line += content[counted:begin].count(b"\n")
            reason = "the file ends inside a record" if depth > 1 else "the file ends before its list does"
            yield begin, line, DataError(f"{reason}: it is cut off")


class JsonFiles(RowSource):
    """Files that are one object each, in UTF-8 or, as some of ReasonSeg's are, in Windows' Western code."""

    def __init__(self, folder: Path, files: list[Path]) -> None:
        super().__init__(folder)
        self.files = files

    def scan(self) -> Iterator[Record | DataError]:
        """See `RowSource.scan`."""
        return self.records(len(self.files))

    def record(self, number: int) -> Record:
        """See `RowSource.record`."""
        try:
            raw = read_regular(self.files[number])
        except OSError as error:
            raise DataError(f"it cannot be read: {error}") from None
        try:
            raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            return parse_object(raw, "cp1252")
        return parse_object(raw, "utf-8-sig")

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
        return Place(self.files[number], unit="")


class Delimited(_Parts):
    """Rows of CSV or TSV as pandas writes it. All cells are texts; those of ``image`` become lists of images.

    Such a cell is a path, base64, a list of these, or the ``index`` of another row, whose image it is
    (VLMEvalKit).

    Args:
        file: A text in UTF-8, with or without a byte-order mark, whose first line names the columns.
        delimiter: The character between cells.
    """

    REFERENCE = 64
    """An ``image`` of at most so many characters that names no picture is another row's index."""

    def __init__(self, file: Path, delimiter: str) -> None:
        super().__init__(file)
        self.delimiter = delimiter
        self.columns: list[str] = []
        self._by_index: dict[str, int] = {}
        """Rows that have their own images, by index."""

    def scan(self) -> Iterator[Record | DataError]:
        """See `RowSource.scan`. A row may show the image of a later one, so that all are looked at before."""
        for number, record in enumerate(super().scan()):
            if isinstance(record, DataError):
                continue
            images = _images(record.get("image"))
            if images and not any(map(self._is_index, images)):
                self._by_index.setdefault(record.get("index", ""), number)
        return self.records(len(self._offsets))

    def record(self, number: int) -> Record:
        """See `RowSource.record`."""
        record = super().record(number)
        if "image" in record:
            record["image"] = [self._own(image) for image in _images(record["image"])]
        return record

    def _own(self, image: str) -> str:
        if not self._is_index(image):
            return image
        if image not in self._by_index:
            raise DataError(f"its image is {shown(image)}, and no row of that index has an image of its own")
        return _images(super().record(self._by_index[image])["image"])[0]

    def _is_index(self, image: str) -> bool:
        return len(image) <= self.REFERENCE and not image.lower().endswith(PICTURES)

    def _find(self, opened: BinaryIO) -> Iterator[Found]:
        line = offset = 0
        while first := opened.readline(LONGEST_LINE):
            lines = [first]
            if b'"' in first:  # a quoted cell may go on in the next line
                with suppress(csv.Error):  # `_cells` says so
                    next(self._reader(_followed(lines, opened)))
            raw = b"".join(lines)
            if offset == 0:
                self.columns = self._header(raw.removeprefix(BYTE_ORDER_MARK))
            elif raw.strip(b"\r\n"):
                yield offset, line + 1, raw
            offset, line = opened.tell(), line + len(lines)

    def _header(self, raw: bytes) -> list[str]:
        names = self._cells(raw)
        if len(set(names)) < len(names):
            raise DataError(f"its first line does not name columns: {shown(names)}")
        return names

    def _parse(self, raw: bytes) -> Record:
        cells = self._cells(raw)
        if len(cells) != len(self.columns):
            raise DataError(f"it has {len(cells)} cells, the first line names {len(self.columns)} columns")
        return dict(zip(self.columns, cells, strict=True))

    def _cells(self, raw: bytes) -> list[str]:
        try:
            text = raw.decode("utf-8")
            if '"' in text:
                return next(self._reader(io.StringIO(text, newline="")))
            return text.rstrip("\r\n").split(self.delimiter)  # `csv` is slow on long images
        except UnicodeDecodeError:
            raise DataError("it is not UTF-8") from None
        except csv.Error as error:
            raise DataError(f"it is no row of a table ({error}): is a quote never closed?") from None

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=self.delimiter, strict=True)


def _followed(lines: list[bytes], opened: BinaryIO) -> Iterator[str]:
    """Yield a line as text, and those after it, which are added to the list, as far as they are asked for."""
    yield lines[0].decode("utf-8", "replace")
    while raw := opened.readline(LONGEST_LINE):
        lines.append(raw)
        yield raw.decode("utf-8", "replace")


def _images(cell: str | None) -> list[str]:
    """Return the images of a table's cell: one, or a list with or without quotes around its items."""
    cell = (cell or "").strip()
    if not (cell.startswith("[") and cell.endswith("]")):
        return [cell] if cell else []
    try:
        return [str(image) for image in listed(cell, "image")]
    except DataError:
        return [part.strip() for part in cell[1:-1].split(",")]


class WebDataset(RowSource):
    """Samples of a TAR archive: the members whose names are the same up to the first dot.

    A sample's ``.json`` is its record, its pictures are the record's ``images`` in the order of their names,
    and a ``.txt`` is a column of its own. Other members, such as arrays and pickles, are not opened.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._samples: list[tuple[str, dict[str, tuple[int, int]]]] = []

    def scan(self) -> Iterator[Record | DataError]:
        """See `RowSource.scan`."""
        samples: dict[str, dict[str, tuple[int, int]]] = {}
        try:
            with tarfile.open(self.file, "r:") as archive:
                for member in archive:
                    folder, _, name = member.name.rpartition("/")
                    key, _, kind = name.partition(".")
                    if member.isfile() and key:
                        parts = samples.setdefault(f"{folder}/{key}".lstrip("/"), {})
                        parts[kind] = member.offset_data, member.size
        except (tarfile.TarError, OSError, EOFError) as error:
            raise DataError(f"it is no whole TAR archive; was it cut off? ({error})") from None
        self._samples = list(samples.items())
        return self.records(len(self._samples))

    def record(self, number: int) -> Record:
        """See `RowSource.record`."""
        key, parts = self._samples[number]
        record: Record = {"id": key}
        pictures = []
        for kind, place in sorted(parts.items()):
            suffix = f".{kind.rpartition('.')[2].lower()}"
            if suffix == ".json":
                record |= parse_object(read_at(self.file, *place))
            elif suffix == ".txt":
                record[kind] = read_at(self.file, *place).decode("utf-8", "replace")
            elif suffix in PICTURES:
                pictures.append(Blob(partial(read_at, self.file, *place)))
        return {**record, "images": pictures} if pictures else record

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
        return Place(self.file, number + 1, "sample")
