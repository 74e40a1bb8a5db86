"""JSON lines, and JSON files that are one list: records by their offsets, the file never held in memory."""

from __future__ import annotations

import json
import mmap
import re
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.core.files import open_regular, read_regular
from selfverify.data.fields import Place, Record, RowSource, read_at, shown

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
    """Records of one file, found again by where they begin and how long they are."""

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
