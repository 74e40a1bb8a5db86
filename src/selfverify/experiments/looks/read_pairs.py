"""Reading ``pairs.jsonl`` again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import naming, read_regular
from selfverify.experiments.looks.looks_folder import PAIRS
from selfverify.looking.preference_pairs import Pair


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file, or of the file in a folder; their images are named as seen from beside it.

    Raises:
        ConfigError: There is no such file.
        DataError: A line is no pair; the message names it.
    """
    path = path / PAIRS if path.is_dir() else path
    reader, found = TypeAdapter(Pair), []
    for number, line in _raw_lines(path):
        try:
            found.append(reader.validate_json(line))
        except ValidationError as error:
            fault = error.errors()[0]
            name = ".".join(str(part) for part in fault["loc"])
            raise DataError(f"{path}, line {number}: {f'{name}: ' if name else ''}{fault['msg']}") from None
    return found


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
        raise ConfigError(f"there is no file {path}; `selfverify looking sets` writes it")
    with naming(path):
        lines = read_regular(path).splitlines()
    return enumerate(lines, start=1)
