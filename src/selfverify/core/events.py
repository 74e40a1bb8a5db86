"""Events of a run besides its numbers: interruptions, retries, outages, skipped problems.

Code that meets such an event calls `note`, which logs a warning that carries fields. While a run lasts, its
`EventLog` writes these warnings, and every other warning of this package, to ``events.jsonl``. Each line is
an object with ``time``, ``step``, ``event`` and the event's own fields. Unlike the metrics, this file is
never cut back to a checkpoint, because it has to tell that a run was killed.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import JsonlStore, read_rows

EVENTS_FILE = "events.jsonl"
LONGEST = 500
"""Characters kept of a text in the file. Messages may quote what a model wrote."""


def note(logger: logging.Logger, event: str, message: str, **fields: Any) -> None:
    """Log a warning that an `EventLog` stores as ``event`` with these ``fields``, which are JSON values."""
    logger.warning("%s", message, extra={"event": event, "fields": fields})


class EventLog(logging.Handler):
    """Appends events to a file. As a context manager it also collects this package's warnings.

    An event that cannot be written (a full disk) is named in the log and does not end the run.

    Args:
        path: The file.
        process: Which of a run's processes this is, from 0. Process 0 repairs a file that a kill has damaged,
            so its log has to be made before the others'. The others write their number with every event.
    """

    def __init__(self, path: Path, process: int = 0) -> None:
        super().__init__(logging.WARNING)
        self.path, self.process = path, process
        self.step = 0
        self._shown_by: logging.Handler | None = None
        self._journal: JsonlStore | None = None
        with contextlib.suppress(OSError):  # `append` tries again, and says what is wrong
            self._journal = JsonlStore(path, repair=process == 0)

    def append(self, event: str, **fields: Any) -> None:
        """Write one line. When this returns, the line is on the disk."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        short = {k: v[:LONGEST] if isinstance(v, str) else v for k, v in fields.items()}
        where = {"process": self.process} if self.process else {}
        try:
            journal = self._journal or JsonlStore(self.path)
            journal.append({"time": now, "step": self.step, "event": event, **where, **short})
            journal.sync()
        except OSError as error:
            # A warning of our own logger would come back to this handler.
            logging.getLogger("selfverify_events").warning("cannot write %s: %s", self.path, error)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning as an event, by the name that `note` gave it, or as ``warning``."""
        try:
            noted = vars(record)
            fields = noted.get("fields", {})
            self.append(noted.get("event", "warning"), message=record.getMessage(), **fields)
        except Exception:
            self.handleError(record)
        if self._shown_by is not None:
            self._shown_by.handle(record)

    def __enter__(self) -> EventLog:
        ours = logging.getLogger("selfverify")
        # Where logging is not set up Python prints warnings itself, but only as long as there is no handler.
        self._shown_by = None if ours.hasHandlers() else logging.lastResort
        ours.addHandler(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        logging.getLogger("selfverify").removeHandler(self)
        if isinstance(error, KeyboardInterrupt):
            if self.process == 0:  # all processes are interrupted together
                self.append("interrupted")
        elif error is not None:
            self.append("failed", message=f"{type(error).__name__}: {error}")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the events in a file; returns an empty list if there is no file.

    A corrupt line is left out with a warning, because no result depends on events.

    Raises:
        DataError: A line is a JSON object but no event, so this is another kind of file.
    """
    rows = read_rows(path, skip_corrupt=True)
    for number, row in enumerate(rows, start=1):
        if "event" not in row:
            raise DataError(f"{path}, line {number}: it holds no event; restore the file or delete it")
    return rows
