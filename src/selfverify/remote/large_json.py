"""Reads and writes JSON of many megabytes in short steps.

A parser and a writer of JSON hold the interpreter until they are done: for 60 MB, a twentieth to half a
second. Nearly all of a large text is a few long strings. These are taken out of it, step by step, and what is
left is small.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import to_json

from selfverify.remote.in_turn import STEP

LONG = 2**16
"""The length from which on a string is long."""

_DATA = b'"data:'


def read_large(raw: bytes | bytearray, most: int) -> tuple[bytes | bytearray, dict[str, str]] | None:
    """Take the long data URLs out of a JSON text.

    Only those are taken that stand there as they are, in printable ASCII without escapes.

    Args:
        raw: The text, which may be no JSON: then neither is what is left.
        most: The most bytes that may be left.

    Returns:
        What is left, with names in place of the URLs, and the URLs by name. None if more than ``most`` is
        left; the text itself if it is not larger.
    """
    if len(raw) <= most:
        return raw, {}
    left, taken, done, at = bytearray(), dict[str, str](), 0, 0
    view, secret = memoryview(raw), secrets.token_hex(8)
    while (begin := _find(raw, _DATA, at, done + most + LONG)) >= 0:
        at = begin + len(_DATA)
        # A quote behind a backslash begins no string: it stands in one.
        if begin and raw[begin - 1] == ord("\\"):
            continue
        end = _find(raw, b'"', at, len(raw))
        if end - begin < LONG:
            continue
        text = _plain(view[begin + 1 : end])
        if text is None:
            continue
        name = f"{secret}-{len(taken)}"
        taken[name] = text
        left += view[done : begin + 1]
        left += name.encode()
        done = at = end
        if len(left) > most:
            return None
    if len(left) + len(raw) - done > most:
        return None
    return left + view[done:], taken


def put_back(value: Any, taken: Mapping[str, str]) -> Any:
    """Return a value with the texts in place of their names."""
    if isinstance(value, str):
        return taken.get(value, value)
    if isinstance(value, list):
        return [put_back(item, taken) for item in value]
    if isinstance(value, dict):
        return {taken.get(name, name): put_back(item, taken) for name, item in value.items()}
    return value


def text_bytes(value: Any) -> int:
    """Return how many bytes all strings have together that are values, in UTF-8."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "replace"))
    if isinstance(value, Mapping):
        return sum(map(text_bytes, value.values()))
    return sum(map(text_bytes, value)) if isinstance(value, list | tuple) else 0


def write_large(value: Any) -> list[bytes]:
    """Return a value as JSON, in pieces; `to_json` gives the same at once.

    Raises:
        PydanticSerializationError: The value holds what JSON cannot.
    """
    taken, secret = list[str](), secrets.token_hex(8)

    def short(found: Any) -> Any:
        if isinstance(found, str) and len(found) > LONG:
            taken.append(found)
            return secret
        if isinstance(found, Mapping):
            return {name: short(item) for name, item in found.items()}
        return [short(item) for item in found] if isinstance(found, list | tuple) else found

    first, *rest = to_json(short(value)).split(b'"' + secret.encode() + b'"')
    pieces = [first]
    for text, after in zip(taken, rest, strict=True):
        pieces += [b'"', *_escaped(text), b'"' + after]
    return pieces


def _escaped(text: str) -> Iterator[bytes]:
    """Yield the pieces of a string in JSON, without its quotes."""
    for at in range(0, len(text), STEP):
        yield to_json(text[at : at + STEP])[1:-1]


def _find(raw: bytes | bytearray, what: bytes, start: int, end: int) -> int:
    """Return where ``what`` begins between two places; -1 if nowhere."""
    for at in range(start, min(end, len(raw)), STEP):
        found = raw.find(what, at, at + STEP + len(what) - 1)
        if found >= 0:
            return found
    return -1


def _plain(content: memoryview) -> str | None:
    """Return a string's content, if it is in printable ASCII without escapes."""
    parts = list[str]()
    for at in range(0, len(content), STEP):
        try:
            part = str(content[at : at + STEP], "ascii")
        except UnicodeDecodeError:
            return None
        if not part.isprintable() or "\\" in part:
            return None
        parts.append(part)
    return "".join(parts)
