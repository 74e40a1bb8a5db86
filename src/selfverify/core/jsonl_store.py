"""Journals: files of JSON lines that only grow, of which a kill damages no more than the last line.

The first line may be a header, ``{"rows": CLASS, "format": 1, "settings": {...}}``. It names the dataclass of
the other lines and holds everything that decides what these say. Nothing is appended under other settings.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import differences, make_folder, naming, read_regular, require_held, write_text

logger = logging.getLogger(__name__)

FORMAT = 1
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""A row's class has this as ``__pydantic_config__``: rows with other fields or types are errors when read."""


class IndexedRow(Protocol):
    """The dataclass of a journal's lines; ``STORED_AS`` is its name in files, where the class has another."""

    @property
    def index(self) -> int:
        """The row's subject, such as the index of a problem. No two rows have the same."""
        ...


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
    path: Path, row: type[Row], settings: Mapping[str, Any], new_names: Collection[str] = ()
) -> tuple[JsonlStore, dict[int, Row]]:
    """Open a journal with a header, a new one or one to go on with.

    Args:
        path: The file.
        row: The dataclass of its lines.
        settings: Everything that decides what the lines say.
        new_names: Settings that older journals do not name, so that they are not compared.

    Returns:
        The journal, and the rows that it holds by index.

    Raises:
        ConfigError: The journal was written under other settings. The message lists what differs.
        DataError: The file is no journal of such rows, or a line in it is corrupt.
    """
    header = _header(row, settings, path)
    # A header that was cut off has lost nothing.
    if not path.exists() or header.startswith(read_regular(path)):
        make_folder(path.parent)
        write_text(path, header.decode())
        return JsonlStore(path), {}
    found, rows = read_journal(
        path, row, warn=False
    )  # `JsonlStore` warns below, where it removes a cut-off line
    # As a reader sees the settings: lists, not tuples.
    asked = json.loads(header)["settings"]
    asked = {name: value for name, value in asked.items() if name in found or name not in new_names}
    if changed := differences(found, asked):
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


def read_journal(path: Path, row: type[Row], warn: bool = True) -> tuple[dict[str, Any], dict[int, Row]]:
    """Read a journal with a header. A last line that was cut off is left out.

    Args:
        path: The file.
        row: The dataclass of its lines.
        warn: Whether to warn of a line that was cut off.

    Returns:
        The settings, and the rows by index.

    Raises:
        DataError: The file is no journal of such rows, a line in it is corrupt, or an index stands twice.
    """
    lines = _whole_lines(path, warn)
    if not lines and not path.stat().st_size:
        raise DataError(f"{path} is empty; delete it to start over")
    header = _value(path, 1, lines[0]) if lines else None
    wanted = {"rows": _name_of(row), "format": FORMAT}
    settings = header.pop("settings", None) if isinstance(header, dict) else None
    if header != wanted or not isinstance(settings, dict):
        raise DataError(f"{path}, line 1: not the header of a journal of {_name_of(row)} in format {FORMAT}")
    rows: dict[int, Row] = {}
    for number, found in enumerate(parse_rows(path, lines[1:], row, first=2), start=2):
        if found.index in rows:
            raise _corrupt(path, number, f"index {found.index} stands in the file twice")
        rows[found.index] = found
    return settings, rows


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
    return parse_rows(path, _whole_lines(path), dict[str, Any], skip_corrupt) if path.exists() else []


def _whole_lines(path: Path, warn: bool = True) -> list[bytes]:
    *lines, torn = read_regular(path).split(b"\n")
    if torn and warn:
        logger.warning("%s: the last line was cut off while it was written; left out", path)
    return lines


def parse_rows(
    path: Path, lines: list[bytes], row: type[Any], skip_corrupt: bool = False, first: int = 1
) -> list[Any]:
    """Return lines of JSON as rows; errors number them from ``first``.

    Raises:
        DataError: A line is no such row. The message names file and line. With ``skip_corrupt`` it is left
            out with a warning.
    """
    reader = TypeAdapter(row)
    rows = []
    for number, line in enumerate(lines, start=first):
        try:
            rows.append(reader.validate_json(line))
        except ValidationError as error:
            fault = error.errors()[0]
            name = ".".join(str(part) for part in fault["loc"])
            problem = f"{name}: {fault['msg']}" if name else fault["msg"]
            if not skip_corrupt:
                raise _corrupt(path, number, problem) from None
            logger.warning("%s, line %d: %s; left out", path, number, problem)
    return rows


def _value(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, number, f"not valid JSON ({error})") from None


def _corrupt(path: Path, number: int, problem: str) -> DataError:
    return DataError(f"{path}, line {number}: {problem}. Restore the file, or delete it to start over")


def _name_of(row: type[Row]) -> str:
    """Return what a file calls its rows: `STORED_AS` of their class, or the class's name."""
    return str(vars(row).get("STORED_AS", row.__name__))


def _header(row: type[Row], settings: Mapping[str, Any], path: Path) -> bytes:
    return _line({"rows": _name_of(row), "format": FORMAT, "settings": dict(settings)}, path)


def _line(value: Any, path: Path) -> bytes:
    """Return one line of JSON. A lone surrogate, which UTF-8 cannot hold, becomes "?"."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: a line cannot be stored as JSON: {error}") from None
    return text.encode("utf-8", "replace") + b"\n"
