"""Conversations with tools, read from files and written to them, and tasks for agents in environments.

A conversation is a record as files for fine-tuning hold it: verl's ``messages`` and ``tools``.

``messages`` is a list of ``role`` (system, user, assistant, tool) and ``content``; an assistant's message may
have ``tool_calls``, as OpenAI writes them. ``tools`` is a list of OpenAI's schemas. Both may be JSON in a
text. Parquet gives every object of a list the fields of all of them; what is null is left out here.

Messages may show images: as parts ``{"type": "image", "image": ...}`` (a path, or what else `Images` reads),
or as places for the images in the column ``images``, in order: parts ``{"type": "image"}``, or ``<image>``
in texts, as LLaMA-Factory writes it. Its other form, ``conversations`` with ``from`` and ``value``, is the
format ``sharegpt``.

Source: verl's ``MultiTurnSFTDataset``, and SmartSnap's release (``data.multiturn.messages_key=messages
data.multiturn.tools_key=tools``).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import make_folder, written_whole
from selfverify.data.fields import (
    Images,
    Place,
    Record,
    Row,
    filled,
    first,
    listed,
    mapped,
    optional,
    shown,
    text,
)
from selfverify.data.images import ImageRef

LONGEST_NAME = 500
LONGEST_MESSAGE = 1_000_000
"""Characters of a message; a longer one means that the file is broken."""
ROLES = ("system", "user", "assistant", "tool")
TAUGHT = ("all", "last")
SPEAKERS = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
"""LLaMA-Factory's names of roles."""
IMAGE_MARK = "<image>"
"""A place for an image in a text, where a record has a column of images."""


def is_conversation(record: Record) -> bool:
    """Whether a record is a conversation, and no question in other columns."""
    return filled(record.get("messages")) and first(record, "question", "problem", "answer") is None


def convert_conversation(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`.

    A row has ``messages``, each with ``role``, ``content`` and, of an assistant, ``calls`` (name and
    arguments), and ``tools``. ``taught`` says whether all the assistant's messages are to be learnt or the
    last one only (our own column; verl's files have none, and all are learnt).
    """
    shows = Shows(images, place, images.refs(record.get("images"), place))
    messages = read_messages(record.get("messages"), "messages", shows)
    shows.check_all_shown()
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError("its messages have none of an assistant")
    if messages[0]["role"] not in ("system", "user"):
        raise DataError(f"message 1: its role is {messages[0]['role']}: a user has to ask first")
    check_order(messages)
    taught = first(record, "taught") or "all"
    if taught not in TAUGHT:
        raise DataError(f"its taught is {shown(taught)}, neither all nor last")
    tools = listed(record["tools"], "tools") if filled(record.get("tools")) else []
    row: Row = {
        **_shared(record, ("id", "problem")),
        "messages": messages,
        "tools": [_tool(tool, number) for number, tool in enumerate(tools, start=1)],
        "taught": taught,
    }
    if filled(record.get("cuts")):
        row["cuts"] = read_cuts(record["cuts"], messages, "cuts")
    return [row]


def _shared(record: Record, ids: Sequence[str]) -> Row:
    category = optional(record, ("category", "app"), LONGEST_NAME)
    return {
        "id": optional(record, ids, LONGEST_NAME),
        "images": [],
        "source": optional(record, ("source", "data_source"), LONGEST_NAME),
        "category": category,
        "categories": {} if category is None else {"app": [category]},
    }


def convert_sharegpt(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`: ``conversations`` with ``from`` and ``value``, as well as ``messages``."""
    if not filled(record.get("messages")):
        given = [with_role(turn) for turn in listed(record.get("conversations"), "conversations")]
        if filled(record.get("system")):
            given.insert(0, {"role": "system", "content": record["system"]})
        record = {**record, "messages": given}
    return convert_conversation(record, place, images)


def with_role(turn: Any) -> Any:
    """Return a message with ``from`` and ``value``, as LLaMA-Factory has them, with ``role`` and
    ``content``."""
    if not isinstance(turn, Mapping) or "from" not in turn or "role" in turn:
        return turn
    who = turn["from"]
    return {"role": SPEAKERS.get(str(who), who), "content": turn.get("value")}


class Shows:
    """Gives the images of a record out to the places for them.

    Args:
        images: Finds those that parts name themselves.
        place: Where the record stands.
        refs: Those in the record's column, in order.
        marks: Whether ``<image>`` in a text is a place, too.
    """

    def __init__(
        self, images: Images, place: Place, refs: Sequence[ImageRef], marks: bool | None = None
    ) -> None:
        self.images, self.place, self.refs = images, place, list(refs)
        self.marks = bool(refs) if marks is None else marks
        self._given = 0

    def next(self) -> ImageRef:
        """The image of the next place.

        Raises:
            DataError: There is none.
        """
        if self._given >= len(self.refs):
            raise DataError(f"there are more places for images than its {len(self.refs)} images")
        self._given += 1
        return self.refs[self._given - 1]

    def named(self, value: Any) -> ImageRef:
        """The image that a part names.

        Raises:
            DataError: It names none or several.
        """
        found = self.images.refs(value, self.place)
        if len(found) != 1:
            raise DataError(f"a part of a message shows {shown(value)}, which is not one image")
        return found[0]

    def check_all_shown(self) -> None:
        """See that every image has a place.

        Raises:
            DataError: One has none.
        """
        if self._given < len(self.refs):
            raise DataError(f"{len(self.refs) - self._given} of its {len(self.refs)} images have no place")


def read_messages(value: Any, name: str, shows: Shows) -> list[dict[str, Any]]:
    """Messages of a record: each has ``role``, ``content`` and, of an assistant, ``calls``.

    A ``content`` that shows images is a list of parts, in which an image is an `ImageRef`; else it is a text.

    Raises:
        DataError: They are none; the message says which one.
    """
    messages = listed(value, name)
    if not messages:
        raise DataError(f"its {name} is empty")
    return [_message(message, number, shows) for number, message in enumerate(messages, start=1)]


def read_cuts(value: Any, messages: Sequence[dict[str, Any]], name: str) -> list[list[tuple[str, int]]]:
    """For each of the assistant's messages the channels that it consists of, as `Observation.channels` has
    them.

    Raises:
        DataError: They do not fit the messages.
    """
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    given = [list(map(tuple, cuts)) for cuts in listed(value, name)]
    if len(given) != len(said):
        raise DataError(f"its {name} are of {len(given)} turns, and the assistant speaks {len(said)} times")
    for number, (cuts, turn) in enumerate(zip(given, said, strict=True), start=1):
        fits = cuts and all(
            len(cut) == 2 and isinstance(cut[0], str) and cut[0] and isinstance(cut[1], int) for cut in cuts
        )
        starts = [cut[1] for cut in cuts] if fits else []
        if not fits or starts[0] != 0 or starts != sorted(set(starts)) or starts[-1] > len(turn):
            raise DataError(f"its {name} of turn {number} are {shown(cuts)}, which do not divide it")
    return given


def check_order(messages: Sequence[dict[str, Any]]) -> None:
    """See that between two messages of the assistant either a user speaks or tools do."""
    said = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    for before, after in itertools.pairwise(said):
        between = [message["role"] for message in messages[before + 1 : after]]
        if len(set(between)) != 1 or "system" in between:
            who = " and ".join(dict.fromkeys(between)) or "nobody"
            raise DataError(
                f"message {after + 1}: before it the assistant has spoken, then {who}; it has to be a user "
                "or tools"
            )


def _message(message: Any, number: int, shows: Shows) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(message, dict):
        raise DataError(f"{where} is {shown(message)}, not an object")
    role = message.get("role")
    if role not in ROLES:
        raise DataError(f"{where}: its role is {shown(role)}, none of {', '.join(ROLES)}")
    calls = message.get("tool_calls", message.get("calls"))
    found: dict[str, Any] = {"role": role, "content": _content(message.get("content"), where, shows)}
    if role == "assistant":
        if not isinstance(found["content"], str):
            raise DataError(f"{where}: the assistant shows images")
        told = [] if calls is None else listed(calls, f"{where}: tool_calls")
        found["calls"] = [_call(call, f"{where}, call {n}") for n, call in enumerate(told, start=1)]
    elif filled(calls) and calls != []:
        raise DataError(f"{where}: a message of role {role} calls tools")
    if not found["content"] and not found.get("calls") and role != "tool":
        raise DataError(f"{where}: it is empty")
    return found


def _content(content: Any, where: str, shows: Shows) -> str | list[dict[str, Any]]:
    """A message's text, or its parts where it shows images."""
    if content is None:
        return ""
    if not isinstance(content, str | list):
        raise DataError(f"{where}: its content is {shown(content)}, not a text")
    try:
        parts = _parts(content, where, shows)
    except DataError as error:
        raise DataError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    if len(text) > LONGEST_MESSAGE:
        raise DataError(f"{where}: its content has {len(text):,} characters, more than {LONGEST_MESSAGE:,}")
    return parts if any(part["type"] == "image" for part in parts) else text


def _parts(content: str | list[Any], where: str, shows: Shows) -> list[dict[str, Any]]:
    """A message's texts and images."""
    parts: list[dict[str, Any]] = []
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image":
            named = first(part, "image", "path")
            parts.append({"type": "image", "image": shows.next() if named is None else shows.named(named)})
        elif kind == "text" and isinstance(part.get("text"), str):
            pieces = part["text"].split(IMAGE_MARK) if shows.marks else [part["text"]]
            for number, piece in enumerate(pieces):
                parts += [{"type": "image", "image": shows.next()}] if number else []
                parts += [{"type": "text", "text": piece}] if piece else []
        else:
            raise DataError(f"{where}: its content has {shown(part)}, which is neither text nor an image")
    return parts


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DataError(f"{where} is {shown(call)}: it needs the name of a function")
    given = function.get("arguments")
    arguments = {} if given is None or given == "" else mapped(given, f"{where}: arguments")
    return {"name": function["name"], "arguments": without_nulls(arguments)}


def _tool(tool: Any, number: int) -> dict[str, Any]:
    tool = without_nulls(tool)
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DataError(f"tool {number} is {shown(tool)}: it needs a function with a name")
    return dict(tool)


def without_nulls(value: Any) -> Any:
    """A JSON value without the fields that are null, at every depth."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value


SUFFIXES = (".parquet", ".jsonl")
_BATCH = 256


def check_output(path: Path) -> None:
    """Refuse an output that cannot be written, before anything is computed for it.

    Raises:
        ConfigError: Its suffix is unknown, or pyarrow is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: conversations are written as {' or '.join(SUFFIXES)}")
    if path.suffix == ".parquet":
        _pyarrow(path)


def journal_of(path: Path) -> Path:
    """The file beside an output that keeps what its conversations are made of, so that nothing is lost."""
    return path.with_name(f"{path.name}.journal")


def write_conversations(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write conversations, all of them or none; return their number.

    Calls stand in the assistant's content, as Qwen's chat templates write them, so that no column has the
    union of all arguments. ``tools`` is the list of objects that verl reads; Parquet gives each of their
    fields to all of them, null where a tool has none.

    Args:
        path: The file; ``.parquet`` or ``.jsonl``.
        rows: ``messages`` (``role`` and ``content`` each), ``tools``, and further columns, the same of all
            rows.

    Raises:
        ConfigError: As `check_output`.
        DataError: There are none, or rows of one Parquet file have different columns.
    """
    check_output(path)
    make_folder(path.parent)
    with written_whole(path) as partial:
        count = (_parquet if path.suffix == ".parquet" else _lines)(partial, rows)
        if not count:
            raise DataError(f"{path}: there are no conversations to write")
    return count


def _lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    count = 0
    with path.open("w", encoding="utf-8", errors="replace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def _parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    pa, parquet = _pyarrow(path)
    left, count, writer = map(_storable, rows), 0, None
    try:
        while batch := list(islice(left, _BATCH)):
            try:
                table = pa.Table.from_pylist(batch, schema=writer and writer.schema)
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                raise DataError(
                    f"{path.with_suffix('')}: conversations {count + 1} to {count + len(batch)} have other "
                    f"columns than the first ones ({error}); write them as .jsonl, or as several files"
                ) from None
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
            count += len(batch)
    finally:
        if writer is not None:
            writer.close()
    return count


def _storable(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as Parquet can hold it: no list of nothing, and no half characters."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    return {name: value for name, value in json.loads(text).items() if value != []}


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(f"{path}: Parquet needs pyarrow; pip install 'selfverify[data]'") from None
    return pyarrow, pyarrow.parquet


LONGEST_INSTRUCTION = 20_000


def is_agent_task(record: Record) -> bool:
    """Whether a record is an agent's task: ``instruction``, and ``task`` as an object or its JSON."""
    task = record.get("task")
    written = isinstance(task, str) and task.lstrip().startswith("{")
    return filled(record.get("instruction")) and (isinstance(task, dict) or written)


def convert_agent_task(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`. A task without ``seed`` gets another one in each pass over the file.

    ``instruction`` is what is asked, ``task`` what the environment's reset takes, ``goal`` what has to be so
    in the end (`agents.goals`), ``steps`` how many calls the task takes; the last two where they are known.
    """
    row: Row = {
        **_shared(record, ("id", "task_id")),
        "instruction": text(record.get("instruction"), "instruction", LONGEST_INSTRUCTION),
        "task": mapped(record.get("task"), "task"),
        "goal": mapped(record["goal"], "goal") if filled(record.get("goal")) else None,
        "seed": _whole(record, "seed"),
        "steps": _whole(record, "steps"),
    }
    return [row]


def _whole(record: Record, name: str) -> int | None:
    value = record.get(name)
    if not filled(value):
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DataError(f"its {name} is {shown(value)}, not a whole number from 0 on")
    return value
