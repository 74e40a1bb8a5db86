"""The log: text for people or JSON for programs, and nothing in it of what a request says."""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

LogFormat = Literal["text", "json"]

FIELDS = "selfverify_fields"
"""The attribute of a log record with its fields for programs."""


def log_to_stderr(kind: LogFormat) -> None:
    """Write the log of this process to stderr."""
    # Neither format tells these, and looking them up is a tenth of what a line costs.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if kind == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, and either the record's fields or its message.

    Of an exception it tells the type and the places, since its text may quote a request.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = datetime.fromtimestamp(record.created, UTC)
        told: dict[str, Any] = {
            "time": when.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = record.__dict__.get(FIELDS)
        told |= {"message": record.getMessage()} if fields is None else fields
        if record.exc_info and record.exc_info[1]:
            told["exception"] = where(record.exc_info[1])
        return json.dumps(told, ensure_ascii=False, default=str)


def where(error: BaseException) -> str:
    """Return the type of an error and where it was raised; its text may quote a request."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    return " ".join([type(error).__name__, *(f"{Path(f.filename).name}:{f.lineno}" for f in frames)])


class HideRequests(logging.Filter):
    """Takes everything out of aiohttp's messages that may quote a request: they hold keys and prompts."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep what kind of error it was, and where."""
        error = record.exc_info[1] if record.exc_info else None
        record.msg, record.args = "a connection failed: %s", (where(error) if error else record.levelname,)
        record.exc_info = record.exc_text = None
        return True


http_logger = logging.getLogger("selfverify.serving.http")
"""What aiohttp logs to."""
http_logger.addFilter(HideRequests())
