"""Problems from rows of data files: which row is problem ``index`` of a split, and what it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from selfverify.errors import ConfigError, DataError
from selfverify.tasks.base import TaskConfig
from selfverify.tasks.canvas import Split


class Rows(Protocol):
    """A data file's rows, by number; each is a dict."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


def open_rows(path: str) -> Rows:
    """The rows of a data file or folder (`selfverify.data`)."""
    rows: Rows = import_module("selfverify.data").open_rows(path)
    return rows


class RowTaskConfig(TaskConfig):
    """Where a task's rows are."""

    train: str | None = Field(None, description="Data file or folder of the problems to learn from.")
    validation: str | None = Field(None, description="Data file or folder of the problems to check with.")
    test: str | None = Field(None, description="Data file or folder of the problems to measure with.")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: the problem's id, what errors call it, its values."""

    id: str
    place: str
    values: Mapping[str, Any]

    def fault(self, what: str) -> DataError:
        """The error that says where the row is and what is wrong with it."""
        return DataError(f"{self.place}: {what}")

    def text(self, name: str) -> str:
        """A field that has to hold text.

        Raises:
            DataError: It does not.
        """
        value = self.values.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.fault(f"{name} has to be text, not {value!r:.80}")
        return value.strip()

    def image(self) -> Image.Image:
        """Its one image: decoded already, or something to ``open()`` (`selfverify.data`'s reference to one).

        Raises:
            DataError: There is none, there are several, or it cannot be read.
        """
        images = self.values.get("images")
        if not isinstance(images, (list, tuple)) or len(images) != 1:
            raise self.fault(f"images has to be a list of one image, not {images!r:.80}")
        if isinstance(images[0], Image.Image):
            return images[0]
        if not hasattr(images[0], "open"):
            raise self.fault(
                f"an image has to be a picture or to open as one, not {type(images[0]).__name__}"
            )
        image: Image.Image = images[0].open()
        return image


class Splits:
    """The rows of a task's splits, opened when first asked for.

    In training every epoch passes through all rows in an order of its own, a function of (seed, index) alone.
    Otherwise rows come in the file's order.

    Args:
        task: The task's name, which problem ids begin with.
        config: Where the files are.
        rows: Rows that are in memory, instead of files.
    """

    def __init__(self, task: str, config: RowTaskConfig, rows: Mapping[Split, Rows] | None = None) -> None:
        self.task, self.config = task, config
        self._rows: dict[Split, Rows] = dict(rows or {})

    def rows(self, split: Split) -> Rows:
        """A split's rows.

        Raises:
            ConfigError: There is no such data, or nothing in it.
        """
        if split not in self._rows:
            path: str | None = getattr(self.config, split)
            if path is None:
                raise ConfigError(f"task {self.task} has no {split} data; set task.{split} to a file")
            self._rows[split] = open_rows(path)
        if not len(self._rows[split]):
            raise ConfigError(f"{self._file(split)} holds no rows")
        return self._rows[split]

    def get(self, split: Split, seed: int, index: int) -> Row:
        """The row of problem ``index``; ``seed`` orders the rows of training.

        Raises:
            ConfigError: The data ends before, or there is none.
            DataError: The row cannot be read.
        """
        rows = self.rows(split)
        number, name = index, ""
        if split == "train":
            epoch, place = divmod(index, len(rows))
            number = int(_order(seed, epoch, len(rows))[place])
            name = f"{index}/"  # a row comes again in every epoch, and two epochs may share a step
        elif index >= len(rows):
            raise ConfigError(
                f"{self._file(split)} holds {len(rows)} rows, and problem {index + 1} is wanted; "
                f"set evaluation.problems={len(rows)}"
            )
        values = rows[number]
        own = values.get("id", number)
        return Row(
            f"{self.task}/{split}/{name}{own}", f"{self._file(split)}, row {number + 1} (id {own})", values
        )

    def _file(self, split: Split) -> str:
        return getattr(self.config, split) or f"the {split} rows of task {self.task}"


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)
