"""Rows of data files in the form that tasks take, wherever and however they are stored."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

from selfverify.core.errors import DataError
from selfverify.core.events import note
from selfverify.data.delimited import Table
from selfverify.data.fields import Convert, Images, Place, Record, Row, RowSource
from selfverify.data.formats import find_sources

logger = logging.getLogger(__name__)

LONGEST_REASON = 300
NAMED = 10
"""Broken rows that an error or a warning names."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used.

    Args:
        file: The row's file.
        line: The row's line, row or record in the file, from 1; 0 where the file is the record, or all of it
            is bad.
        reason: What is wrong.
        place: The file and the line in words.
    """

    file: str
    line: int
    reason: str
    place: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def validated(convert: Convert, record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Return the rows of a record; an error stands for a row that is wrong. Never raises on any record."""
    try:
        return convert(record, place, images)
    except DataError as error:
        return [error]
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        # No reader foresaw a field of this type; the error has to name the row all the same.
        return [DataError(f"it cannot be read ({type(error).__name__}: {error})")]


class Rows:
    """The rows of a file or folder by number, as `open_rows` makes them."""

    def __init__(
        self, path: Path, format: str, sources: list[RowSource], convert: Convert, images: Images
    ) -> None:
        self.path, self.format = path, format
        self.bad: list[BadRow] = []
        self._sources, self._convert, self._images = sources, convert, images
        self._stems = [self._stem(source) for source in sources]
        self._source, self._record, self._part = array("i"), array("q"), array("i")
        self._again: dict[int, int] = {}
        """For each row whose id earlier rows have: the number of these rows."""

    def __len__(self) -> int:
        return len(self._record)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Return row ``index``, read anew; its images are read when they are opened.

        Raises:
            DataError: The file has changed, or what is read only now is broken (AndroidControl's trees).
        """
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} has {len(self)} rows, there is no row {index}")
        index %= len(self)
        source = self._sources[self._source[index]]
        place = source.place(self._record[index])
        record = source.record(self._record[index])
        found = validated(self._convert, record, place, self._images)
        # An error may be about the whole record.
        faults = [row for row in found if isinstance(row, DataError)] or [DataError("the row is gone")]
        row = dict(enumerate(found)).get(self._part[index], faults[0])
        if isinstance(row, DataError):
            raise DataError(
                f"{place}: {row}; the file has changed since it was opened, or this part is read only now"
            )
        return self._named(row, self._source[index], self._record[index], self._again.get(index, 0))

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> Place:
        """Return where row ``index`` stands."""
        return self._sources[self._source[index]].place(self._record[index])

    def _scan(self, split: str | None, limit: int | None, check_images: bool) -> None:
        ids: dict[str, int] = {}
        for number, source in enumerate(self._sources):
            begin, bad = len(self), len(self.bad)
            try:
                for record_number, place, record in source.scan():
                    if isinstance(record, DataError):
                        self._reject(place, record)
                        continue
                    if split is not None and str(record.get("split")) != split:
                        continue
                    self._take(number, record_number, place, record, ids)
                    # A table's references can only be checked at its end.
                    if limit is not None and len(self) >= limit and not isinstance(source, Table):
                        break
            except (DataError, OSError) as error:
                self._reject(Place(source.file, unit=""), error)
            self._drop(
                {i: source.late[n] for i in range(begin, len(self)) if (n := self._record[i]) in source.late}
            )
            if check_images:
                self._drop(self._unseeable(begin))
            self.bad[bad:] = sorted(self.bad[bad:], key=lambda bad: bad.line)
            if limit is not None and len(self) >= limit:
                for column in (self._source, self._record, self._part):
                    del column[limit:]
                break

    def _take(self, source: int, number: int, place: Place, record: Record, ids: dict[str, int]) -> None:
        for part, row in enumerate(validated(self._convert, record, place, self._images)):
            if isinstance(row, DataError):
                self._reject(place, row)
                continue
            id = self._id(row, source, number)
            if before := ids.get(id, 0):
                self._again[len(self)] = before
            ids[id] = before + 1
            self._source.append(source)
            self._record.append(number)
            self._part.append(part)

    def _unseeable(self, begin: int) -> dict[int, str]:
        """Return the rows from ``begin`` on whose images cannot be decoded, with the reasons."""
        found = {}
        for index in range(begin, len(self)):
            try:
                for image in self[index]["images"]:
                    image.open(tries=1)
            except DataError as error:
                found[index] = str(error)
        return found

    def _drop(self, rows: dict[int, str]) -> None:
        """Move rows, given with their reasons, to the broken ones."""
        if not rows:
            return
        for index, reason in rows.items():
            self._reject(self.place(index), DataError(reason))
        kept = [i for i in range(len(self)) if i not in rows]
        self._again = {new: self._again[old] for new, old in enumerate(kept) if old in self._again}
        self._source, self._record, self._part = (
            array(column.typecode, [column[i] for i in kept])
            for column in (self._source, self._record, self._part)
        )

    def _reject(self, place: Place, error: Exception) -> None:
        reason = str(error)
        short = reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + "..."
        # Errors about images name their row already.
        short = short.removeprefix(f"{place}: ")
        self.bad.append(BadRow(str(place.file), place.number, short, str(place)))

    def _stem(self, source: RowSource) -> str:
        if source.file.is_dir():
            return source.file.resolve().name
        inside = source.file.relative_to(self.path) if self.path.is_dir() else Path(source.file.name)
        return inside.with_suffix("").as_posix()

    def _named(self, row: Row, source: int, number: int, again: int) -> Row:
        """Return the row with its whole id and, if it has no source, the file's name as its source."""
        id = self._id(row, source, number) + (f"#{again + 1}" if again else "")
        return {**row, "id": id, "source": row["source"] or self._stems[source]}

    def _id(self, row: Row, source: int, number: int) -> str:
        return f"{self._stems[source]}/{number if row['id'] is None else row['id']}"


def open_rows(
    path: str | Path,
    *,
    format: str | None = None,
    split: str | None = None,
    images: str | Path | None = None,
    limit: int | None = None,
    on_bad: Literal["skip", "refuse"] = "skip",
    check_images: bool = False,
    note_bad: bool = True,
) -> Rows:
    """Open a file or folder: read everything but the images once, and check every row on the way.

    Whatever the format, a row is a dictionary with

    - ``id`` (unique, the same at every opening), ``images`` (a list of `ImageRef`, whose ``open()`` decodes),
      ``source``, ``category`` (or None), ``categories`` ({column: [values]}, what results are broken down
      by), and
    - of a question: ``question``, ``answer`` (a letter where there are ``options``), ``options`` ({letter:
      text} or None), ``answer_type`` and ``precision`` (or None), ``alternatives`` where several answers are
      right, ``unit`` and ``solution`` (how the answer is found) where the file has them;
    - of a box: ``question``, ``box`` [x1, y1, x2, y2] in pixels of the image as it is stored, ``size``
      (width, height), with a mask ``polygons`` and ``ignored`` [[[x, y], ...], ...];
    - of a step on a phone: ``goal``, ``step_instruction`` (or None), ``history`` and ``action``
      (`selfverify.data.actions`), ``screen`` (width, height), where the file says ``ui_boxes`` (of
      the target element), ``episode`` and ``step``.

    In memory remain some 20 bytes per row and, for GZIP files, places at which reading can begin.

    Args:
        path: A file, or a folder whose files belong together.
        format: One of `selfverify.data.formats.FORMATS`; by default what the files contain.
        split: A subfolder, files whose names begin with it, or the value of a column ``split``; for
            GUI-Odyssey a list of ``splits``, such as ``random_split/test``.
        images: The folder that relative paths of images start from; by default the file's.
        limit: The most rows to read.
        on_bad: Whether rows that cannot be used are left out and listed in `Rows.bad`, or end in an error.
        check_images: Whether every image is decoded, too. Otherwise a broken image is found when a run
            wants it, and its problem is left out then.
        note_bad: Whether to warn of rows that are left out.

    Raises:
        ConfigError: There is nothing at the path, or no such format.
        DataError: A row is broken and ``on_bad`` is ``refuse``, or no row can be used.
    """
    path = Path(path).expanduser()
    sources, convert, name, left = find_sources(path, format, split)
    root = Path(images).expanduser() if images is not None else path if path.is_dir() else path.parent
    rows = Rows(path, name, sources, convert, Images(root))
    rows._scan(left, limit, check_images)
    if rows.bad:
        first = "\n".join(f"  {bad}" for bad in rows.bad[:NAMED])
        more = f"\n  and {len(rows.bad) - NAMED} more" if len(rows.bad) > NAMED else ""
        said = f"{len(rows.bad)} broken rows in {path}:\n{first}{more}"
        if on_bad == "refuse":
            raise DataError(f"{said}\nRepair them, or leave them out with on_bad='skip'")
        if not len(rows):
            raise DataError(f"{path} has no usable row; {said}")
        if note_bad:
            note(logger, "rows_skipped", f"skipped {said}", path=str(path), rows=len(rows.bad))
    if not len(rows):
        which = f" of split {split!r}" if split is not None else ""
        raise DataError(f"{path} ({name}) has no rows{which}")
    return rows
