"""Parquet and Arrow: the scan reads no image; a row's images are read when they are opened."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError, DataError
from selfverify.data.fields import Blob, Place, Record, RowSource


class _Columns(RowSource):
    """Rows of one file, counted from 1 in errors, in groups that are read at once.

    A record is stored as its group's table and its number in that.
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
