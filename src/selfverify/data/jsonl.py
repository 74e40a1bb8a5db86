"""JSON lines, and JSON files that are one list: records by their offsets, the file never held in memory."""

from __future__ import annotations

import json
import mmap
import re
from array import array
from collections.abc import Iterator
from pathlib import Path

from selfverify.data.fields import Place, Record, read_at
from selfverify.errors import DataError

LONGEST_LINE = 256 * 2**20
"""In bytes. Images may stand in it as base64."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def parse_object(raw: bytes, encoding: str = "utf-8") -> Record:
    """A JSON object.

    Raises:
        DataError: It is none.
    """
    try:
        found = json.loads(raw.decode(encoding))
    except UnicodeDecodeError as error:
        raise DataError(f"it is not {error.encoding} ({error.reason} at byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"it is JSON, but a {type(found).__name__} and not an object")
    return found


class _Offsets:
    """Records of one file by where they begin and how long they are."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.late: dict[int, str] = {}
        self._offsets, self._lengths, self._lines = array("q"), array("q"), array("q")

    def _add(self, offset: int, length: int, line: int) -> tuple[int, Place]:
        self._offsets.append(offset)
        self._lengths.append(length)
        self._lines.append(line)
        return len(self._lines) - 1, Place(self.file, line)

    def record(self, number: int) -> tuple[Place, Record]:
        """See `Source`."""
        raw = read_at(self.file, self._offsets[number], self._lengths[number])
        return Place(self.file, self._lines[number]), parse_object(raw)


class JsonLines(_Offsets):
    """One object per line; empty lines and a byte-order mark are passed over."""

    def scan(self) -> Iterator[tuple[int, Place, Record | DataError]]:
        """See `Source`."""
        with self.file.open("rb") as opened:
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
                    yield *self._add(offset, 0, line), DataError(f"it is longer than {LONGEST_LINE:,} bytes")
                    continue
                if offset == 0 and raw.startswith(BYTE_ORDER_MARK):
                    offset, raw = len(BYTE_ORDER_MARK), raw[len(BYTE_ORDER_MARK) :]
                if not raw.strip():
                    continue
                number, place = self._add(offset, len(raw), line)
                try:
                    yield number, place, parse_object(raw)
                except DataError as error:
                    yield number, place, error


_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)


class JsonList(_Offsets):
    """A file that is one list of objects."""

    def scan(self) -> Iterator[tuple[int, Place, Record | DataError]]:
        """See `Source`. Lines are those on which objects begin."""
        if self.file.stat().st_size == 0:
            return  # cannot be mapped
        with (
            self.file.open("rb") as opened,
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
                        raw = content[begin : token.end()]
                        line += content[counted:begin].count(b"\n")
                        counted = begin
                        number, place = self._add(begin, len(raw), line)
                        try:
                            yield number, place, parse_object(raw)
                        except DataError as error:
                            yield number, place, error
                    elif depth == 0:
                        return
            line += content[counted:begin].count(b"\n")
            reason = "the file ends inside a record" if depth > 1 else "the file ends before its list does"
            yield *self._add(begin, 0, line), DataError(f"{reason}: it is cut off")


class JsonFiles:
    """Files that are one object each.

    Args:
        folder: What errors about the whole call it.
        files: In order.
        encodings: Tried one after another.
    """

    def __init__(self, folder: Path, files: list[Path], encodings: tuple[str, ...] = ("utf-8-sig",)) -> None:
        self.file, self.files, self.encodings = folder, files, encodings
        self.late: dict[int, str] = {}

    def scan(self) -> Iterator[tuple[int, Place, Record | DataError]]:
        """See `Source`."""
        for number in range(len(self.files)):
            try:
                yield number, *self.record(number)
            except DataError as error:
                yield number, self._place(number), error

    def record(self, number: int) -> tuple[Place, Record]:
        """See `Source`."""
        try:
            raw = self.files[number].read_bytes()
        except OSError as error:
            raise DataError(f"it cannot be read: {error}") from None
        for encoding in self.encodings[:-1]:
            try:
                raw.decode(encoding)
            except UnicodeDecodeError:
                continue
            return self._place(number), parse_object(raw, encoding)
        return self._place(number), parse_object(raw, self.encodings[-1])

    def _place(self, number: int) -> Place:
        return Place(self.files[number], unit="")
