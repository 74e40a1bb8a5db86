"""Reading ``pairs.jsonl`` again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import naming, read_regular
from selfverify.experiments.looks.looks_folder import PAIRS
from selfverify.visual.traces import Message, Pair, malformed_message


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file, or of the file in a folder; their images are named as seen from beside it.

    Raises:
        ConfigError: There is no such file.
        DataError: A line is no pair, or its pair stands there twice; the message names it.
    """
    path = path / PAIRS if path.is_dir() else path
    reader, found, lines = TypeAdapter(Pair), [], Lines(path)
    for number, line in _raw_lines(path):
        try:
            pair = reader.validate_json(line)
        except ValidationError as error:
            fault = error.errors()[0]
            name = ".".join(str(part) for part in fault["loc"])
            raise DataError(f"{path}, line {number}: {f'{name}: ' if name else ''}{fault['msg']}") from None
        if why := _fault(pair):
            raise DataError(f"{path}, line {number}: {why}")
        lines.add(pair.id, number)
        found.append(pair)
    return found


class Lines:
    """The lines in which a file's ids stand, each once: what stands there twice would be learnt twice.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[str, int] = {}

    def add(self, id: str, number: int) -> None:
        """Take note of an id.

        Raises:
            DataError: It stands in a line before.
        """
        first = self._found.setdefault(id, number)
        if first != number:
            raise DataError(
                f"{self.path}, line {number}: {id[:200]} stands in line {first}, too; take one of them out"
            )


def _fault(pair: Pair) -> str:
    """What is wrong with a pair whose fields have the right types; empty where nothing is."""
    for name, messages in (("prompt", pair.prompt), ("chosen", pair.chosen), ("rejected", pair.rejected)):
        if why := fault_in(messages):
            return f"{name}: {why}"
        if name != "prompt" and not messages[0]["role"] == messages[-1]["role"] == "assistant":
            return f"{name}: it begins and ends with a turn of the assistant"
    return ""


def fault_in(messages: Sequence[Message]) -> str:
    """What is wrong with the form of a conversation, or of a part of one; empty where nothing is."""
    for place, message in enumerate(messages):
        if why := malformed_message(message):
            return f"message {place}: {why}"
        if message["role"] == "assistant" and not isinstance(message["content"], str):
            return f"message {place}: a turn is no text"
    return "" if messages else "it has no messages"


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The lines of a file of JSON lines with their numbers, from 1.

    Raises:
        ConfigError: There is no such file.
        DataError: A line is no JSON.
    """
    for number, line in _raw_lines(path):
        try:
            yield number, json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error})") from None


def _raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; `selfverify visual sets` writes it")
    with naming(path):
        lines = read_regular(path).splitlines()
    return enumerate(lines, start=1)
