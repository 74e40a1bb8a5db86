"""Reading a box from a model's answer, in whichever of the usual forms it is written.

Accepted is one box, (x1, y1, x2, y2) in the model's own space, as

- JSON: a list of four numbers or of two corners; an object with it under ``bbox_2d``, ``bbox`` or ``box``; a
  list of such objects or lists, of which the first counts (as in VLM-R1's scorer); the same in quotes;
- corners in brackets: ``(x1, y1), (x2, y2)``, or all four in one: ``(x1, y1, x2, y2)``;
- any of these or four bare numbers in ``<box>..</box>`` or ``<|box_start|>..<|box_end|>``;
- four bare numbers and nothing else.

Fences and prose may stand before and behind. The first place that looks like the beginning of a box
decides: what begins there has to be whole. Malformed JSON, three or five numbers, a key twice, NaN or a tag
that is not closed are no box, and nothing further on is looked for.
"""

from __future__ import annotations

import re
from typing import Any

from selfverify.tasks.strict_json import begin_json, is_number

MAX_CHARS = 4096
"""Longer answers are no box."""
MAX_DEPTH = 5
"""The deepest nesting of lists, objects, quotes and tags around a box."""
MAX_COORDINATE = 100_000.0
"""Larger coordinates, which no image has, are no coordinates."""

_KEYS = ("bbox_2d", "bbox", "box")
_TAGS = {"<box>": "</box>", "<|box_start|>": "<|box_end|>"}
# Every repetition is bounded, so that matching at one place takes a bounded time.
_N = r"([-+]?[0-9]{1,9}(?:\.[0-9]{1,15})?)"
_COMMA = r"\s{0,8},\s{0,8}"
_BEGIN = re.compile(rf"\{{|\[(?!\s{{0,8}}\()|<box>|<\|box_start\|>|\(\s{{0,8}}(?={_N}{_COMMA})", re.ASCII)
_CORNERS = re.compile(
    rf"\(\s{{0,8}}{_N}{_COMMA}{_N}(?:\s{{0,8}}\)\s{{0,8}},?\s{{0,8}}\(\s{{0,8}}|{_COMMA}){_N}{_COMMA}{_N}"
    r"\s{0,8}\)",
    re.ASCII,
)
_GAP = rf"(?:{_COMMA}|\s{{1,8}})"
_BARE = re.compile(rf"{_N}{_GAP}{_N}{_GAP}{_N}{_GAP}{_N}", re.ASCII)


def parse_box(text: str) -> list[float] | None:
    """Return the box in an answer in the model's space; None if there is none. Never raises."""
    return _parse(text, depth=0)


def _parse(text: str, depth: int) -> list[float] | None:
    text = text.strip(" \t\n\r\f\v")
    if depth > MAX_DEPTH or len(text) > MAX_CHARS:
        return None
    bare = _BARE.fullmatch(text)
    if bare:
        return _box(list(map(float, bare.groups())))
    begin = _BEGIN.search(text)
    if begin is None:
        # A string in quotes: "[1, 2, 3, 4]" has a bracket, "1, 2, 3, 4" has none.
        return _parse(text[1:-1], depth + 1) if len(text) > 1 and text[0] == text[-1] == '"' else None
    start, opening = begin.start(), begin.group()
    if opening in _TAGS:
        end = text.find(_TAGS[opening], begin.end())
        return None if end < 0 else _parse(text[begin.end() : end], depth + 1)
    if opening.startswith("("):
        corners = _CORNERS.match(text, start)
        return _box(list(map(float, corners.groups()))) if corners else None
    if '"' not in text:
        text = text.replace("'", '"')  # as Python prints it
    try:
        return _search(begin_json(text, start), depth)
    except ValueError:
        return None


def _search(value: Any, depth: int) -> list[float] | None:
    """Return the box that a JSON value is or begins with."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, str):
        return _parse(value, depth + 1)
    if isinstance(value, dict):
        named = [key for key in _KEYS if key in value]
        return _search(value[named[0]], depth + 1) if len(named) == 1 else None
    if not isinstance(value, list) or not value:
        return None
    if any(is_number(item) for item in value):
        return _box(value)
    if len(value) == 2 and all(isinstance(corner, list) and len(corner) == 2 for corner in value):
        return _box([*value[0], *value[1]])
    return _search(value[0], depth + 1)


def _box(values: list[Any]) -> list[float] | None:
    if len(values) != 4 or not all(is_number(v) and abs(v) <= MAX_COORDINATE for v in values):
        return None
    return [float(v) for v in values]
