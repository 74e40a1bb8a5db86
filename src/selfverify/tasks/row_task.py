"""Tasks whose problems are the rows of data files, and the places and images in these rows.

A recipe names a data file by its path, or by its path and its reader's settings (`DataFileConfig`).

Places in images are converted from the space in which a model writes them to pixels, and back. The model's
family decides which space that is (`Policy.coordinate_space`): Qwen2.5-VL writes pixels of the resized image
that it sees, most others thousandths of the image's sides.
"""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_serializer

from selfverify.core.config import Config, PathText
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.problem import Problem, Split
from selfverify.data.fields import Convert, Images, Place, Row, filled
from selfverify.data.rows import Rows, open_rows, validated
from selfverify.tasks.base import Space, Task, TaskConfig


class DataFileConfig(Config):
    """A data file or folder, and how it is read (`selfverify.data.rows.open_rows`)."""

    path: PathText = Field(min_length=1)
    """The file, or a folder whose files belong together; where there is none, `owner/name` is a data set of
    the Hugging Face hub."""

    format: str | None = None
    """The file's format, if it is not recognised (docs/data-formats.md)."""

    split: str | None = None
    """The split to read, where there are several."""

    config: str | None = None
    """Of a data set of the hub: its configuration (subset)."""

    revision: str | None = None
    """Of a data set of the hub: a branch, tag or commit."""

    images: PathText | None = None
    """Folder that images' paths start from; by default the file's own folder."""

    limit: int | None = Field(None, ge=1)
    """Read this many rows only."""

    on_bad: Literal["skip", "refuse"] = "skip"
    """`skip` names, counts and leaves out rows that cannot be used; `refuse` stops at them."""

    check_images: bool = False
    """Decode every image on opening, so that broken ones count as broken rows."""

    def open(self) -> Rows:
        """Return the file's rows (`open_rows`)."""
        return open_rows(**dict(self))

    @model_serializer
    def _short(self) -> Any:
        """Return the settings that differ from their defaults; the path alone where no other does."""
        fields = type(self).model_fields
        told = {name: value for name, value in self if value != fields[name].default}
        return self.path if told.keys() == {"path"} else told


def _file(value: Any) -> Any:
    return {"path": value} if isinstance(value, str | PurePath) else value


File = Annotated[DataFileConfig | None, BeforeValidator(_file)]


Size = tuple[int, int]
"""Width and height."""


def convert(values: Sequence[float], source: Size, target: Size) -> list[float]:
    """Convert places ``x, y, x, y, ...`` in an image of size ``source`` to the same image of another size."""
    return [value * target[i % 2] / source[i % 2] for i, value in enumerate(values)]


def clip_box(box: Sequence[float], size: Size) -> list[float] | None:
    """Return the part of a box (x1, y1, x2, y2) that lies within an image; None where that has no area.

    A box with swapped corners has none: the corners are not put right.
    """
    x1, y1, x2, y2 = (min(max(float(v), 0.0), float(size[i % 2])) for i, v in enumerate(box))
    return [x1, y1, x2, y2] if x2 > x1 and y2 > y1 else None


logger = logging.getLogger(__name__)


class RowSequence(Protocol):
    """Rows by number; a row's images may be read when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


class RowTaskConfig(TaskConfig):
    """Where a task's rows are. A path alone is enough; `DataFileConfig` has what else can be said."""

    train: File = None
    """Data file or folder of the training problems."""

    validation: File = None
    """Data file or folder of the validation problems, read in the file's order."""

    test: File = None
    """Data file or folder of the test problems, read in the file's order."""

    uniform_over: Literal["source", "category"] | None = None
    """Draw training problems such that each source, or each category, of the rows is as frequent as the
    others, whatever its size (VTS-V §4.1: all task types of LLaVA-OneVision)."""

    def file(self, split: Split) -> DataFileConfig | None:
        """Return the data file of a split."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]


class RowTask(Task):
    """A task over rows: given as they are, or opened from a split's file when first asked for.

    Rows in memory pass through the same converter as a file's records, so that tasks see rows of one form.

    Args:
        config: The task's options, the data files among them.
        rows: Rows in memory by split, instead of files.
    """

    config: RowTaskConfig
    convert: Convert
    """The reader's converter for the task's kind of rows."""
    needs: tuple[str, ...]
    """Fields by which the task's kind of rows is recognised."""

    def __init__(
        self, config: RowTaskConfig | None = None, rows: Mapping[Split, RowSequence] | None = None
    ) -> None:
        super().__init__(config)
        self._rows: dict[Split, RowSequence] = dict(rows or {})
        self._space: Space | None = None

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """Return problem ``index``: `row` chooses its row, and `ask` writes its question."""
        row, id = self.row(split, seed, index)
        try:
            return self.ask(row, id)
        except DataError as error:
            place, _ = self._place(split, seed, index)
            raise type(error)(self._placed(str(error), split, place)) from None

    @abstractmethod
    def ask(self, row: Row, id: str) -> Problem:
        """Return the problem that a row makes.

        Raises:
            ConfigError: How the policy writes places is not known (`set_coordinate_space`).
            DataError: The row's image cannot be read, or what it has does not fit together.
            NotCounted: The task's scoring leaves rows like this one out.
        """

    def rows(self, split: Split) -> RowSequence:
        """Return the rows of a split.

        Raises:
            ConfigError: The split has neither rows nor a path.
            DataError: The split's file cannot be read, or has no rows.
        """
        if split not in self._rows:
            file = self.config.file(split)
            if file is None:
                raise ConfigError(f"the task has no {split} data; set task.{split} to a file or folder")
            self._rows[split] = file.open()
        rows = self._rows[split]
        if not len(rows):
            raise DataError(f"the {split} data{self._named(split)} has no rows")
        return rows

    def row(self, split: Split, seed: int, index: int) -> tuple[Row, str]:
        """Return the row that is problem ``index``, and the problem's id.

        Training goes through all rows again and again, each time in another order (`training_place`). Ids
        name the pass, since one step may need the same row of two passes. The other splits come once, in
        the file's order.

        Raises:
            ConfigError: The split has no path.
            DataError: The row cannot be read or is of another kind, or the split has fewer rows.
        """
        place, turn = self._place(split, seed, index)
        row, id = self.row_at(split, place)
        return row, id + (f"/pass-{turn + 1}" if turn else "")

    def _place(self, split: Split, seed: int, index: int) -> tuple[int, int]:
        """Return which row of a split problem ``index`` is, and in which pass over all rows, both from 0."""
        if split == "train" and self.config.uniform_over is not None:
            return uniform_place(seed, index, self._kinds)
        count = self.count(split)
        if split == "train":
            place, turn = training_place(seed, index, count)
            return place if self.takes_all else int(self._taken[place]), turn
        if index < count:
            return index, 0
        raise DataError(f"the {split} data{self._named(split)} has {count} rows, not {index + 1}")

    @cached_property
    def _kinds(self) -> list[NDArray[np.int64]]:
        """The places of the training rows by their source or category, in the names' order."""
        column, found = str(self.config.uniform_over), defaultdict[str, list[int]](list)
        rows = self.rows("train")
        for place in range(len(rows)) if self.takes_all else self._taken:
            row = self._training_row(place) or rows[place]
            found[str(row.get(column) or "")].append(place)
        return [np.array(found[name], dtype=np.int64) for name in sorted(found)]

    @property
    def takes_all(self) -> bool:
        """Whether training takes every row, so that `takes` need not be asked: the default."""
        return True

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Return whether training takes a row. A row that it does not take is counted once, and makes no
        problem."""
        return True

    @cached_property
    def _taken(self) -> NDArray[np.int64]:
        """The places of the rows that training takes."""
        rows = self.rows("train")
        read = ((place, self._training_row(place)) for place in range(len(rows)))
        taken = np.array([place for place, row in read if row and self.takes(row)], dtype=np.int64)
        named = f"the train data{self._named('train')}"
        if not len(taken):
            raise DataError(f"{named} has {len(rows)} rows, and task {self.name} can train on none of them")
        if left := len(rows) - len(taken):
            message = f"{named}: {left} of {len(rows)} rows are left out: there is nothing to show of them"
            note(logger, "rows_left_out", message, rows=len(rows), left_out=left)
        return taken

    def _training_row(self, place: int) -> Row | None:
        """Return a training row; None for one that makes no problem, which says why when it is asked for."""
        try:
            return self.row_at("train", place)[0]
        except DataError:
            return None

    def row_at(self, split: Split, place: int) -> tuple[Row, str]:
        """Return row ``place`` of a split, from 0, and the id of its problem, whichever pass it is.

        Raises:
            ConfigError: The split has no path.
            DataError: The row cannot be read or is of another kind.
        """
        rows = self.rows(split)
        given = dict(rows[place])
        name = given.get("id")
        id = f"{self.name}/{split}/{name if filled(name) else place}"
        found: Row | DataError = given
        if not isinstance(rows, Rows):
            # Errors about images begin with the place, here the problem's id.
            [found] = validated(self.convert, given, Place(Path(id), unit=""), Images(Path()))
        if isinstance(found, DataError):
            raise DataError(f"{id}: {found}")
        if missing := [name for name in self.needs if found.get(name) is None]:
            fault = (
                f"{id}: the row has no {' and no '.join(missing)}; task {self.name} takes rows with "
                f"{' and '.join(self.needs)}"
            )
            raise DataError(self._placed(fault, split, place))
        return found, id

    def count(self, split: Split) -> int:
        """Return the number of rows of a split that are problems."""
        if split == "train" and not self.takes_all:
            return len(self._taken)
        return len(self.rows(split))

    def check_files(self, split: Split) -> None:
        if self.config.file(split) is not None:
            try:
                self.rows(split)
            except ConfigError as error:
                raise ConfigError(f"task.{split}: {error}") from None

    def broken(self, split: Split) -> list[str]:
        rows = self.rows(split)
        return [str(bad) for bad in rows.bad] if isinstance(rows, Rows) else []

    def set_coordinate_space(self, space: Space) -> None:
        self._space = space

    def space_of(self, size: Size, name: str) -> Size:
        """Return the space in which the policy writes places in an image of ``size``.

        Raises:
            ConfigError: `set_coordinate_space` was not called yet.
            DataError: The image processor refuses images of this size; the error begins with ``name``.
        """
        if self._space is None:
            raise ConfigError(
                f"task {self.name}: how the policy writes places is not known; before making problems call "
                "task.set_coordinate_space(policy.coordinate_space), as learn and evaluate do"
            )
        try:
            return self._space(size)
        except ValueError as error:
            raise DataError(f"{name}: an image of {size[0]} x {size[1]} pixels: {error}") from None

    def _placed(self, fault: str, split: Split, place: int) -> str:
        """Return what is wrong with a row; of a file's row the file and line come before it, once."""
        rows = self.rows(split)
        where = str(rows.place(place)) if isinstance(rows, Rows) else ""
        return fault if where in fault else f"{where}: {fault}"

    def _named(self, split: Split) -> str:
        file = self.config.file(split)
        return f" ({file.path})" if file else ""


def training_place(seed: int, index: int, count: int) -> tuple[int, int]:
    """Return which of ``count`` rows problem ``index`` is, and in which pass (from 0) over all rows.

    Each pass has an order of its own, which ``seed`` decides.
    """
    turn, place = divmod(index, count)
    return int(_order(seed, turn, count)[place]), turn


def uniform_place(seed: int, index: int, kinds: Sequence[NDArray[np.int64]]) -> tuple[int, int]:
    """Return which row problem ``index`` is, and in which pass over its kind, both from 0.

    In each round every kind comes once; the rows of a kind come again when all of them have come. ``seed``
    decides all orders.

    Args:
        seed: Decides the orders.
        index: The problem's.
        kinds: The rows of each kind.
    """
    turn, place = divmod(index, len(kinds))
    kind = int(_order(seed, turn, len(kinds))[place])
    again, within = divmod(turn, len(kinds[kind]))
    return int(kinds[kind][_order_of_kind(seed, again, kind, len(kinds[kind]))[within]]), again


@lru_cache(maxsize=256)  # there are many kinds, and each has a part of the rows
def _order_of_kind(seed: int, turn: int, kind: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, turn, kind, count]).permutation(count)


@lru_cache(maxsize=4)
def _order(seed: int, turn: int, count: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng([seed, turn, count]).permutation(count)


IMAGE_MARK = re.compile(r"<image(?: ?(\d{1,3}))?>")


def with_images(text: str, images: int, name: str) -> list[dict[str, Any]]:
    """Return a user's turn with the images at the marks in ``text``, or before ``text`` if it has no marks.

    ``<image>`` stands for the next image; there must be as many marks as images. ``<image 2>`` (MMMU) stands
    for the second one, and again for "image 2". If the text does not name all images in their order, they
    all come first and every mark is such a name.

    Raises:
        DataError: Marks and images do not fit each other.
    """
    marks = list(IMAGE_MARK.finditer(text))
    numbers = [int(mark[1]) if mark[1] else 0 for mark in marks]
    if 0 in numbers:
        if numbers != [0] * images:
            raise DataError(f"{name}: {len(marks)} image marks in the text, {images} images in the row")
        numbers = list(range(1, images + 1))
    if numbers and not 1 <= min(numbers) <= max(numbers) <= images:
        raise DataError(f"{name}: the text names image {max(numbers)}, the row has {images} images")
    inline = list(dict.fromkeys(numbers)) == list(range(1, images + 1))
    content: list[dict[str, Any]] = [] if inline else [{"type": "image"} for _ in range(images)]
    written, at, shown = "", 0, 0
    for mark, number in zip(marks, numbers, strict=True):
        written += text[at : mark.start()]
        at = mark.end()
        if inline and number > shown:
            content += [*_text(written), {"type": "image"}]
            written, shown = "", number
        else:
            written += f"image {number}"
    return [{"role": "user", "content": content + _text(written + text[at:])}]


def _text(written: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": written}] if written.strip() else []
