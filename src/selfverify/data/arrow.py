"""Arrow files, as `datasets` saves and caches them: mapped into memory, nothing read before it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selfverify.data.columns import blobs, holds_images, need_pyarrow
from selfverify.data.fields import Place, Record
from selfverify.errors import DataError


class Arrow:
    """Rows of one file, a stream (as `datasets` writes it) or an Arrow file, counted from 1 in errors."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.late: dict[int, str] = {}
        self._table: Any = None
        self._images: list[str] = []

    def scan(self) -> Iterator[tuple[int, Place, Record | DataError]]:
        """See `Source`."""
        self._open()
        for number in range(self._table.num_rows):
            try:
                yield number, *self.record(number)
            except DataError as error:
                yield number, self._place(number), error

    def record(self, number: int) -> tuple[Place, Record]:
        """See `Source`."""
        row: Record = {}
        for name in self._table.column_names:
            try:
                cell = self._table.column(name)[number]
                if name not in self._images:
                    row[name] = cell.as_py()
                    continue
            except Exception as error:
                raise DataError(f"its column {name} cannot be read ({error})") from None
            light = _lengths(cell)
            row[name] = blobs(light, lambda cell=cell: cell.as_py())  # type: ignore[misc]
        return self._place(number), row

    def _place(self, number: int) -> Place:
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
