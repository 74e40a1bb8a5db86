"""What was asked: the questions and images of stored samples' problems, which the store itself has not."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.files import read_regular
from selfverify.core.images import to_rgb
from selfverify.core.problem import Problem
from selfverify.data.images import file_inside
from selfverify.evaluation.evaluate import shown_entry
from selfverify.evaluation.samples import StoredProblem
from selfverify.experiments.registry import make_task
from selfverify.reports.run_data import read_entries
from selfverify.rollouts.atif import without_surrogates
from selfverify.tasks.base import Task


class Remade:
    """Problems of stored samples, made anew as the store's header says.

    Args:
        settings: The store's header.

    Attributes:
        task: The task; None where there is none any more.
        why: Why there is none.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._split: Any = settings.get("split", "test")
        self.task, self.why = _task(settings)

    def problem(self, row: StoredProblem) -> Problem | str:
        """The problem of a line of the store, or why there is none."""
        if self.task is None:
            return self.why
        try:
            made = self.task.problem(self._split, 0, row.index)
        except SelfVerifyError as error:
            return str(error)
        stored = row.samples[0].problem if row.samples else made.id
        if (made.id, made.digest()) != (stored, row.digest):
            return "it asks or wants something else now; the data has changed"
        return made


Asked = tuple[dict[str, Any], bytes | None]
"""A problem's entry, as in ``gallery/problems.json``, and its encoded image, if it has one."""


class Questions:
    """Finds problems in the gallery beside their samples, or makes them anew, as the store's header says.

    Args:
        gallery: The gallery's folder.
        settings: The store's header.

    Raises:
        DataError: The gallery is damaged.
    """

    def __init__(self, gallery: Path, settings: Mapping[str, Any]) -> None:
        self.gallery = gallery
        self.unknown: dict[str, str] = {}
        """Problems of which nothing is known, with the reasons."""
        try:
            entries = without_surrogates(read_entries(gallery))
        except ValueError as error:
            raise DataError(f"{gallery / 'problems.json'} is not valid JSON ({error})") from None
        self._entries: dict[str, dict[str, Any]] = {str(entry["id"]): entry for entry in entries}
        self._remade = Remade(settings)
        self._last: tuple[str, Asked | None] = ("", None)

    def find(self, problem: str, row: StoredProblem) -> Asked | None:
        """Return what was asked in a line of the store; None where that cannot be known any more.

        The image is called ``problem-INDEX.SUFFIX`` in the entry.

        Raises:
            DataError: The image of a problem in the gallery is missing.
        """
        if self._last[0] != problem:
            known = self._entries.get(problem)
            found = self._made(problem, row) if known is None else self._kept(problem, row, known)
            self._last = problem, found
        return self._last[1]

    def _kept(self, problem: str, row: StoredProblem, entry: dict[str, Any]) -> Asked:
        if not entry.get("image"):
            return entry, None
        file = file_inside(self.gallery, str(entry["image"]))
        try:
            content = read_regular(file)
        except OSError as error:
            raise DataError(f"problem {problem}: the image {file} cannot be read: {error.strerror}") from None
        return entry | {"image": f"problem-{row.index:06d}{file.suffix}"}, content

    def _made(self, problem: str, row: StoredProblem) -> Asked | None:
        made = self._remade.problem(row)
        if isinstance(made, str) or self._remade.task is None:
            self.unknown[problem] = str(made)
            return None
        name = f"problem-{row.index:06d}.png"
        entry: dict[str, Any] = without_surrogates(shown_entry(self._remade.task, made, name))
        if not made.images:
            return entry, None
        buffer = io.BytesIO()
        to_rgb(made.images[0]).save(buffer, "PNG")
        return entry, buffer.getvalue()


def _task(settings: Mapping[str, Any]) -> tuple[Task | None, str]:
    """The task that a store's header names, or why there is none."""
    try:
        return make_task(str(settings.get("task")), **(settings.get("task_options") or {})), ""
    except (SelfVerifyError, ValidationError, TypeError) as error:
        return None, str(error).partition("\n")[0]
