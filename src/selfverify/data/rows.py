"""Rows of data files in the form that tasks take, wherever and however they are stored.

`open_rows` opens a path. Its reader is that of the format that the user names, else of what the files
contain (`FORMATS`, `find_sources`). A row's images are read when they are opened.
"""

from __future__ import annotations

import ast
import csv
import importlib.util
import json
import logging
import mmap
import os
import re
import zlib
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, overload

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.files import naming, open_regular, read_regular, require_regular
from selfverify.data.conversations import (
    convert_agent_task,
    convert_conversation,
    convert_sharegpt,
    is_agent_task,
    is_conversation,
)
from selfverify.data.fields import (
    Blob,
    Convert,
    Images,
    Place,
    Record,
    Row,
    RowSource,
    filled,
    first,
    read_at,
    shown,
)
from selfverify.data.grounding import (
    ASKS_FOR_A_BOX,
    SUFFIXES,
    convert_grounding,
    convert_reasonseg,
    convert_vstar,
    is_reasonseg,
    is_vstar,
    is_vstar_line,
)
from selfverify.data.gui_actions import (
    convert_android_control,
    convert_gui_odyssey,
    convert_mobile,
    is_gui_odyssey,
)
from selfverify.data.preferences import convert_preference, is_preference
from selfverify.data.questions import HUMAN, convert_vqa, spoken
from selfverify.data.tfrecord import TFRecords, is_tfrecord


class _Columns(RowSource):
    """Rows of one file, counted from 1 in errors, in groups that are read at once.

    The scan reads no image. A record is stored as its group's table and its number in that.
    """

    kind: str

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._starts = [0]
        """The first row of every group, and the number of all rows."""
        self._images: list[str] = []
        self._light: list[str] = []
        """What is read of a group; images' bytes are left out."""

    @abstractmethod
    def _open(self) -> Any:
        """Open the file, set the groups, and return the schema. May raise whatever pyarrow raises."""

    @abstractmethod
    def _group(self, group: int, leaves: list[str]) -> Any:
        """Return a group's table, at least with these columns. May raise whatever pyarrow raises."""

    def walk(self) -> Iterator[tuple[Any, int] | DataError]:
        """See `RowSource.walk`. A group that cannot be read is that many broken rows."""
        if importlib.util.find_spec("pyarrow") is None:
            raise ConfigError(f"{self.file}: reading this needs pyarrow; pip install 'selfverify[data]'")
        try:
            schema = self._open()
        except Exception as error:  # pyarrow raises OSError, ArrowInvalid and others
            raise DataError(f"it is no whole {self.kind} file; was it cut off? ({error})") from None
        self._images = [field.name for field in schema if _holds_images(field.type)]
        groups = len(self._starts) - 1
        for group in range(groups):
            try:
                table = self._group(group, self._light)
            except Exception as error:
                broken = DataError(f"row group {group + 1} of {groups} cannot be read ({error})")
                yield from [broken] * (self._starts[group + 1] - self._starts[group])
            else:
                yield from ((table, row) for row in range(table.num_rows))

    def stored(self, number: int) -> tuple[Any, int]:
        """See `RowSource.stored`."""
        return self._find(number, self._light)

    def parsed(self, stored: tuple[Any, int], number: int) -> Record:
        """See `RowSource.parsed`."""
        table, row = stored
        record: Record = {}
        for name in table.column_names:
            try:
                cell = table.column(name)[row]
                record[name] = self._blobs(cell, number, name) if name in self._images else cell.as_py()
            except Exception as error:
                raise DataError(f"its column {name} cannot be read ({error})") from None
        return record

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
        return Place(self.file, number + 1, "row")

    def _find(self, number: int, leaves: list[str]) -> tuple[Any, int]:
        group = bisect_right(self._starts, number) - 1
        try:
            return self._group(group, leaves), number - self._starts[group]
        except Exception as error:
            raise DataError(f"{self.place(number)} cannot be read ({error})") from None

    def _blobs(self, cell: Any, number: int, name: str) -> Any:
        """Return a cell's images, unread."""
        import pyarrow as pa

        if not cell.is_valid:
            return None
        if isinstance(cell, pa.ListScalar):
            return [
                Blob(partial(self._image, number, name, place)) if item.is_valid else None
                for place, item in enumerate(cell)
            ]
        return Blob(partial(self._image, number, name))

    def _image(self, number: int, name: str, place: int | None = None) -> Any:
        table, row = self._find(number, [name])
        cell = table.column(name)[row].as_py()
        return cell if place is None else cell[place]


class Parquet(_Columns):
    """A Parquet file. The last row group that was read stays in memory, once with and once without images."""

    kind = "Parquet"

    def _open(self) -> Any:
        import pyarrow.parquet as parquet

        self._kept: dict[tuple[str, ...], tuple[int, Any]] = {}
        self._file = parquet.ParquetFile(self.file, memory_map=True)
        meta = self._file.metadata
        for group in range(meta.num_row_groups):
            self._starts.append(self._starts[-1] + meta.row_group(group).num_rows)
        leaves = [meta.schema.column(i).path for i in range(meta.num_columns)]
        # The path alone tells whether a cell has an image.
        self._light = [
            leaf
            for leaf in leaves
            if not (leaf.endswith(".bytes") and leaf.removesuffix("bytes") + "path" in leaves)
        ]
        return self._file.schema_arrow

    def _group(self, group: int, leaves: list[str]) -> Any:
        kept = self._kept.get(tuple(leaves))
        if kept is None or kept[0] != group:
            kept = group, self._file.read_row_group(group, columns=leaves)
            self._kept[tuple(leaves)] = kept
        return kept[1]


class Arrow(_Columns):
    """A stream, as `datasets` saves and caches it, or an Arrow file: mapped into memory as one group."""

    kind = "Arrow"

    def _open(self) -> Any:
        import pyarrow as pa

        mapped = pa.memory_map(str(self.file))
        is_file = mapped.read(6) == b"ARROW1"
        mapped.seek(0)
        self._table = (pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)).read_all()
        # Offsets that point out of the file would end the process. Images' bytes are not read for this.
        self._table.validate(full=True)
        self._starts.append(self._table.num_rows)
        return self._table.schema

    def _group(self, group: int, leaves: list[str]) -> Any:
        return self._table


def _holds_images(kind: Any) -> bool:
    """Whether a column may hold images.

    Images are bytes, the struct of bytes and path that `datasets` uses, or lists of these.
    """
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _holds_images(kind.value_type)
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


LONGEST_CELL = 256 * 2**20
"""The longest cell, in characters."""
REFERENCE = 64
"""An ``image`` of at most so many characters is the index of another row, as in VLMEvalKit."""
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm")

_NO_IMAGE = "and no row of that index has an image of its own"

# The limit holds for the whole process; the usual one is smaller than an image.
csv.field_size_limit(LONGEST_CELL)


class Table(RowSource):
    """Rows of CSV or TSV as pandas writes it, found again by where they begin.

    Cells are texts; those of ``image`` become blobs: base64, lists of it, or the index of another row.

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


LONGEST_LINE = 256 * 2**20
"""The longest line in bytes; images may stand in it as base64."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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


class _Offsets(RowSource):
    """Records of one JSON file, found again by their offsets and lengths; it is never held in memory."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._offsets, self._lengths, self._lines = array("q"), array("q"), array("q")

    def _add(self, offset: int, length: int, line: int) -> None:
        self._offsets.append(offset)
        self._lengths.append(length)
        self._lines.append(line)

    def stored(self, number: int) -> bytes:
        """See `RowSource.stored`."""
        return read_at(self.file, self._offsets[number], self._lengths[number])

    def parsed(self, stored: bytes, number: int) -> Record:
        """See `RowSource.parsed`."""
        return parse_object(stored)

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
        return Place(self.file, self._lines[number])


class JsonLines(_Offsets):
    """One object per line; empty lines and a byte-order mark are passed over."""

    def walk(self) -> Iterator[bytes | DataError]:
        """See `RowSource.walk`."""
        with open_regular(self.file) as opened:
            line = 0
            while True:
                offset = opened.tell()
                raw = opened.readline(LONGEST_LINE)
                if not raw:
                    return
                line += 1
                if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
                    while (rest := opened.readline(2**20)) and not rest.endswith(b"\n"):
                        pass
                    self._add(offset, 0, line)
                    yield DataError(f"it is longer than {LONGEST_LINE:,} bytes")
                    continue
                if offset == 0 and raw.startswith(BYTE_ORDER_MARK):
                    offset, raw = len(BYTE_ORDER_MARK), raw[len(BYTE_ORDER_MARK) :]
                if raw.strip():
                    self._add(offset, len(raw), line)
                    yield raw


_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)


class JsonList(_Offsets):
    """A file that is one list of objects."""

    def walk(self) -> Iterator[bytes | DataError]:
        """See `RowSource.walk`. Lines are those on which objects begin."""
        if self.file.stat().st_size == 0:
            return  # cannot be mapped
        with (
            open_regular(self.file) as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            depth, begin, line, counted = 0, 0, 1, 0
            for token in _TOKEN.finditer(content):
                kind = token.group()[:1]
                if kind in b"{[":
                    depth += 1
                    if depth == 2:
                        begin = token.start()
                elif kind in b"}]":
                    depth -= 1
                    if depth == 1:
                        line += content[counted:begin].count(b"\n")
                        counted = begin
                        self._add(begin, token.end() - begin, line)
                        yield content[begin : token.end()]
                    elif depth == 0:
                        return
            line += content[counted:begin].count(b"\n")
            self._add(begin, 0, line)
            reason = "the file ends inside a record" if depth > 1 else "the file ends before its list does"
            yield DataError(f"{reason}: it is cut off")


class JsonFiles(RowSource):
    """Files that are one object each.

    Args:
        folder: The name of the whole in errors.
        files: The files in order.
        encodings: Encodings that are tried one after another.
    """

    def __init__(self, folder: Path, files: list[Path], encodings: tuple[str, ...] = ("utf-8-sig",)) -> None:
        super().__init__(folder)
        self.files, self.encodings = files, encodings

    def walk(self) -> Iterator[Path]:
        """See `RowSource.walk`."""
        return iter(self.files)

    def stored(self, number: int) -> Path:
        """See `RowSource.stored`."""
        return self.files[number]

    def parsed(self, stored: Path, number: int) -> Record:
        """See `RowSource.parsed`."""
        try:
            raw = read_regular(stored)
        except OSError as error:
            raise DataError(f"it cannot be read: {error}") from None
        for encoding in self.encodings[:-1]:
            with suppress(UnicodeDecodeError):
                raw.decode(encoding)
                return parse_object(raw, encoding)
        return parse_object(raw, self.encodings[-1])

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
        return Place(self.files[number], unit="")


HEAD_BYTES = 2**16


Open = Callable[[Path, list[Path]], list[RowSource]]
"""Makes the sources of a folder's files, which belong together."""


@dataclass(frozen=True, slots=True)
class Format:
    """How files of one format are read. docs/data.md shows what each format looks like.

    Args:
        open: Makes the sources of files; None where what a file contains decides.
        convert: Makes rows of records; None where a record's columns decide (`by_columns`).
        suffixes: The ends of files' names by which a folder is searched.
    """

    open: Open | None
    convert: Convert | None = None
    suffixes: tuple[str, ...] = ()


def _each(source: Callable[[Path], RowSource]) -> Open:
    return lambda folder, files: [source(file) for file in files]


def _beside_images(folder: Path, files: list[Path]) -> list[RowSource]:
    """Make one source of files beside images, named after the folder of all: a split's, or the data set's."""
    return [JsonFiles(Path(os.path.commonpath([f.parent for f in files])), files, ("utf-8-sig", "cp1252"))]


def by_columns(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Rows of whichever kind the record's columns say, such as steps on a phone, boxes, or questions."""
    return converter_of(record)(record, place, images)


def converter_of(record: Record) -> Convert:
    """Return what makes rows of records like this one."""
    if "goal" in record and "action" in record:
        return convert_mobile
    if is_agent_task(record):
        return convert_agent_task
    if is_preference(record):
        return convert_preference
    if is_conversation(record):
        return convert_conversation
    if any(filled(record.get(name)) for name in ("box", "bbox", "bbox_2d", "bbox_x1", "bbox_x1_norm")):
        return convert_grounding
    if is_vstar_line(record):
        return convert_vstar
    answer = first(record, "solution")
    if isinstance(answer, list) and len(answer) == 4 and not filled(record.get("answer")):
        return convert_grounding
    if ASKS_FOR_A_BOX.search(str(spoken(record, HUMAN))):
        return convert_grounding
    return convert_vqa


FORMATS: dict[str, Format] = {
    "jsonl": Format(_each(JsonLines), None, (".jsonl", ".ndjson")),
    "json": Format(_each(JsonList), None, (".json",)),
    "parquet": Format(_each(Parquet), None, (".parquet",)),
    "arrow": Format(_each(Arrow), None, (".arrow",)),
    "tsv": Format(_each(lambda file: Table(file, "\t")), None, (".tsv",)),
    "csv": Format(_each(lambda file: Table(file, ",")), None, (".csv",)),
    "open-r1": Format(_each(Parquet), convert_vqa, (".parquet",)),
    "verl": Format(_each(Parquet), convert_conversation, (".parquet",)),
    "sharegpt": Format(None, convert_sharegpt, (".json", ".jsonl")),
    "refcoco": Format(None, convert_grounding, (".json", ".jsonl", ".tsv")),
    "reasonseg": Format(_beside_images, convert_reasonseg, (".json",)),
    "vstar": Format(_beside_images, convert_vstar, (".json",)),
    "android-control": Format(_each(TFRecords), convert_android_control),
    "gui-odyssey": Format(lambda folder, files: [JsonFiles(folder, files)], convert_gui_odyssey, (".json",)),
}


def find_sources(
    path: Path, format: str | None, split: str | None
) -> tuple[list[RowSource], Convert, str, str | None]:
    """Find what reads a path.

    Returns:
        The sources in order, their converter, their format, and the value of the column ``split`` by which
        rows still have to be chosen (None for all rows).

    Raises:
        ConfigError: There is nothing at the path, or no such format.
        DataError: The format cannot be recognised.
    """
    if format is not None and format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; formats: {', '.join(FORMATS)}")
    with naming(path):
        if not path.exists():
            raise ConfigError(f"there is no file or folder {path}")
    folder, files, left = path.parent, [path], split
    if path.is_dir():
        folder, (files, left) = path, _files(path, format, split)
    for file in files:
        require_regular(file)  # some readers map a file into memory, and wait for a pipe
    name = format if format and FORMATS[format].open else detect(files[0])
    if name == "vstar" and files[0].suffix in FORMATS["jsonl"].suffixes:
        name = "jsonl"  # its list in place of the files beside its images
    if name in ("reasonseg", "gui-odyssey"):
        files, left = _listed_split(path, files, left)
    make = FORMATS[name].open
    assert make is not None  # `detect` finds none of those that are None
    return make(folder, files), FORMATS[format or name].convert or by_columns, format or name, left


def detect(file: Path) -> str:
    """Return the format of one file, judged by its first bytes.

    Raises:
        DataError: The file is in none of `FORMATS`.
    """
    with open_regular(file) as opened:
        head = opened.read(HEAD_BYTES)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(31).decompress(head, HEAD_BYTES)
        except zlib.error:
            head = b""
        if is_tfrecord(head):
            return "android-control"
        raise DataError(f"{file} is a GZIP file, but not of TFRecords; unpack it first")
    if is_tfrecord(head):
        return "android-control"
    return _detect_text(file, head)


def _detect_text(file: Path, head: bytes) -> str:
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if text.startswith(b"["):
        return "json"
    if text.startswith(b"{"):
        line, _, more = text.partition(b"\n")
        try:
            record = json.loads(line.decode("utf-8", "replace"))
            alone = not more.strip() and file.stat().st_size <= len(head)
        except ValueError:
            if file.suffix != ".json":
                return "jsonl"
            # The object is spread over many lines, or its line is longer than what was read.
            record, alone = _object_in(file, "replace"), True
        if isinstance(record, dict) and is_reasonseg(record):
            return "reasonseg"
        if isinstance(record, dict) and is_vstar(record):
            return "vstar"
        if isinstance(record, dict) and is_gui_odyssey(record):
            return "gui-odyssey"
        if alone and file.suffix == ".json":
            raise DataError(f"{file} is one JSON object, but of none of ReasonSeg, V* and GUI-Odyssey")
        return "jsonl"
    line = text.partition(b"\n")[0]
    for separator, name in ((b"\t", "tsv"), (b",", "csv")):
        if separator in line and b"\0" not in line:
            return name
    raise DataError(
        f"{file} begins with {head[:16]!r}: none of the formats {', '.join(FORMATS)}; if it is one, name it"
    )


def _files(folder: Path, format: str | None, split: str | None) -> tuple[list[Path], str | None]:
    """Return a folder's files of one kind, and ``split``, or None if choosing the files has settled it."""
    folder_split = split is not None and (folder / split).is_dir()
    if split is not None and folder_split:
        folder, split = folder / split, None
    if (folder / "dataset_dict.json").is_file():
        splits = _list_in(folder / "dataset_dict.json", "splits")
        raise ConfigError(f"{folder} has the splits {', '.join(map(str, splits))}: choose one with split")
    if (folder / "state.json").is_file():
        return _saved_by_datasets(folder), split
    found = [file for file in sorted(folder.rglob("*")) if file.is_file() and not _hidden(file, folder)]
    if format == "android-control":
        found = [f for f in found if f.suffix not in (".json", ".md", ".txt")]
        return _some(folder, found), split
    if format is not None:
        found = [f for f in found if f.suffix.lower() in FORMATS[format].suffixes]
        if format == "gui-odyssey":
            found = [f for f in found if f.parent.name != "splits"]
    else:
        found = _of_one_kind(folder, found)
    if split is not None and (chosen := [f for f in found if _named_for(f, split)]):
        return chosen, None
    return _some(folder, found), split


def _of_one_kind(folder: Path, files: list[Path]) -> list[Path]:
    for suffixes in ((".parquet",), (".arrow",), (".jsonl", ".ndjson"), (".tsv",), (".csv",)):
        if chosen := [f for f in files if f.suffix.lower() in suffixes]:
            return chosen
    if records := [f for f in files if "tfrecord" in f.name or f.name.startswith("android_control-")]:
        return records
    described = [f for f in files if f.suffix == ".json" and f.parent.name != "splits"]
    pictured = {f.with_suffix("") for f in files if f.suffix in SUFFIXES}
    if beside := [f for f in described if f.with_suffix("") in pictured]:
        # A file without its image is broken; an index in another folder is no record at all.
        return [f for f in described if f.parent in {b.parent for b in beside}]
    episodes = [f for f in described if f.parent.name == "annotations"]
    return episodes or described


def _listed_split(path: Path, files: list[Path], split: str | None) -> tuple[list[Path], str | None]:
    """Return the files of one of GUI-Odyssey's splits, and None for the settled split.

    The split ``random_split/test`` is the list ``test`` of ``splits/random_split.json``.
    """
    if split is None:
        return files, None
    name, _, part = split.rpartition("/")
    folder = next((f / "splits" for f in (path, path.parent) if (f / "splits").is_dir()), None)
    known = sorted(folder.glob("*.json")) if folder is not None else []
    chosen = [f for f in known if f.stem == name] if name else known
    if len(chosen) != 1:
        names = ", ".join(f"{f.stem}/{part}" for f in known) or "none: there is no folder of splits"
        raise ConfigError(f"{path}: split {split!r} could be {names}")
    wanted = {str(episode).removesuffix(".json") for episode in _list_in(chosen[0], part)}
    return _some(path, [f for f in files if f.stem in wanted]), None


def _saved_by_datasets(folder: Path) -> list[Path]:
    state = folder / "state.json"
    if _object_in(state).get("_indices_data_files"):
        raise DataError(f"{folder} holds a selection by index; save it again after flatten_indices()")
    entries = [entry for entry in _list_in(state, "_data_files") if isinstance(entry, dict)]
    files = [folder / str(entry.get("filename")) for entry in entries]
    if gone := [file for file in files if not file.is_file()]:
        raise DataError(f"{state} names {gone[0]}, which is no file")
    return _some(folder, files)


def _object_in(file: Path, errors: str = "strict") -> Record:
    try:
        return parse_object(read_regular(file).decode("utf-8-sig", errors).encode())
    except (DataError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from None


def _list_in(file: Path, name: str) -> list[Any]:
    found = _object_in(file).get(name)
    if not isinstance(found, list):
        raise ConfigError(f"{file} has no list {name!r}")
    return found


def _some(folder: Path, files: list[Path]) -> list[Path]:
    if not files:
        raise DataError(f"{folder} has no files of a format that is read: {', '.join(FORMATS)}")
    return files


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _named_for(file: Path, split: str) -> bool:
    return file.stem == split or file.stem.startswith((f"{split}-", f"{split}_", f"{split}."))


logger = logging.getLogger(__name__)

LONGEST_REASON = 300
NAMED = 10
"""Broken rows that an error or a warning names."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used.

    Args:
        file: The row's file.
        line: The row's line, row or record in the file, from 1; 0 where the file is the record, or all of it
            is bad.
        reason: What is wrong.
        place: The file and the line in words.
    """

    file: str
    line: int
    reason: str
    place: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def validated(convert: Convert, record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Return the rows of a record; an error stands for a row that is wrong. Never raises on any record."""
    try:
        return convert(record, place, images)
    except DataError as error:
        return [error]
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        # No reader foresaw a field of this type; the error has to name the row all the same.
        return [DataError(f"it cannot be read ({type(error).__name__}: {error})")]


class Rows:
    """The rows of a file or folder by number, as `open_rows` makes them."""

    def __init__(
        self, path: Path, format: str, sources: list[RowSource], convert: Convert, images: Images
    ) -> None:
        self.path, self.format = path, format
        self.bad: list[BadRow] = []
        self._sources, self._convert, self._images = sources, convert, images
        self._stems = [self._stem(source) for source in sources]
        self._source, self._record, self._part = array("i"), array("q"), array("i")
        self._again: dict[int, int] = {}
        """For each row whose id earlier rows have: the number of these rows."""

    def __len__(self) -> int:
        return len(self._record)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Return row ``index``, read anew; its images are read when they are opened.

        Raises:
            DataError: The file has changed, or what is read only now is broken (AndroidControl's trees).
        """
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} has {len(self)} rows, there is no row {index}")
        index %= len(self)
        source = self._sources[self._source[index]]
        place = source.place(self._record[index])
        record = source.record(self._record[index])
        found = validated(self._convert, record, place, self._images)
        # An error may be about the whole record.
        faults = [row for row in found if isinstance(row, DataError)] or [DataError("the row is gone")]
        row = dict(enumerate(found)).get(self._part[index], faults[0])
        if isinstance(row, DataError):
            raise DataError(
                f"{place}: {row}; the file has changed since it was opened, or this part is read only now"
            )
        return self._named(row, self._source[index], self._record[index], self._again.get(index, 0))

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> Place:
        """Return where row ``index`` stands."""
        return self._sources[self._source[index]].place(self._record[index])

    def _scan(self, split: str | None, limit: int | None, check_images: bool) -> None:
        ids: dict[str, int] = {}
        for number, source in enumerate(self._sources):
            begin, bad = len(self), len(self.bad)
            try:
                for record_number, place, record in source.scan():
                    if isinstance(record, DataError):
                        self._reject(place, record)
                        continue
                    if split is not None and str(record.get("split")) != split:
                        continue
                    self._take(number, record_number, place, record, ids)
                    # A table's references can only be checked at its end.
                    if limit is not None and len(self) >= limit and not isinstance(source, Table):
                        break
            except (DataError, OSError) as error:
                self._reject(Place(source.file, unit=""), error)
            self._drop(
                {i: source.late[n] for i in range(begin, len(self)) if (n := self._record[i]) in source.late}
            )
            if check_images:
                self._drop(self._unseeable(begin))
            self.bad[bad:] = sorted(self.bad[bad:], key=lambda bad: bad.line)
            if limit is not None and len(self) >= limit:
                for column in (self._source, self._record, self._part):
                    del column[limit:]
                break

    def _take(self, source: int, number: int, place: Place, record: Record, ids: dict[str, int]) -> None:
        for part, row in enumerate(validated(self._convert, record, place, self._images)):
            if isinstance(row, DataError):
                self._reject(place, row)
                continue
            id = self._id(row, source, number)
            if before := ids.get(id, 0):
                self._again[len(self)] = before
            ids[id] = before + 1
            self._source.append(source)
            self._record.append(number)
            self._part.append(part)

    def _unseeable(self, begin: int) -> dict[int, str]:
        """Return the rows from ``begin`` on whose images cannot be decoded, with the reasons."""
        found = {}
        for index in range(begin, len(self)):
            try:
                for image in self[index]["images"]:
                    image.open(tries=1)
            except DataError as error:
                found[index] = str(error)
        return found

    def _drop(self, rows: dict[int, str]) -> None:
        """Move rows, given with their reasons, to the broken ones."""
        if not rows:
            return
        for index, reason in rows.items():
            self._reject(self.place(index), DataError(reason))
        kept = [i for i in range(len(self)) if i not in rows]
        self._again = {new: self._again[old] for new, old in enumerate(kept) if old in self._again}
        self._source, self._record, self._part = (
            array(column.typecode, [column[i] for i in kept])
            for column in (self._source, self._record, self._part)
        )

    def _reject(self, place: Place, error: Exception) -> None:
        reason = str(error)
        short = reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + "..."
        # Errors about images name their row already.
        short = short.removeprefix(f"{place}: ")
        self.bad.append(BadRow(str(place.file), place.number, short, str(place)))

    def _stem(self, source: RowSource) -> str:
        if source.file.is_dir():
            return source.file.resolve().name
        inside = source.file.relative_to(self.path) if self.path.is_dir() else Path(source.file.name)
        return inside.with_suffix("").as_posix()

    def _named(self, row: Row, source: int, number: int, again: int) -> Row:
        """Return the row with its whole id and, if it has no source, the file's name as its source."""
        id = self._id(row, source, number) + (f"#{again + 1}" if again else "")
        return {**row, "id": id, "source": row["source"] or self._stems[source]}

    def _id(self, row: Row, source: int, number: int) -> str:
        return f"{self._stems[source]}/{number if row['id'] is None else row['id']}"


def open_rows(
    path: str | Path,
    *,
    format: str | None = None,
    split: str | None = None,
    images: str | Path | None = None,
    limit: int | None = None,
    on_bad: Literal["skip", "refuse"] = "skip",
    check_images: bool = False,
    note_bad: bool = True,
) -> Rows:
    """Open a file or folder: read everything but the images once, and check every row on the way.

    Whatever the format, a row is a dictionary with

    - ``id`` (unique, the same at every opening), ``images`` (a list of `ImageRef`, whose ``open()`` decodes),
      ``source``, ``category`` (or None), ``categories`` ({column: [values]}, what results are broken down
      by), and
    - of a question: ``question``, ``answer`` (a letter where there are ``options``), ``options`` ({letter:
      text} or None), ``answer_type`` and ``precision`` (or None), ``alternatives`` where several answers are
      right, ``unit`` and ``solution`` (how the answer is found) where the file has them;
    - of a box: ``question``, ``box`` [x1, y1, x2, y2] in pixels of the image as it is stored, ``size``
      (width, height), with a mask ``polygons`` and ``ignored`` [[[x, y], ...], ...];
    - of a step on a phone: ``goal``, ``step_instruction`` (or None), ``history`` and ``action``
      (`selfverify.data.gui_actions`), ``screen`` (width, height), where the file says ``ui_boxes`` (of
      the target element), ``episode`` and ``step``.

    In memory remain some 20 bytes per row and, for GZIP files, places at which reading can begin.

    Args:
        path: A file, or a folder whose files belong together.
        format: One of `selfverify.data.rows.FORMATS`; by default what the files contain.
        split: A subfolder, files whose names begin with it, or the value of a column ``split``; for
            GUI-Odyssey a list of ``splits``, such as ``random_split/test``.
        images: The folder that relative paths of images start from; by default the file's.
        limit: The most rows to read.
        on_bad: Whether rows that cannot be used are left out and listed in `Rows.bad`, or end in an error.
        check_images: Whether every image is decoded, too. Otherwise a broken image is found when a run
            wants it, and its problem is left out then.
        note_bad: Whether to warn of rows that are left out.

    Raises:
        ConfigError: There is nothing at the path, or no such format.
        DataError: A row is broken and ``on_bad`` is ``refuse``, or no row can be used.
    """
    path = Path(path).expanduser()
    sources, convert, name, left = find_sources(path, format, split)
    root = Path(images).expanduser() if images is not None else path if path.is_dir() else path.parent
    rows = Rows(path, name, sources, convert, Images(root))
    rows._scan(left, limit, check_images)
    if rows.bad:
        first = "\n".join(f"  {bad}" for bad in rows.bad[:NAMED])
        more = f"\n  and {len(rows.bad) - NAMED} more" if len(rows.bad) > NAMED else ""
        said = f"{len(rows.bad)} broken rows in {path}:\n{first}{more}"
        if on_bad == "refuse":
            raise DataError(f"{said}\nRepair them, or leave them out with on_bad='skip'")
        if not len(rows):
            raise DataError(f"{path} has no usable row; {said}")
        if note_bad:
            note(logger, "rows_skipped", f"skipped {said}", path=str(path), rows=len(rows.bad))
    if not len(rows):
        which = f" of split {split!r}" if split is not None else ""
        raise DataError(f"{path} ({name}) has no rows{which}")
    return rows
