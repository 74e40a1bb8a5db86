"""Parquet: the scan reads no image; a row reads its row group, images only when they are opened."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data.columns import blobs, holds_images, need_pyarrow
from selfverify.data.fields import Place, Record, RowSource


class Parquet(RowSource):
    """Rows of one file, counted from 1 in errors. The last row group stays in memory."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._opened: Any = None
        self._starts: list[int] = []
        self._images: list[str] = []
        self._light: list[str] = []
        self._kept: dict[tuple[str, ...], tuple[int, Any]] = {}

    def walk(self) -> Iterator[Record | DataError]:
        """See `RowSource.walk`. A row group that cannot be read is that many broken rows."""
        self._open()
        groups = len(self._starts) - 1
        for group in range(groups):
            try:
                yield from self._group(group, self._light).to_pylist()
            except Exception as error:  # pyarrow raises OSError, ArrowInvalid and others
                broken = DataError(f"row group {group + 1} of {groups} cannot be read ({error})")
                yield from [broken] * (self._starts[group + 1] - self._starts[group])

    def stored(self, number: int) -> Record:
        """See `RowSource.stored`."""
        return self._row(number, self._light)

    def parsed(self, stored: Record, number: int) -> Record:
        """See `RowSource.parsed`."""
        found = {name: blobs(stored.get(name), partial(self._cell, number, name)) for name in self._images}
        return stored | found

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
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
        # The path alone, without the bytes, tells whether a cell has an image.
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
            raise DataError(f"{self.place(number)} cannot be read ({error})") from None
        found: Record = row
        return found

    def _cell(self, number: int, name: str) -> Any:
        return self._row(number, [name])[name]
