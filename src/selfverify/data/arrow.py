"""Arrow files, as `datasets` saves and caches them: mapped into memory, nothing read before it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data.columns import blobs, holds_images, need_pyarrow
from selfverify.data.fields import Place, Record, RowSource


class Arrow(RowSource):
    """Rows of one file, a stream (as `datasets` writes it) or an Arrow file, counted from 1 in errors."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._table: Any = None
        self._images: list[str] = []

    def walk(self) -> Iterator[int]:
        """See `RowSource.walk`. The table is mapped into memory, so a row's number will do."""
        self._open()
        yield from range(self._table.num_rows)

    def stored(self, number: int) -> int:
        """See `RowSource.stored`."""
        return number

    def parsed(self, stored: int, number: int) -> Record:
        """See `RowSource.parsed`."""
        row: Record = {}
        for name in self._table.column_names:
            try:
                cell = self._table.column(name)[number]
                row[name] = blobs(_lengths(cell), cell.as_py) if name in self._images else cell.as_py()
            except Exception as error:
                raise DataError(f"its column {name} cannot be read ({error})") from None
        return row

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
        return Place(self.file, number + 1, "row")

    def _open(self) -> None:
        need_pyarrow(self.file)
        import pyarrow as pa

        try:
            mapped = pa.memory_map(str(self.file))
            is_file = mapped.read(6) == b"ARROW1"
            mapped.seek(0)
            reader = pa.ipc.open_file(mapped) if is_file else pa.ipc.open_stream(mapped)
            self._table = reader.read_all()
        except Exception as error:
            raise DataError(f"it is no whole Arrow file; was it cut off? ({error})") from None
        self._images = [field.name for field in self._table.schema if holds_images(field.type)]


def _lengths(cell: Any) -> Any:
    """How many images a cell has, without their bytes; see `blobs`."""
    import pyarrow as pa

    if not cell.is_valid:
        return None
    return [item.is_valid or None for item in cell] if isinstance(cell, pa.ListScalar) else True
