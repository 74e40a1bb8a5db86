"""Rows of data files in the form that tasks take, wherever and however they are stored."""

from __future__ import annotations

import logging
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from selfverify.core.errors import DataError
from selfverify.core.events import note
from selfverify.data.fields import Convert, Images, Place, Record, Row
from selfverify.data.formats import FORMATS, find_sources
from selfverify.data.records import RowSource

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
        reason: The fault.
        place: The file and the line in words.
    """

    file: str
    line: int
    reason: str
    place: str

    @classmethod
    def of(cls, place: Place, error: Exception) -> BadRow:
        """Return the broken row at a place."""
        # Errors about images name their row already.
        reason = str(error).removeprefix(f"{place}: ")
        short = reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + "..."
        return cls(str(place.file), place.number, short, str(place))

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def validated(convert: Convert, record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Return the rows of a record; an error stands for a row that is wrong. Never raises on any record."""
    arrays = {name: value.tolist() for name, value in record.items() if isinstance(value, np.ndarray)}
    try:
        # Rows in memory may come from pandas; those of files may note what is read of them.
        return convert({**record, **arrays} if arrays else record, place, images)
    except DataError as error:
        return [error]
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        # No reader foresaw a field of this type; the error has to name the row all the same.
        return [DataError(f"it cannot be read ({type(error).__name__}: {error})")]


class Rows:
    """The rows of a data set by number, as `open_rows` makes them."""

    def __init__(
        self, path: Path, root: Path, sources: Sequence[RowSource], format: str, images: Images
    ) -> None:
        self.path, self.format = path, format
        self.bad: list[BadRow] = []
        self.repeated: dict[int, int] = {}
        """For each row whose id earlier rows have: how many ids like it are taken."""
        self._sources, self._convert, self._images = sources, FORMATS[format].convert, images
        self._stems = [_stem(source, root) for source in sources]
        self._source, self._record, self._part = array("i"), array("q"), array("i")

    def __len__(self) -> int:
        return len(self._record)

    def __getitem__(self, index: int) -> Row:
        """Return row ``index``, read anew; its images are read when they are opened.

        Raises:
            DataError: The file has changed.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} has {len(self)} rows, there is no row {index}")
        index %= len(self)
        place, part, source = self.place(index), self._part[index], self._source[index]
        found = validated(self._convert, self.record(index), place, self._images)
        row = found[min(part, len(found) - 1)] if found else DataError("the row is gone")
        if isinstance(row, DataError):
            raise DataError(f"{place}: {row}; the file has changed since it was opened")
        again = self.repeated.get(index, 0)
        id = self._id(row, source, self._record[index]) + (f"#{again + 1}" if again else "")
        return {**row, "id": id, "source": row["source"] or self._stems[source]}

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> Place:
        """Return where row ``index`` stands."""
        return self._sources[self._source[index]].place(self._record[index])

    def record(self, index: int) -> Record:
        """Return what the file says about row ``index``, by column.

        Raises:
            DataError: The file has changed.
        """
        return self._sources[self._source[index]].record(self._record[index])

    def columns_read(self, index: int) -> set[str]:
        """Return the columns of row ``index`` whose values were looked at to make it."""
        record = _Watched(self.record(index))
        validated(self._convert, record, self.place(index), self._images)
        return record.read

    def scan(self, split: str | None, limit: int | None, check_images: bool) -> None:
        """Read everything but the images once, and keep where the rows stand; `open_rows` calls this."""
        ids: Counter[str] = Counter()
        for source_number, source in enumerate(self._sources):
            try:
                for number, record in enumerate(source.scan()):
                    if len(self) == limit:
                        return
                    place = source.place(number)
                    for part, row in enumerate(self._rows_of(record, place, split, check_images)):
                        if isinstance(row, DataError):
                            self.bad.append(BadRow.of(place, row))
                        elif len(self) != limit:
                            self._keep(source_number, number, part, self._id(row, source_number, number), ids)
            except (DataError, OSError) as error:
                self.bad.append(BadRow.of(Place(source.file, unit=""), error))

    def _rows_of(
        self, record: Record | DataError, place: Place, split: str | None, check_images: bool
    ) -> Iterator[Row | DataError]:
        if isinstance(record, DataError):
            yield record
        elif split is None or str(record.get("split")) == split:
            for row in validated(self._convert, record, place, self._images):
                yield row if isinstance(row, DataError) or not check_images else _unseeable(row) or row

    def _keep(self, source: int, number: int, part: int, id: str, ids: Counter[str]) -> None:
        if again := ids[id]:
            while f"{id}#{again + 1}" in ids:  # a row may have such an id itself
                again += 1
            self.repeated[len(self)] = again
            ids[f"{id}#{again + 1}"] += 1
        ids[id] += 1
        self._source.append(source)
        self._record.append(number)
        self._part.append(part)

    def _id(self, row: Mapping[str, Any], source: int, number: int) -> str:
        return f"{self._stems[source]}/{number if row['id'] is None else row['id']}"


class _Watched(dict[str, Any]):
    """A record that notes which of its columns are read."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def _stem(source: RowSource, root: Path) -> str:
    if source.file.is_dir():
        return source.file.resolve().name
    return source.file.relative_to(root).with_suffix("").as_posix()


def _unseeable(row: Row) -> DataError | None:
    """Return why an image of a row cannot be decoded."""
    turns = [turn for name in ("messages", "prompt", "chosen", "rejected") for turn in row.get(name, ())]
    parts = [part for turn in turns if isinstance(turn["content"], list) for part in turn["content"]]
    try:
        for image in [*row["images"], *(part["image"] for part in parts if part["type"] == "image")]:
            image.open(tries=1)
    except DataError as error:
        return error
    return None


def open_rows(
    path: str | Path,
    *,
    format: str | None = None,
    split: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    images: str | Path | None = None,
    limit: int | None = None,
    on_bad: Literal["skip", "refuse"] = "skip",
    check_images: bool = False,
    note_bad: bool = True,
) -> Rows:
    """Open a data set: read everything but the images once, and check every row on the way.

    A row of any format is a dictionary with

    - ``id`` (unique, the same at every opening), ``images`` (a list of `ImageRef`, whose ``open()`` decodes),
      ``source``, ``category`` (or None), ``categories`` ({column: [values]}, what results are broken down
      by), and
    - of a question: ``question``, ``answer`` (a letter where there are ``options``), ``options`` ({letter:
      text} or None), ``answer_type`` and ``precision`` (or None), ``alternatives`` where several answers are
      right, ``unit`` and ``solution`` (how the answer is found) where the file has them;
    - of a box: ``question``, ``box`` [x1, y1, x2, y2] in pixels of the image as it is stored, ``size``
      (width, height), with a mask ``polygons`` and ``ignored`` [[[x, y], ...], ...];
    - of a step on a phone: ``goal``, ``step_instruction`` (or None), ``history`` and ``action``
      (`selfverify.data.gui_actions`), ``screen`` (width, height), where the file says ``ui_boxes`` (of
      the target element), ``episode`` and ``step``.

    In memory remain some 40 bytes per row.

    Args:
        path: A file, or a folder whose files belong together; where there is none of this name and it looks
            like ``owner/name``, a data set of the Hugging Face hub.
        format: One of `selfverify.data.formats.FORMATS`; by default what the files contain.
        split: A subfolder, files whose names begin with it, or the value of a column ``split``; for
            GUI-Odyssey a list of ``splits``, such as ``random_split/test``; of the hub a split.
        config: Of the hub: which of its configurations (subsets).
        revision: Of the hub: a branch, tag or commit.
        images: The folder that relative paths of images start from; by default the file's.
        limit: The most rows to read.
        on_bad: Whether rows that cannot be used are left out and listed in `Rows.bad`, or end in an error.
        check_images: Whether every image is decoded, too. Otherwise a broken image is found when a run
            wants it, and its problem is left out then.
        note_bad: Whether to warn of rows that are left out.

    Raises:
        ConfigError: There is nothing at the path, or no such format or split.
        DataError: A row is broken and ``on_bad`` is ``refuse``, or no row can be used.
    """
    root, sources, format, split = find_sources(path, format, split, config, revision)
    path = Path(path).expanduser()
    rows = Rows(path, root, sources, format, Images(root if images is None else Path(images).expanduser()))
    rows.scan(split, limit, check_images)
    if rows.bad:
        more = f"\n  and {len(rows.bad) - NAMED} more" if len(rows.bad) > NAMED else ""
        said = "\n  ".join([f"{len(rows.bad)} broken rows in {path}:", *map(str, rows.bad[:NAMED])]) + more
        if on_bad == "refuse":
            raise DataError(f"{said}\nRepair them, or leave them out with on_bad='skip'")
        if not len(rows):
            raise DataError(f"{path} has no usable row; {said}")
        if note_bad:
            note(logger, "rows_skipped", f"skipped {said}", path=str(path), rows=len(rows.bad))
    if not len(rows):
        raise DataError(f"{path} ({format}) has no rows" + ("" if split is None else f" of split {split!r}"))
    return rows
