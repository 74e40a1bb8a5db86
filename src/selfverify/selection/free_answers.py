"""Which free answers are the same, for questions that come without a task.

A task says itself which answers are the same (`Verdict.key`).
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

Kind = Literal["text", "set", "box"]
"""How answers are compared. ``text``: case, spaces, a final point and the way a number is written do not
matter. ``set``: the order of the words or numbers does not matter either. ``box``: answers are four numbers,
and the overlap of the boxes counts."""

LONGEST = 2000
"""The most characters of an answer; a longer one counts as unreadable."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?%?|[+-]?\.[0-9]+%?")
_BRACKETS = str.maketrans(dict.fromkeys("[](){}", " "))


def read_answer(text: str, kind: Kind) -> tuple[Any, str | None]:
    """Return the answer as a JSON value, and its key; ``(None, None)`` where it cannot be read. Never raises.

    Equal answers have equal keys. A box has no key (None), because boxes are clustered.
    """
    text = text.strip()
    if not text or len(text) > LONGEST:
        return None, None
    if kind == "box":
        return _box(text), None
    if kind == "set":
        words = [_canonical(word) for word in text.translate(_BRACKETS).replace(",", " ").split()]
        return (text, " ".join(sorted(words))) if words else (None, None)
    return text, _canonical(text)


def _canonical(text: str) -> str:
    text = " ".join(text.casefold().split()).removesuffix(".")
    if len(text) > 32 or not _NUMBER.fullmatch(text):
        return text
    value = float(text.replace(",", "").removesuffix("%"))
    return f"{value:.12g}" + ("%" if text.endswith("%") else "")


def _box(text: str) -> list[float] | None:
    words = text.translate(_BRACKETS).replace(",", " ").split()
    if len(words) != 4 or not all(len(w) <= 16 and re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", w) for w in words):
        return None
    box = [float(word) for word in words]
    fine = all(map(math.isfinite, box)) and box[2] > box[0] and box[3] > box[1]
    return box if fine else None
