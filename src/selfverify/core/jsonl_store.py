"""Journals: files of JSON lines that only grow, of which a kill damages no more than the last line.

The first line may be a header, ``{"rows": CLASS, "format": 1, "settings": {...}}``. It names the dataclass of
the other lines and holds everything that decides what these say. Nothing is appended under other settings.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import (
    differences,
    make_folder,
    naming,
    open_regular,
    read_regular,
    require_held,
    write_text,
)

logger = logging.getLogger(__name__)

FORMAT = 1


class StrictRow:
    """The base of a row's class: rows with other fields or types, also inside, are errors when read."""

    __slots__ = ()
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class IndexedRow(Protocol):
    """The dataclass of a journal's lines; ``STORED_AS`` is its name in files, where the class has another."""

    @property
    def index(self) -> int:
        """The row's subject, such as the index of a problem. No two rows have the same."""


Row = TypeVar("Row", bound=IndexedRow)


class JsonlStore:
    """Appends lines to a file.

    Args:
        path: The file. The file and its folder are made if they are not there.
        repair: Whether to remove, with a warning, a last line that has no end because its writer was killed.
            Where several processes write to one file, the first one does this before the others begin.
    """

    def __init__(self, path: Path, repair: bool = True) -> None:
        self.path = path
        make_folder(path.parent)
        with naming(path):
            path.touch()
        content = read_regular(path) if repair else b""
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            logger.warning("%s: the last line was cut off while it was written; removed", path)
            self.truncate(whole)

    def append(self, *rows: Any) -> None:
        """Write one line per JSON value. When this returns, the lines survive the death of the process.

        Raises:
            DataError: A value cannot be stored as JSON. In this case no line is written.
            FileError: The disk is full, for example, or the folder is lost (`require_held`). A part that was
                written is removed, so that lines which are appended later do not stand behind it.
        """
        require_held(self.path)
        lines = memoryview(b"".join(_line(row, self.path) for row in rows))
        # Opened each time, because the file may have been cut back meanwhile. If it was deleted, none is
        # begun in its place, whose first lines would be missing.
        with naming(self.path), open(self.path, "ab", buffering=0, opener=_opened) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                while lines:
                    lines = lines[file.write(lines) :]
            except OSError:
                file.truncate(end)
                raise

    def sync(self) -> int:
        """Force all lines to the disk and return the file's length in bytes."""
        require_held(self.path)
        with naming(self.path), self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def truncate(self, length: int) -> None:
        """Cut the file back to ``length`` bytes."""
        require_held(self.path)
        with naming(self.path), self.path.open("r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_CREAT)


def open_journal(
    path: Path,
    row: type[Row],
    settings: Mapping[str, Any],
    brief: Callable[[Row], Any] = lambda row: row,
) -> tuple[JsonlStore, dict[int, Any]]:
    """Open a journal with a header, a new one or one to go on with.

    Args:
        path: The file.
        row: The dataclass of its lines.
        settings: Everything that decides what the lines say.
        brief: What is kept in memory of a row; by default the row itself.

    Returns:
        The journal, and the rows that it holds by index.

    Raises:
        ConfigError: The journal was written under other settings. The message lists what differs.
        DataError: The file is no journal of such rows, or a line in it is corrupt.
    """
    header = _header(row, settings, path)
    # A header that was cut off has lost nothing.
    if not path.exists() or (path.stat().st_size <= len(header) and header.startswith(read_regular(path))):
        make_folder(path.parent)
        write_text(path, header.decode())
        return JsonlStore(path), {}
    # `JsonlStore` warns below, where it removes a cut-off line.
    found, rows = read_journal(path, row, warn=False, brief=brief)
    # As a reader sees the settings: lists, not tuples.
    if changed := differences(found, json.loads(header)["settings"]):
        raise ConfigError(
            f"{path} was written under other settings: {'; '.join(changed)}. Set them back to go on with it, "
            "or choose another path to start anew"
        )
    return JsonlStore(path), rows


def write_journal(path: Path, row: type[Row], settings: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Write a journal with a header whole or not at all. When this returns, it is on the disk.

    Raises:
        DataError: A row cannot be stored as JSON.
    """
    lines = [_header(row, settings, path), *(_line(asdict(each), path) for each in rows)]  # type: ignore[call-overload]
    make_folder(path.parent)
    write_text(path, b"".join(lines).decode())


def read_journal(
    path: Path, row: type[Row], warn: bool = True, brief: Callable[[Row], Any] = lambda row: row
) -> tuple[dict[str, Any], dict[int, Any]]:
    """Read a journal with a header. A last line that was cut off is left out.

    Args:
        path: The file.
        row: The dataclass of its lines.
        warn: Whether to warn of a line that was cut off.
        brief: See `open_journal`.

    Returns:
        The settings, and the rows by index, in its order. (The file has them as they were finished.)

    Raises:
        DataError: The file is no journal of such rows, a line in it is corrupt, or an index stands twice.
    """
    settings, lines = stream_journal(path, row, warn)
    rows: dict[int, Any] = {}
    for number, (_, found) in enumerate(lines, start=2):
        if found.index in rows:
            raise _corrupt(path, number, f"index {found.index} stands in the file twice")
        rows[found.index] = brief(found)
    return settings, dict(sorted(rows.items()))


def stream_journal(
    path: Path, row: type[Row], warn: bool = True
) -> tuple[dict[str, Any], Iterator[tuple[int, Row]]]:
    """Read a journal with a header row by row, in the file's order, so that it need not fit into memory.

    Args:
        path: See `read_journal`.
        row: See `read_journal`.
        warn: See `read_journal`.

    Returns:
        The settings, and the rows, each with the byte at which its line begins.

    Raises:
        DataError: The file is no journal of such rows, or a line in it is corrupt.
    """
    lines = _whole_lines(path, warn)
    first = next(lines, b"")
    if not path.stat().st_size:
        raise DataError(f"{path} is empty; delete it to start over")
    try:
        header = json.loads(first.decode())
    except (ValueError, RecursionError):
        header = None
    settings = header.pop("settings", None) if isinstance(header, dict) else None
    if header != {"rows": _name_of(row), "format": FORMAT} or not isinstance(settings, dict):
        raise DataError(f"{path}, line 1: not the header of a journal of {_name_of(row)} in format {FORMAT}")

    def rows(begin: int) -> Iterator[tuple[int, Row]]:
        reader = TypeAdapter(row)
        for number, line in enumerate(lines, start=2):
            yield begin, _parsed(reader, line, path, number)
            begin += len(line) + 1

    return settings, rows(len(first) + 1)


def read_rows(path: Path, skip_corrupt: bool = False) -> list[dict[str, Any]]:
    """Read a journal without a header. A last line that was cut off is left out with a warning.

    Args:
        path: The file.
        skip_corrupt: Whether to leave out complete lines that are corrupt, with a warning for each.

    Returns:
        The lines, one JSON object each; an empty list if there is no file.

    Raises:
        DataError: A complete line is corrupt. The message names file and line.
    """
    if not path.exists():
        return []
    rows, reader = [], TypeAdapter(dict[str, Any])
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            rows.append(_parsed(reader, line, path, number))
        except DataError as error:
            if not skip_corrupt:
                raise
            logger.warning("left out: %s", error)
    return rows


def read_lines(path: Path, row: type[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the lines of a file of JSON lines as rows, with their numbers, from 1.

    Raises:
        DataError: A line is no such row. The message names file and line.
    """
    reader = TypeAdapter(row)
    with naming(path), open_regular(path) as file:
        for number, line in enumerate(file, start=1):
            yield number, _parsed(reader, line, path, number)


def _whole_lines(path: Path, warn: bool = True) -> Iterator[bytes]:
    with naming(path), open_regular(path) as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line[:-1]
            elif warn:
                logger.warning("%s: the last line was cut off while it was written; left out", path)


def _parsed(reader: TypeAdapter[Any], line: bytes, path: Path, number: int) -> Any:
    try:
        return reader.validate_json(line)
    except ValidationError as error:
        fault = error.errors()[0]
        name = ".".join(str(part) for part in fault["loc"])
        raise _corrupt(path, number, f"{name}: {fault['msg']}" if name else fault["msg"]) from None


def _corrupt(path: Path, number: int, problem: str) -> DataError:
    return DataError(f"{path}, line {number}: {problem}. Restore the file, or delete it to start over")


def _name_of(row: type[Row]) -> str:
    """Return what a file calls its rows: `STORED_AS` of their class, or the class's name."""
    return str(vars(row).get("STORED_AS", row.__name__))


def _header(row: type[Row], settings: Mapping[str, Any], path: Path) -> bytes:
    return _line({"rows": _name_of(row), "format": FORMAT, "settings": dict(settings)}, path)


def json_line(value: Any) -> bytes:
    """Return one line of JSON. A lone surrogate, which UTF-8 cannot hold, becomes "?".

    Raises:
        TypeError: The value holds what is no JSON.
        ValueError: The value holds NaN or an infinity, or itself.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def _line(value: Any, path: Path) -> bytes:
    try:
        return json_line(value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: a line cannot be stored as JSON: {error}") from None
