"""Records of JSON, of tables in text and of TAR archives, found again by their places in the file.

`datasets` refuses a whole JSON file for one line that is cut off, and makes texts of a column in which types
are mixed; pandas, by which it reads tables, fills rows up that are too short. These readers name the line and
go on. Nothing is copied: what stays in memory is some 20 bytes per record.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tarfile
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from selfverify.core.errors import DataError
from selfverify.core.files import open_regular, read_regular
from selfverify.data.fields import Blob, Place, Record, image_texts, shown

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")

Found = tuple[int, int, bytes]
"""A record's offset, its line, and its bytes."""

csv.field_size_limit(2**31 - 1)  # of the whole process; the usual one is smaller than an image


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


def read_object(file: Path) -> Record:
    """Read a file that is one JSON object, in UTF-8 or, as some of ReasonSeg's are, in Windows-1252.

    Raises:
        DataError: The file cannot be read, or is something else.
    """
    try:
        raw = read_regular(file)
        try:
            raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            return parse_object(raw, "cp1252")
        return parse_object(raw, "utf-8-sig")
    except (DataError, OSError) as error:
        raise DataError(f"{file}: {error}") from None


def read_at(file: Path, offset: int, length: int) -> bytes:
    """Return ``length`` bytes of a file from ``offset`` on.

    Raises:
        DataError: The file cannot be read, or is shorter than that.
    """
    try:
        with open_regular(file) as opened:
            opened.seek(offset)
            found = opened.read(length)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    if len(found) < length:
        raise DataError(f"{file} is shorter than it was when it was opened")
    return found


class RowSource(ABC):
    """The records of one file, or of many small ones.

    Args:
        file: The file, or the folder of the small ones.
    """

    unit = "row"
    """The name of a record in errors."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @abstractmethod
    def scan(self) -> Iterator[Record | DataError]:
        """Yield every record in order, or what is wrong with it, and remember where each stands.

        Raises:
            DataError: Nothing can be read from here on.
        """

    @abstractmethod
    def record(self, number: int) -> Record:
        """Return the record with this number, from 0, which `scan` has passed.

        Raises:
            DataError: The record cannot be read, or not any more.
        """

    def records(self, count: int) -> Iterator[Record | DataError]:
        """Yield the first ``count`` records by their numbers, or what is wrong with them."""
        for number in range(count):
            try:
                yield self.record(number)
            except DataError as error:
                yield error

    def place(self, number: int) -> Place:
        """Return where a record stands that `scan` has passed."""
        return Place(self.file, number + 1, self.unit)


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
        with open_regular(self.file) as opened:
            for offset, line, raw in self._find(opened):
                self._offsets.append(offset)
                self._lengths.append(len(raw))
                self._lines.append(line)
                try:
                    yield self._parse(raw)
                except DataError as error:
                    yield error

    def record(self, number: int) -> Record:
        return self._parse(read_at(self.file, self._offsets[number], self._lengths[number]))

    def place(self, number: int) -> Place:
        return Place(self.file, self._lines[number])


class JsonLines(_Parts):
    """One object per line; empty lines and a byte-order mark are passed over."""

    def _find(self, opened: BinaryIO) -> Iterator[Found]:
        offset = 0
        for line, raw in enumerate(opened, start=1):
            text = raw.removeprefix(BYTE_ORDER_MARK) if offset == 0 else raw
            offset += len(raw)
            if text.strip():
                yield offset - len(text), line, text


class JsonList(_Parts):
    """A file that is one list of objects; a record's line is the one on which it begins."""

    def _find(self, opened: BinaryIO) -> Iterator[Found]:
        text = opened.read().decode("utf-8", "surrogateescape")
        decoder = json.JSONDecoder(parse_int=str)  # numbers of any length; here only their ends count
        at, offset, line, end = 0, 0, 1, text.find("[") + 1
        while True:
            begin = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]  # it matches nothing, too
            passed, at = text[at:begin], begin
            offset, line = offset + len(_encoded(passed)), line + passed.count("\n")
            if text.startswith("]", begin):
                return
            try:
                _, end = decoder.raw_decode(text, begin)
            except (ValueError, RecursionError) as error:
                raise DataError(f"it is not JSON from line {line} on ({error}): was it cut off?") from None
            yield offset, line, _encoded(text[begin:end])


_BETWEEN = re.compile(r"[\s,]*")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class JsonFiles(RowSource):
    """Files of one object each.

    Args:
        file: The folder that they are in.
        files: They.
    """

    def __init__(self, file: Path, files: list[Path]) -> None:
        super().__init__(file)
        self.files = files

    def scan(self) -> Iterator[Record | DataError]:
        return self.records(len(self.files))

    def record(self, number: int) -> Record:
        return read_object(self.files[number])

    def place(self, number: int) -> Place:
        return Place(self.files[number], unit="")


class Delimited(_Parts):
    """Rows of CSV or TSV as pandas writes it. All cells are texts; those of ``image`` become lists of images.

    The first line names the columns; tabs, commas or semicolons stand between cells, the first of them that
    is in that line. A cell of images is a path, base64, a list of these, or the ``index`` of another row,
    whose image it is (VLMEvalKit).
    """

    REFERENCE = 64
    """An ``image`` of at most so many characters that names no picture is another row's index."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.columns: list[str] = []
        self._delimiter = ","
        self._by_index: dict[str, int] = {}
        """Rows that have their own images, by index."""

    def scan(self) -> Iterator[Record | DataError]:
        """Read all rows. A row may show the image of a later one, so that all are looked at before."""
        for number, record in enumerate(super().scan()):
            if isinstance(record, DataError):
                continue
            images = image_texts(record.get("image", ""))
            if images and not any(map(self._is_index, images)):
                self._by_index.setdefault(record.get("index", ""), number)
        return self.records(len(self._offsets))

    def record(self, number: int) -> Record:
        record = super().record(number)
        if "image" in record:
            record["image"] = [self._own(image) for image in image_texts(record["image"])]
        return record

    def _own(self, image: str) -> str:
        if not self._is_index(image):
            return image
        if image not in self._by_index:
            raise DataError(f"its image is {shown(image)}, and no row of that index has an image of its own")
        return image_texts(super().record(self._by_index[image])["image"])[0]

    def _is_index(self, image: str) -> bool:
        return len(image) <= self.REFERENCE and not image.lower().endswith(PICTURES)

    def _find(self, opened: BinaryIO) -> Iterator[Found]:
        lines = [opened.readline()]
        self._delimiter = next((mark for mark in "\t,;" if mark.encode() in lines[0]), ",")
        self.columns = self._cells(lines[0].removeprefix(BYTE_ORDER_MARK))
        if b"\r" in lines[0].rstrip(b"\r\n"):
            raise DataError("its lines end with a carriage return alone: save it with line feeds")
        if len(set(self.columns)) < len(self.columns):
            raise DataError(f"its first line does not name columns: {shown(self.columns)}")

        def texts() -> Iterator[str]:
            """Yield a row's first line, and those after it into which a quoted cell goes on."""
            yield lines[0].decode("utf-8", "replace")
            for raw in opened:
                lines.append(raw)
                yield raw.decode("utf-8", "replace")

        offset, line = len(lines[0]), 2
        for first in opened:
            lines = [first]
            if b'"' in first:
                with suppress(csv.Error):  # `_cells` says so
                    next(self._reader(texts()))
            raw = b"".join(lines)
            if raw.strip(b"\r\n"):
                yield offset, line, raw
            offset, line = offset + len(raw), line + len(lines)

    def _parse(self, raw: bytes) -> Record:
        cells = self._cells(raw)
        if len(cells) != len(self.columns):
            raise DataError(f"it has {len(cells)} cells, the first line names {len(self.columns)} columns")
        return dict(zip(self.columns, cells, strict=True))

    def _cells(self, raw: bytes) -> list[str]:
        try:
            text = raw.decode()
            if '"' in text:
                return next(self._reader(io.StringIO(text, newline="")))
            return text.rstrip("\r\n").split(self._delimiter)  # `csv` is slow on long images
        except UnicodeDecodeError:
            raise DataError("it is not UTF-8") from None
        except csv.Error as error:
            raise DataError(f"it is no row of a table ({error}): is a quote never closed?") from None

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        return csv.reader(lines, delimiter=self._delimiter, strict=True)


class WebDataset(RowSource):
    """Samples of a TAR archive: the members whose names are the same up to the first dot.

    A sample's ``.json`` is its record, its pictures are the record's ``images`` in the order of their names,
    and a ``.txt`` is a column of its own. Other members, such as arrays and pickles, are not opened.
    """

    unit = "sample"

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._samples: list[tuple[str, dict[str, tuple[int, int]]]] = []

    def scan(self) -> Iterator[Record | DataError]:
        samples: dict[str, dict[str, tuple[int, int]]] = {}
        try:
            with tarfile.open(self.file, "r:") as archive:
                for member in filter(tarfile.TarInfo.isfile, archive):
                    folder, _, name = member.name.rpartition("/")
                    key, _, kind = name.partition(".")
                    if key:
                        parts = samples.setdefault(f"{folder}/{key}".lstrip("/"), {})
                        parts[kind] = member.offset_data, member.size
        except (tarfile.TarError, OSError, EOFError) as error:
            raise DataError(f"it is no whole TAR archive; was it cut off? ({error})") from None
        self._samples = list(samples.items())
        return self.records(len(self._samples))

    def record(self, number: int) -> Record:
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
