"""AndroidLab's tasks from its YAML files, and sessions in the form that its evaluator reads.

There are 138 tasks for validation, and 726 for training in SmartSnap's release.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent

from selfverify.agents import tools
from selfverify.agents.android.screen import Capture
from selfverify.core.errors import DataError
from selfverify.core.files import make_folder, naming, read_regular, write_bytes
from selfverify.core.jsonl_store import JsonlStore

MOST_BYTES = 4 * 2**20
"""Length of a task file beyond which it is not read."""
MOST_DEPTH = 10
"""How many lists and mappings of a task file may stand in each other."""

_WORD = re.compile(r"[\w.:-]+")
_FIELDS = {"task": "instruction", "adb_query": "queries"}
"""The names that keys of a task file have here; all others stay as they are."""
_NAMES = {name: key for key, name in _FIELDS.items()}
_WRITTEN = {"task_id", "task", "category", "metric_type", "metric_func", "adb_query"}


class AndroidTask(BaseModel):
    """One task, as plain JSON: what `AndroidEnvironment.reset` takes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task_id: str = Field(min_length=1, max_length=200, pattern=r"^[\w.-]+$")
    instruction: str = Field(min_length=1)
    app: str = Field(min_length=1)
    package: str = Field(min_length=1)
    category: str = ""
    metric_type: str = ""
    """``operation`` or ``query_detect``: whether the state or the answer is judged."""
    metric_func: str = ""
    """Which of AndroidLab's programs judges it; a name, never imported."""
    queries: tuple[str, ...] = Field((), strict=False)
    """Questions to the device that AndroidLab's judge needs answered after each step (``adb_query``)."""

    @field_validator("queries")
    @classmethod
    def _only_questions(cls, queries: tuple[str, ...]) -> tuple[str, ...]:
        for query in queries:
            device_question(query)
        return queries


def read_task(task: Mapping[str, Any]) -> AndroidTask:
    """A task from plain JSON.

    Raises:
        DataError: A field is missing, unknown or wrong.
    """
    try:
        return AndroidTask.model_validate(dict(task))
    except ValidationError as error:
        raise DataError(f"Android task {task.get('task_id')!r}: {_faults(error, {})}") from None


def read_tasks(path: Path) -> list[AndroidTask]:
    """The tasks of YAML files, in order.

    Args:
        path: A file, or a folder whose ``*.yaml`` files are read in the order of their names. Training and
            validation tasks have the same ids, so that they cannot be read together. An id that is a number,
            as in one file of SmartSnap's, gets the file's name before it: ``pi_music_player_0``.

    Raises:
        DataError: A file cannot be read, a task is wrong, or two have one id; it names file and task.
    """
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: there is no task file (*.yaml)")
    tasks: list[AndroidTask] = []
    homes: dict[str, Path] = {}
    for file in files:
        for task in _tasks_of(file):
            if (other := homes.setdefault(task.task_id, file)) is not file:
                raise DataError(f"{file}, task {task.task_id}: {other} has a task of this id already")
            tasks.append(task)
    return tasks


def read_lengths(file: Path) -> dict[str, int]:
    """How many calls a person needs for each task, by its id.

    Raises:
        DataError: The file cannot be read, or is no JSON object of whole numbers.
    """
    try:
        return TypeAdapter(dict[str, int]).validate_json(read_regular(file))
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        raise DataError(f"{file}: it has a length for each task's id: {_faults(error, {})}") from None


def device_question(query: str) -> str:
    """The shell command of an ``adb_query``, such as ``adb shell settings get global airplane_mode_on``.

    Raises:
        ValueError: It is none that only asks: ``settings get``, ``settings list | grep``, ``getprop``,
            ``pm list packages | grep``. A task file cannot make a device do anything.
    """
    try:
        words = shlex.split(query)
        if words[:2] == ["adb", "shell"] and len(words) == 3:
            words[2:] = shlex.split(words[2])
    except ValueError:
        words = []
    match words[2:] if words[:2] == ["adb", "shell"] else []:
        case (
            ["settings", "get", ("system" | "global" | "secure"), word]
            | ["settings", "list", ("system" | "global" | "secure"), "|", "grep", word]
            | ["pm", "list", "packages", "|", "grep", word]
            | ["getprop", word]
        ) if _WORD.fullmatch(word) and word[0] != "-":
            return " ".join(words[2:])
    raise ValueError(f"{query[:200]!r} is no question to a device that is known (settings get, getprop, ...)")


def _tasks_of(file: Path) -> list[AndroidTask]:
    content = _load(file)
    if not isinstance(content, dict) or not isinstance(content.get("tasks"), list):
        raise DataError(f"{file}: a task file has APP, package and a list of tasks")
    for key in ("APP", "package"):
        if not isinstance(content.get(key), str):
            raise DataError(f"{file}: {key} must be a text")
    tasks: list[AndroidTask] = []
    for number, written in enumerate(content["tasks"], start=1):
        name = written.get("task_id") if isinstance(written, dict) else None
        place = f"{file}, task {name if isinstance(name, str) else f'number {number}'}"
        if not isinstance(written, dict):
            raise DataError(f"{place}: it is no mapping")
        if unknown := sorted(str(key) for key in written if key not in _WRITTEN):
            raise DataError(f"{place}: unknown key {unknown[0]!r}; there are {', '.join(sorted(_WRITTEN))}")
        number_id = isinstance(name, int) and not isinstance(name, bool) and name >= 0
        given = {_FIELDS.get(key, key): value for key, value in written.items()}
        given |= {"app": content["APP"], "package": content["package"], "instruction": written.get("task")}
        given["task_id"] = f"{file.stem}_{name}" if number_id else name
        asked = given.pop("queries", None)
        given["queries"] = asked if isinstance(asked, list) else [] if asked is None else [asked]
        try:
            task = AndroidTask.model_validate(given)
        except ValidationError as error:
            raise DataError(f"{place}: {_faults(error, _NAMES)}") from None
        if any(task.task_id == other.task_id for other in tasks):
            raise DataError(f"{place}: the id stands in the file twice")
        tasks.append(task)
    return tasks


def _load(file: Path) -> Any:
    """A file's content as plain values: safe YAML without aliases, which can repeat without end."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise DataError(f"{file}: a task file has at most {MOST_BYTES:,} bytes")
        text = read_regular(file).decode("utf-8")
        depth = 0
        for event in YAML(typ="safe", pure=True).parse(text):
            depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
            if isinstance(event, AliasEvent) or depth > MOST_DEPTH:
                what = "aliases (*name)" if isinstance(event, AliasEvent) else f"{MOST_DEPTH} levels"
                raise DataError(f"{file}, line {event.start_mark.line + 1}: a task file has no {what}")
        return YAML(typ="safe", pure=True).load(text)
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise DataError(f"{file}{line}: no valid YAML: {error.problem}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: no valid YAML: {' '.join(str(error).split())[:300]}") from None


def _faults(error: ValidationError, named: Mapping[str, str]) -> str:
    """Return the fault of a task; ``named`` has other names of fields, as the task's author knows them."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(
        f"{'.'.join(named.get(str(part), str(part)) for part in fault['loc'])}: {fault['msg']}"
        for fault in faults[:3]
    )


_BEGIN = re.compile(rb"<\?xml|<hierarchy|<displays")


@dataclass
class Trace:
    """Writes one session as AndroidLab's evaluator reads it.

    Its folder is named ``TASK_SEED`` and holds ``traces/trace.jsonl``, ``xml/N.xml`` and
    ``Screen/screenshot-N-before.png``. Each line is a screen together with what was then done on it; the last
    one is the end.

    Args:
        folder: Where sessions lie.
        task: The session's task.
        seed: The session's seed.

    Raises:
        FileError: The folder cannot be made.
    """

    folder: Path
    task: AndroidTask
    seed: int
    steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        first = self.folder / f"{self.task.task_id}_{self.seed}"
        make_folder(self.folder)
        with naming(first):
            for number in itertools.count(1):
                self.home = first if number == 1 else first.with_name(f"{first.name}-{number}")
                with suppress(FileExistsError):
                    self.home.mkdir()
                    break
            for name in ("xml", "Screen"):
                (self.home / name).mkdir()
        self._journal = JsonlStore(self.home / "traces" / "trace.jsonl")
        self._line: dict[str, Any] = {}

    def seen(self, view: Capture, answers: dict[str, str]) -> None:
        """Keep what is shown, before anything is done on it. Seen again, a screen replaces the one before.

        Args:
            view: The screen, with its dump.
            answers: The device's answers to the task's questions.
        """
        image = self.home / "Screen" / f"screenshot-{self.steps}-before.png"
        xml = self.home / "xml" / f"{self.steps}.xml"
        if view.png:
            write_bytes(image, view.png)
        begin = _BEGIN.search(view.dump)
        if begin is not None:
            write_bytes(xml, view.dump[begin.start() :])
        self._line = {
            "trace_id": self.home.name,
            "index": self.steps,
            "prompt": "** XML **" if self.steps else self.task.instruction,
            "image": str(image),
            "xml": str(xml) if begin is not None else "ERROR",
            "ac_xml": None,
            "current_activity": view.focus.package,
            "window": list(view.size),
            "target": self.task.instruction,
            **({"command": answers} if answers else {}),
        }

    def done(self, action: tools.ScreenAction) -> None:
        """Add an action on the screen that was seen last."""
        name, details = _named(action)
        self._add({"operation": "do", "action": name, **({"kwargs": details} if details else {})})

    def finished(self, message: str) -> None:
        """Add the end, on the screen seen last."""
        self._add({"operation": "finish", "action": "finish", "kwargs": {"message": message}})

    def _add(self, parsed: dict[str, Any]) -> None:
        given = ", ".join(f"{key}={value!r}" for key, value in parsed.get("kwargs", {}).items())
        response = f"{parsed['operation']}(action={parsed['action']!r}{', ' * bool(given)}{given})"
        self._journal.append({**self._line, "parsed_action": parsed, "current_response": response})
        self.steps += 1


def _named(action: tools.ScreenAction) -> tuple[str, dict[str, Any]]:
    """An action as AndroidLab's programs name it."""
    match action:
        case tools.Tap(box):
            return "Tap", {"element": list(box)}
        case tools.LongPress(box):
            return "Long Press", {"element": list(box)}
        case tools.Swipe(box, direction, distance):
            return "Swipe", {"element": list(box), "direction": direction, "dist": distance}
        case tools.TypeText(text):
            return "Type", {"text": text}
        case tools.PressKey(key):
            return f"Press {key.capitalize()}", {}
        case tools.LaunchApp(app):
            return "Launch", {"package": app}
        case tools.WaitFor():
            return "Wait", {}
    raise AssertionError(action)
