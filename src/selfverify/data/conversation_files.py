"""Writing conversations with tools as files: verl's parquet, or JSON lines with the same columns.

Calls stand in the assistant's content, as Qwen's chat templates write them, so that no column has the union
of all arguments. ``tools`` is the list of objects that verl reads; Parquet gives each of their fields to all
of them, null where a tool has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import make_folder, written_whole

SUFFIXES = (".parquet", ".jsonl")
_BATCH = 256


def check_output(path: Path) -> None:
    """Refuse an output that cannot be written, before anything is computed for it.

    Raises:
        ConfigError: Its suffix is unknown, or pyarrow is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: conversations are written as {' or '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        _pyarrow(path)


def journal_of(path: Path) -> Path:
    """The file beside an output that keeps what its conversations are made of, so that nothing is lost."""
    return path.with_name(f"{path.name}.journal")


def write_conversations(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write conversations, all of them or none; return their number.

    Args:
        path: The file; ``.parquet`` or ``.jsonl``.
        rows: ``messages`` (``role`` and ``content`` each), ``tools``, and further columns, the same of all
            rows.

    Raises:
        ConfigError: As `check_output`.
        DataError: There are none, or rows of one Parquet file have different columns.
    """
    check_output(path)
    make_folder(path.parent)
    with written_whole(path) as partial:
        count = (_parquet if path.suffix == ".parquet" else _lines)(partial, rows)
        if not count:
            raise DataError(f"{path}: there are no conversations to write")
    return count


def _lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def _parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    pa, parquet = _pyarrow(path)
    left = iter(rows)
    begin = [_storable(row) for row in islice(left, _BATCH)]
    if not begin:
        return 0
    schema = pa.Table.from_pylist(begin).schema
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in _batches(chain(begin, map(_storable, left))):
            try:
                table = pa.Table.from_pylist(batch, schema=schema)
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise DataError(
                    f"{path.with_suffix('')}: conversations {count + 1} to {count + len(batch)} have other "
                    f"columns than the first ones ({error}); write them as .jsonl, or as several files"
                ) from None
            writer.write_table(table)
            count += len(batch)
    return count


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as Parquet can hold it: no list of nothing, and no half characters."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    found: dict[str, Any] = json.loads(text)
    return {name: value for name, value in found.items() if value != []}


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    left = iter(rows)
    while batch := list(islice(left, _BATCH)):
        yield batch


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{path}: Parquet needs pyarrow; pip install 'selfverify[data]'") from None
    return pyarrow, pyarrow.parquet
