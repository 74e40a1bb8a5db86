"""Tasks for agents in environments: what is asked, and what the environment is reset to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data.fields import Images, Place, Record, Row, filled, optional, shown, text

LONGEST_INSTRUCTION = 20_000
LONGEST_NAME = 500


def is_agent_task(record: Record) -> bool:
    """Whether a record is such a task: ``instruction``, and ``task`` as an object or its JSON."""
    task = record.get("task")
    written = isinstance(task, str) and task.lstrip().startswith("{")
    return filled(record.get("instruction")) and (isinstance(task, dict) or written)


def convert_agent_task(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`. A task without ``seed`` gets another one in each pass over the file.

    ``task`` is what the environment's reset takes, ``goal`` what has to be so in the end (`agents.goals`),
    ``steps`` how many calls the task takes; the last two where they are known.
    """
    category = optional(record, ("category", "app"), LONGEST_NAME)
    row: Row = {
        "id": optional(record, ("id", "task_id"), LONGEST_NAME),
        "images": [],
        "source": optional(record, ("source", "data_source"), LONGEST_NAME),
        "category": category,
        "categories": {} if category is None else {"app": [category]},
        "instruction": text(record.get("instruction"), "instruction", LONGEST_INSTRUCTION),
        "task": _object(record.get("task"), "task"),
        "goal": _object(record["goal"], "goal") if filled(record.get("goal")) else None,
        "seed": _whole(record, "seed"),
        "steps": _whole(record, "steps"),
    }
    return [row]


def _object(value: Any, name: str) -> dict[str, Any]:
    """An object, which may be written as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DataError(f"its {name} is no JSON ({error})") from None
    if not isinstance(value, dict):
        raise DataError(f"its {name} is {shown(value)}, not an object")
    return value


def _whole(record: Record, name: str) -> int | None:
    value = record.get(name)
    if not filled(value):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DataError(f"its {name} is {shown(value)}, not a whole number from 0 on")
    return value
