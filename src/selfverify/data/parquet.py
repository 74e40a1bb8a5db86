"""Parquet: the scan reads no image; a row reads its row group, images only when they are opened."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selfverify.data.columns import blobs, holds_images, need_pyarrow
from selfverify.data.fields import Place, Record
from selfverify.errors import DataError


class Parquet:
    """Rows of one file, counted from 1 in errors. The last row group stays in memory."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.late: dict[int, str] = {}
        self._opened: Any = None
        self._starts: list[int] = []
        self._images: list[str] = []
        self._light: list[str] = []
        self._kept: dict[tuple[str, ...], tuple[int, Any]] = {}

    def scan(self) -> Iterator[tuple[int, Place, Record | DataError]]:
        """See `Source`. A row group that cannot be read is that many broken rows."""
        self._open()
        groups = len(self._starts) - 1
        for group in range(groups):
            begin, end = self._starts[group], self._starts[group + 1]
            try:
                rows = self._group(group, self._light).to_pylist()
            except Exception as error:  # pyarrow raises OSError, ArrowInvalid and others
                for number in range(begin, end):
                    why = f"row group {group + 1} of {groups} cannot be read ({error})"
                    yield number, self._place(number), DataError(why)
                continue
            for inside, row in enumerate(rows):
                number = begin + inside
                yield number, self._place(number), self._with_blobs(row, number)

    def record(self, number: int) -> tuple[Place, Record]:
        """See `Source`."""
        return self._place(number), self._with_blobs(self._row(number, self._light), number)

    def _place(self, number: int) -> Place:
        return Place(self.file, number + 1, "row")

    def _open(self) -> None:
        need_pyarrow(self.file)
        import pyarrow.parquet as parquet

        try:
            self._opened = parquet.ParquetFile(self.file, memory_map=True)
        except Exception as error:
            raise DataError(f"it is no whole Parquet file; was it cut off? ({error})") from None
        meta = self._opened.metadata
        self._starts = [0]
        for group in range(meta.num_row_groups):
            self._starts.append(self._starts[-1] + meta.row_group(group).num_rows)
        self._images = [field.name for field in self._opened.schema_arrow if holds_images(field.type)]
        leaves = [meta.schema.column(i).path for i in range(meta.num_columns)]
        # Of an image's struct the path alone tells whether there is one.
        self._light = [
            leaf for leaf in leaves if not (leaf.split(".")[0] in self._images and leaf.endswith(".bytes"))
        ]

    def _group(self, group: int, leaves: list[str]) -> Any:
        kept = self._kept.get(tuple(leaves))
        if kept is None or kept[0] != group:
            kept = group, self._opened.read_row_group(group, columns=leaves)
            self._kept[tuple(leaves)] = kept
        return kept[1]

    def _row(self, number: int, leaves: list[str]) -> Record:
        group = bisect_right(self._starts, number) - 1
        try:
            [row] = self._group(group, leaves).slice(number - self._starts[group], 1).to_pylist()
        except Exception as error:
            raise DataError(f"{self._place(number)} cannot be read ({error})") from None
        found: Record = row
        return found

    def _with_blobs(self, row: Record, number: int) -> Record:
        for name in self._images:
            row[name] = blobs(row.get(name), lambda name=name: self._row(number, [name])[name])  # type: ignore[misc]
        return row
