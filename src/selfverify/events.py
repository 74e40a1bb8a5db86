"""What happened to a run besides its numbers: interruptions, retries, outages, skipped problems.

Whoever meets such a thing says so through `note`, which is a log warning that carries fields. While a run
lasts, its `EventLog` writes these, and every other warning of ours, to ``events.jsonl``: one object with
``time``, ``step``, ``event`` and the event's own fields per line. Unlike the metrics this file is never cut
back to a checkpoint: that a run was killed is what it has to tell.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from selfverify.errors import DataError

EVENTS_FILE = "events.jsonl"
LONGEST = 500
"""Characters kept of a text in the file and in a story: messages may quote what a model wrote."""

log = logging.getLogger(__name__)


def note(logger: logging.Logger, event: str, message: str, **fields: Any) -> None:
    """Warn of ``event``; ``fields`` are JSON values."""
    logger.warning("%s", message, extra={"event": event, "fields": fields})


class EventLog(logging.Handler):
    """Appends events to a file. As a context manager it also collects this package's warnings.

    What cannot be written (a full disk) is said in the log and does not end the run.

    Args:
        path: The file. A half-written last line, as a killed process leaves it, is completed.
        process: Which of a run's processes this is; all but the first say so with what they write.
    """

    def __init__(self, path: Path, process: int = 0) -> None:
        super().__init__(logging.WARNING)
        self.path, self.process = path, process
        self.step = 0
        self._shown_by: logging.Handler | None = None

    def append(self, event: str, **fields: Any) -> None:
        """Write one line; when this returns it is on the disk."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        short = {k: v[:LONGEST] if isinstance(v, str) else v for k, v in fields.items()}
        where = {"process": self.process} if self.process else {}
        row = {"time": now, "step": self.step, "event": event, **where, **short}
        line = json.dumps(row, ensure_ascii=False, default=str) + "\n"
        try:
            with self.path.open("a+b") as file:
                if file.seek(0, os.SEEK_END) and not self._ends_well(file):
                    line = "\n" + line
                # A lone surrogate may stand in what a model wrote.
                file.write(line.encode("utf-8", "backslashreplace"))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            # Not through our own logger: that would lead back here.
            logging.getLogger("selfverify_events").warning("cannot write %s: %s", self.path, error)

    @staticmethod
    def _ends_well(file: Any) -> bool:
        file.seek(-1, os.SEEK_END)
        return bool(file.read(1) == b"\n")

    def emit(self, record: logging.LogRecord) -> None:
        """A warning becomes an event: what `note` called it, or ``warning``."""
        try:
            fields = getattr(record, "fields", {})
            self.append(getattr(record, "event", "warning"), message=record.getMessage(), **fields)
        except Exception:
            self.handleError(record)
        if self._shown_by is not None:
            self._shown_by.handle(record)

    def __enter__(self) -> EventLog:
        ours = logging.getLogger("selfverify")
        # Where nobody set up logging Python prints warnings itself, but only as long as there is no handler.
        self._shown_by = None if ours.hasHandlers() else logging.lastResort
        ours.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("selfverify").removeHandler(self)
        if isinstance(error, KeyboardInterrupt):
            if self.process == 0:  # all are interrupted together
                self.append("interrupted")
        elif error is not None:
            self.append("failed", message=f"{type(error).__name__}: {error}")


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events in a file, none if it does not exist. Lines that a kill cut off are left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            log.debug("%s: a line was cut off", path)
            continue
        if not isinstance(row, dict) or "event" not in row:
            raise DataError(f"{path}: {line[:80]!r} is not an event")
        rows.append(row)
    return rows


COUNTED = {
    "worker_restarted": ("worker process replaced", "worker processes replaced"),
    "call_retried": ("call of a worker made again", "calls of workers made again"),
    "image_retried": ("image read at a second or later try", "images read at a second or later try"),
    "rows_skipped": ("data file with broken rows", "data files with broken rows"),
    "unjudged": ("answer that could not be judged", "answers that could not be judged"),
    "step_empty": ("step without a usable problem", "steps without a usable problem"),
    "warning": ("other warning", "other warnings"),
}
"""Events that a story counts, in one and in many."""


def story(events: Sequence[dict[str, Any]], named: int = 10) -> list[str]:
    """What happened, in sentences; empty if nothing did but training.

    Args:
        events: Of a run's file; those before its last start without resuming belong to another run.
        named: Skipped problems, and other warnings, that are named at most.
    """
    begun = [i for i, e in enumerate(events) if e["event"] == "started" and not e.get("resume")]
    events = events[begun[-1] if begun else 0 :]
    lines = []
    for number, event in enumerate(events):
        match event["event"]:
            case "started" if number:
                lines.append(f"started again from the beginning, there was no checkpoint ({_when(event)})")
            case "resumed":
                again = event.get("steps_again")
                lost = f"; {again} {'step was' if again == 1 else 'steps were'} done again" if again else ""
                lines.append(f"resumed at step {event.get('step')} ({_when(event)}){lost}")
            case "interrupted" | "time_limit":
                lines.append(f"{event['event'].replace('_', ' ')} at step {event['step']} ({_when(event)})")
            case "failed":
                lines.append(f"failed at step {event['step']} ({_when(event)}): {event.get('message')}")
    for name, (one, many) in COUNTED.items():
        found = [event for event in events if event["event"] == name]
        if found:
            lines.append(f"{len(found)} {one if len(found) == 1 else many}")
    # By text: a killed and resumed run warns twice of the same thing.
    lines += _some({str(e.get("message")): "" for e in events if e["event"] == "warning"}, named)
    skipped = {str(e.get("problem")): str(e.get("reason")) for e in events if e["event"] == "problem_skipped"}
    if skipped:
        lines.append(f"{len(skipped)} {'problem' if len(skipped) == 1 else 'problems'} skipped")
        lines += _some(skipped, named)
    return lines


def _some(named: dict[str, str], most: int) -> list[str]:
    lines = [f"  {name}: {reason}" if reason else f"  {name}" for name, reason in named.items()]
    more = len(lines) - most
    return lines[:most] + ([f"  and {more} more, see {EVENTS_FILE}"] if more > 0 else [])


def _when(event: dict[str, Any]) -> str:
    return str(event.get("time", ""))[:19].replace("T", " ") + " UTC"
