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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import make_folder, written_whole
from selfverify.core.jsonl_store import json_line
from selfverify.data import fields
from selfverify.data.fields import Images, Place, Record, Row, filled, first, listed, mapped, shown, text
from selfverify.data.images import ImageRef
from selfverify.data.questions import find_images

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
    """Convert a conversation.

    A row has ``messages``, each with ``role``, ``content`` and, of an assistant, ``calls`` (name and
    arguments), and ``tools``. ``taught`` says whether all the assistant's messages are to be learnt or the
    last one only (our own column; verl's files have none, and all are learnt).
    """
    shows = Shows(images, place, find_images(record, images, place))
    messages = read_messages(record.get("messages"), "messages", shows)
    shows.check_all_shown()
    check_order(messages)
    if not any(message["role"] == "assistant" for message in messages):
        raise DataError("its messages have none of an assistant")
    taught = first(record, "taught") or "all"
    if taught not in TAUGHT:
        raise DataError(f"its taught is {shown(taught)}, neither all nor last")
    tools = listed(record["tools"], "tools") if filled(record.get("tools")) else []
    row: Row = {
        **shared_fields(record, ("id", "problem"), ("source", "data_source"), ("category", "app")),
        "messages": messages,
        "tools": [_tool(tool, number) for number, tool in enumerate(tools, start=1)],
        "taught": taught,
    }
    if filled(record.get("cuts")):
        row["cuts"] = read_cuts(record["cuts"], messages, "cuts")
    return [row]


def shared_fields(record: Record, ids: Sequence[str], sources: Sequence[str], kinds: Sequence[str]) -> Row:
    """Return what all rows have, each from the first of these columns that is filled."""
    columns = {"id": ids, "source": sources, "category": kinds}
    found = {field: fields.optional(record, *names) for field, names in columns.items()}
    app = {"app": [found["category"]]} if "app" in kinds and found["category"] is not None else {}
    return {**found, "images": [], "categories": app}


def convert_sharegpt(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Convert ``conversations`` with ``from`` and ``value``, or ``messages``."""
    if not filled(record.get("messages")):
        given = [with_role(turn) for turn in listed(record.get("conversations"), "conversations")]
        system = [{"role": "system", "content": record["system"]}] if filled(record.get("system")) else []
        record = {**record, "messages": [*system, *given]}
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
        refs: The images in the record's column, in order.
        marks: Whether ``<image>`` in a text is a place, too.
    """

    def __init__(
        self, images: Images, place: Place, refs: Sequence[ImageRef], marks: bool | None = None
    ) -> None:
        self.images, self.place, self.refs = images, place, list(refs)
        self.marks = bool(refs) if marks is None else marks
        self._given = 0

    def image(self, named: Any = None) -> ImageRef:
        """Return the image that a part names, or else that of the next place.

        Raises:
            DataError: There is none, or the part names several.
        """
        if named is not None:
            found = self.images.refs(named, self.place)
            if len(found) != 1:
                raise DataError(f"a part of a message shows {shown(named)}, which is not one image")
            return found[0]
        if self._given >= len(self.refs):
            raise DataError(f"there are more places for images than its {len(self.refs)} images")
        self._given += 1
        return self.refs[self._given - 1]

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
        starts = [at for channel, at in cuts if isinstance(channel, str) and channel and isinstance(at, int)]
        is_whole = starts[:1] == [0] and len(starts) == len(cuts) and starts == sorted(set(starts))
        if not is_whole or starts[-1] > len(turn):
            raise DataError(f"its {name} of turn {number} are {shown(cuts)}, which do not divide it")
    return given


def check_order(messages: Sequence[dict[str, Any]]) -> None:
    """See that a user begins, and that between two messages of the assistant a user speaks or tools do.

    Raises:
        DataError: It is otherwise.
    """
    if messages[0]["role"] not in ("system", "user"):
        raise DataError(f"message 1: its role is {messages[0]['role']}: a user has to ask first")
    said = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    for before, after in itertools.pairwise(said):
        between = {message["role"]: None for message in messages[before + 1 : after]}
        if len(between) != 1 or "system" in between:
            who = " and ".join(between) or "nobody"
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
    try:
        content = _content(message.get("content"), shows)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    calls = first(message, "tool_calls", "calls")
    told = [] if calls is None else listed(calls, f"{where}: tool_calls")
    if told and role != "assistant":
        raise DataError(f"{where}: a message of role {role} calls tools")
    if role == "assistant" and not isinstance(content, str):
        raise DataError(f"{where}: the assistant shows images")
    if role == "user" and IMAGE_MARK in content:
        raise DataError(f"{where}: it has a place {IMAGE_MARK}, and there are no images")
    if not content and not told and role != "tool":
        raise DataError(f"{where}: it is empty")
    found: dict[str, Any] = {"role": role, "content": content}
    if role == "assistant":
        found["calls"] = [_call(call, f"{where}, call {n}") for n, call in enumerate(told, start=1)]
    return found


def _content(content: Any, shows: Shows) -> str | list[dict[str, Any]]:
    """Return a message's text, or its parts where it shows images."""
    if not isinstance(content, str | list | None):
        raise DataError(f"its content is {shown(content)}, not a text")
    parts: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else [{"type": "text", "text": content or ""}]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image", "image_url"):
            named = first(part, "image", "path", "image_url")
            parts.append({"type": "image", "image": shows.image(named)})
        elif kind == "text" and isinstance(part.get("text"), str):
            pieces = part["text"].split(IMAGE_MARK) if shows.marks else [part["text"]]
            for number, piece in enumerate(pieces):
                parts += [{"type": "image", "image": shows.image()}] if number else []
                parts += [{"type": "text", "text": piece}] if piece else []
        else:
            raise DataError(f"its content has {shown(part)}, which is neither text nor an image")
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    if len(text) > LONGEST_MESSAGE:
        raise DataError(f"its content has {len(text):,} characters, more than {LONGEST_MESSAGE:,}")
    return parts if any(part["type"] == "image" for part in parts) else text


def _call(call: Any, where: str) -> dict[str, Any]:
    function: Any = call.get("function", call) if isinstance(call, dict) else None
    name = _named(function, f"{where} is {shown(call)}: it needs the name of a function")
    given = first(function, "arguments")
    arguments = {} if given is None else mapped(given, f"{where}: arguments")
    return {"name": name, "arguments": without_nulls(arguments)}


def _tool(tool: Any, number: int) -> dict[str, Any]:
    found: dict[str, Any] = without_nulls(tool)
    function = found.get("function") if isinstance(tool, dict) else None
    _named(function, f"tool {number} is {shown(tool)}: it needs a function with a name")
    return found


def _named(function: Any, fault: str) -> str:
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise DataError(fault)
    return name


def without_nulls(value: Any) -> Any:
    """A JSON value without the fields that are null, at every depth."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value


SUFFIXES = (".parquet", ".jsonl")


def check_output(path: Path) -> None:
    """Refuse an output that cannot be written, before anything is computed for it.

    Raises:
        ConfigError: Its suffix is unknown, or pyarrow is not installed.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: conversations are written as {' or '.join(SUFFIXES)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ConfigError(f"{path}: Parquet needs pyarrow; pip install 'selfverify[data]'")


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
    lines = [*map(json_line, rows)]
    if not lines:
        raise DataError(f"{path}: there are no conversations to write")
    with written_whole(path) as partial:
        if path.suffix == ".jsonl":
            partial.write_bytes(b"".join(lines))
        else:
            _write_parquet(partial, path, [json.loads(line) for line in lines])
    return len(lines)


def _write_parquet(partial: Path, path: Path, rows: list[Record]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    # A column of empty lists has no type.
    columns = dict.fromkeys(name for row in rows for name, value in row.items() if value != [])
    try:
        table = pa.table({name: [row.get(name) for row in rows] for name in columns})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{path}: its rows have different columns ({error}); write them as .jsonl") from None
    parquet.write_table(table, partial, row_group_size=256)


def is_agent_task(record: Record) -> bool:
    """Whether a record is an agent's task: ``instruction``, and ``task`` as an object or its JSON."""
    task = record.get("task")
    written = isinstance(task, str) and task.lstrip().startswith("{")
    return filled(record.get("instruction")) and (isinstance(task, dict) or written)


def convert_agent_task(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Convert an agent's task. One without ``seed`` gets another seed in each pass over the file.

    ``instruction`` is what is asked, ``task`` what the environment's reset takes, ``goal`` what has to be so
    in the end (`agents.goals`), ``steps`` how many calls the task takes; the last two where they are known.
    """
    row: Row = {
        **shared_fields(record, ("id", "task_id"), ("source", "data_source"), ("category", "app")),
        "instruction": text(record.get("instruction"), "instruction", fields.LONGEST_QUESTION),
        "task": mapped(record.get("task"), "task"),
        "goal": mapped(record["goal"], "goal") if filled(record.get("goal")) else None,
    }
    for name in ("seed", "steps"):
        row[name] = value = first(record, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise DataError(f"its {name} is {shown(value)}, not a whole number from 0 on")
    return [row]
