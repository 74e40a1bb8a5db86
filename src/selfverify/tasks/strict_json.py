"""JSON from a model: read whole or not at all."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

MAX_DIGITS = 15


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("an integer of too many digits")
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number out of range")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_real, parse_constant=_refuse
)


def read_json(text: str) -> Any:
    """Read ``text`` as one JSON value, and nothing else.

    Raises:
        ValueError: It is not JSON, nests too deeply, or holds a key twice, NaN, an infinity, a number out of
            a float's range or an integer of more than 15 digits.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def begin_json(text: str, start: int) -> Any:
    """Read the JSON value that begins at ``start``, whatever follows it; errors are those of `read_json`."""
    return json_at(text, start)[0]


def json_at(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at ``start``, and where it ends; errors are those of `read_json`."""
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
