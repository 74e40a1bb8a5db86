"""The folder in which data of looking again are made.

FOLDER/
  collected.jsonl      conversations as they were held, by problem (a journal)
  branched.jsonl       those that go on from the middle of a right one
  induced.jsonl        the same, by a model that was asked to go on wrongly
  hurried.jsonl        the same, by a model that was told to answer at once
  verdicts.jsonl       what a model that judges answers has said
  images/              what they show, by content
  sft.jsonl            right traces, for supervised fine-tuning
  pairs.jsonl          preferences, for the verifier
  data.json            how many traces were dropped for which reason
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from PIL.Image import Image

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.jsonl_store import read_journal
from selfverify.evaluation.samples import IMAGES, written_images
from selfverify.experiments.teaching import TaughtConversation, TaughtProblem
from selfverify.visual.traces import VisualTrace, malformed_message

COLLECTED, VERDICTS = "collected.jsonl", "verdicts.jsonl"
SFT, PAIRS, ABOUT = "sft.jsonl", "pairs.jsonl", "data.json"
Way = Literal["branched", "induced", "hurried"]
SOURCES = {
    "sampled": COLLECTED, "branched": "branched.jsonl", "induced": "induced.jsonl", "hurried": "hurried.jsonl"
}  # fmt: skip
"""Journals by the source of their traces."""


def image_keeper(folder: Path) -> Callable[[Image], str]:
    """What writes images into a folder and names them by their content, for several threads."""
    lock = Lock()

    def keep(image: Image) -> str:
        with lock:
            [name] = written_images(folder / IMAGES, [image])
        return name

    return keep


def read_lessons(folder: Path, source: str) -> tuple[dict[str, Any], list[TaughtProblem]]:
    """The header and the lines of one of a folder's journals, in order.

    Raises:
        ConfigError: There is no such journal.
        DataError: It is damaged.
    """
    path = folder / SOURCES[source]
    if not path.is_file():
        raise ConfigError(f"{folder} has no {path.name}; `selfverify visual collect` makes it")
    settings, rows = read_journal(path, TaughtProblem)
    for row in rows.values():
        if fault := _fault(row):
            raise DataError(f"{path}: problem {row.problem}: {fault}. Restore the file, or delete it")
    return settings, [rows[index] for index in sorted(rows)]


def _fault(row: TaughtProblem) -> str:
    """What is wrong with a line whose fields have the right types; empty where nothing is."""
    for number, one in enumerate(row.conversations):
        why = next(filter(None, map(malformed_message, one.messages)), "")
        if why or not one.messages:
            return f"conversation {number}: {why or 'it has no messages'}"
    told, cuts, steps = (row.about.get(name, wanted) for name, wanted in _TOLD.items())
    if type(told) is not int:
        return "about.told is no whole number"
    if not isinstance(cuts, list) or not all(isinstance(cut, list) for cut in cuts):
        return "about.cuts is no list of lists"
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        return "about.steps is no list of objects"
    return ""


_TOLD: dict[str, Any] = {"told": 1, "cuts": [], "steps": []}
"""What `TaughtProblem.about` says of the beginning that a conversation goes on from, with what it is by
default."""


def all_traces(folder: Path) -> Iterator[VisualTrace]:
    """The traces of all journals in a folder.

    Raises:
        ConfigError: Nothing was collected there.
        DataError: A journal is damaged.
    """
    for source, name in SOURCES.items():
        if source == "sampled" or (folder / name).is_file():
            settings, rows = read_lessons(folder, source)
            for row in rows:
                yield from traces_of(row, source, str(settings.get("task", "")))


def traces_of(row: TaughtProblem, source: str, task: str) -> Iterator[VisualTrace]:
    """The traces in a line of a journal."""
    about = row.about
    name = str(about.get("parent") or row.problem)
    for number, told in enumerate(row.conversations):
        yield _trace(row, told, f"{name}#{number}" if source == "sampled" else f"{name}/{source}#{number}",
                     source, task)  # fmt: skip


def _trace(row: TaughtProblem, told: TaughtConversation, name: str, source: str, task: str) -> VisualTrace:
    about = row.about
    return VisualTrace(
        id=name,
        problem=str(about.get("problem") or row.problem),
        messages=told.messages,
        cuts=[*about.get("cuts", []), *told.cuts],
        rewards=told.rewards,
        steps=[*about.get("steps", []), *told.steps],
        finish=told.finish,
        lost=told.lost,
        source=source,
        category=str(about.get("category") or ""),
        task=task,
        told=int(about.get("told", 1)),
    )
