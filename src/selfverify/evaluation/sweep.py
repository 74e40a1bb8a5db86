"""A sweep does the same with each of a task's problems. A kill at any moment only delays it.

Evaluations, the data filter and STaR's sampling are sweeps. Their loops look like this::

    for share in sweep.shares():
        problems, unusable = make_problems(task, split, seed, share, encoder)
        ...
        sweep.store(rows)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from selfverify.core import ranks
from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import JsonlStore, Row, open_journal
from selfverify.core.problem import Problem, Split
from selfverify.tasks.base import Task

if TYPE_CHECKING:
    from selfverify.policy.encoding import Encoder

Progress = Callable[[int, int], None]
"""A function that is called with the number of problems that are done and the number of all problems."""


class ResumableBatches(Generic[Row]):
    """The rows of a sweep, one per problem. They are made batch by batch and stored as they are made.

    Each process makes its share of every batch, all processes know all rows, and the first process writes the
    file. All processes have to make the same calls.

    Args:
        path: The journal of the rows. Rows that it holds already are not made again. None keeps the rows in
            memory only.
        row: The dataclass of the rows. Its ``index`` is the problem's.
        settings: Everything that decides what the rows say.
        total: The number of problems; their indices are 0 to ``total`` - 1.
        batch: The number of problems that one process works on at once.
        progress: Called by the first process after each batch.
        new_names: See `open_journal`.

    Raises:
        ConfigError: The journal was written under other settings.
        DataError: The journal is corrupt.
    """

    def __init__(
        self,
        path: Path | None,
        row: type[Row],
        settings: Mapping[str, Any],
        total: int,
        batch: int,
        progress: Progress | None = None,
        new_names: Collection[str] = (),
    ) -> None:
        self.total, self.batch, self.progress = total, batch, progress
        self._journal: JsonlStore | None = None

        def open_() -> dict[int, Row]:
            if path is None:
                return {}
            self._journal, rows = open_journal(path, row, settings, new_names)
            return rows

        self.rows = ranks.on_first(open_)

    def shares(self) -> Iterator[range]:
        """Yield this process's share of each batch that has a problem without a row; it may be empty.

        A batch of which only some rows were stored is made again as a whole, because how numbers are rounded
        depends on what else is in a batch. The rows that are stored stay as they are.
        """
        size = self.batch * ranks.count()
        for first in range(0, self.total, size):
            whole = range(first, min(first + size, self.total))
            if not self.rows.keys() >= set(whole):
                yield whole[ranks.index() * self.batch :][: self.batch]
            if self.progress and ranks.index() == 0:
                self.progress(whole.stop, self.total)

    def store(self, rows: Iterable[Row]) -> None:
        """Add the rows that all processes have made of a batch. A problem that has a row already keeps it."""
        made = {row.index: row for part in ranks.gather([*rows]) for row in part}
        new = [made[index] for index in sorted(made.keys() - self.rows.keys())]
        self.rows |= {row.index: row for row in new}
        if self._journal is not None:
            self._journal.append(*(asdict(row) for row in new))  # type: ignore[call-overload]


def make_problems(
    task: Task, split: Split, seed: int, indices: Iterable[int], encoder: Encoder | None = None
) -> tuple[dict[int, Problem], dict[int, DataError]]:
    """Make problems and, with an ``encoder``, find out whether they can be encoded.

    Returns:
        The problems that can be used by index, and by index the reasons why the others cannot.
    """
    problems, unusable = {}, {}
    for index in indices:
        try:
            problem = task.problem(split, seed, index)
            if encoder is not None:
                encoder.prompt(problem)
            problems[index] = problem
        except DataError as error:
            unusable[index] = error
    return problems, unusable
