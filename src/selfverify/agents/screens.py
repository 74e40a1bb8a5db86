"""A screen in words: one line per element, with an id, what it is, what can be done with it, and where it is.

It says what AndroidLab's compressed XML says. Two things differ. An element keeps its id as long as it
stands at its place, so that equal screens have equal texts. And what an app shows is quoted, and invisible
characters in it are escaped, so that no text of an app can pass for another line, element or heading.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LONGEST_LABEL = 400
"""Characters of an element's text that are shown."""
MOST_INDENTED = 20
"""How many elements around one its line's beginning shows."""

_JOINERS = "\u200c\u200d"
"""Invisible characters that scripts and emoji need."""


class Box(NamedTuple):
    """A rectangle in pixels of the screen; right and bottom lie outside of it."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def centre(self) -> tuple[int, int]:
        """The pixel in its middle."""
        return (self.left + self.right) // 2, (self.top + self.bottom) // 2

    def cut(self, other: Box) -> Box | None:
        """The part that both have in common; None where there is none."""
        left, top = max(self.left, other.left), max(self.top, other.top)
        right, bottom = min(self.right, other.right), min(self.bottom, other.bottom)
        return Box(left, top, right, bottom) if left < right and top < bottom else None


@dataclass(frozen=True, slots=True)
class Element:
    """What a screen shows at one place.

    Args:
        id: Names it on its screen; `name_elements` makes ids.
        kind: What it is, such as ``Switch``; empty for what only groups others.
        box: Where it is.
        actions: What can be done with it, such as ``click``.
        states: How it is, such as ``checked``.
        texts: What it says: its text, and its description where that says something else.
        depth: How many of the screen's other elements it stands in.
    """

    id: str
    kind: str
    box: Box
    actions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Screen:
    """What is shown at one moment.

    Args:
        app: Whose screen it is, such as a package's name.
        size: Width and height in pixels, as it is held now.
        elements: From top to bottom, as the app orders them; those inside an element follow it.
    """

    app: str
    size: tuple[int, int]
    elements: Sequence[Element] = ()

    @property
    def boxes(self) -> dict[str, Box]:
        """Where each element is, by id."""
        return {element.id: element.box for element in self.elements}


def describe(screen: Screen) -> str:
    """The screen in words. Equal screens have equal texts."""
    width, height = screen.size
    lines = [f"App {quoted(screen.app)}, screen {width} x {height}"]
    lines += [_line(element) for element in screen.elements]
    return "\n".join(lines if screen.elements else [*lines, "(nothing to be read or used)"])


def quoted(text: str, longest: int = LONGEST_LABEL) -> str:
    """A text of an app on one line, in quotation marks that nothing in it can close."""
    body = "".join(_visible(c) for c in json.dumps(text[:longest], ensure_ascii=False))
    return body if len(text) <= longest else f"{body} and {len(text) - longest} more characters"


def name_elements(places: Iterator[str] | Sequence[str]) -> list[str]:
    """Ids for elements, in their order: ``n`` and four hexadecimal digits of a hash of each one's place.

    Args:
        places: What tells an element from the others and stays the same, such as its path in the hierarchy.
    """
    taken: set[str] = set()
    names = []
    for place in places:
        attempt = 0
        while (name := _name(place, attempt)) in taken:
            attempt += 1
        taken.add(name)
        names.append(name)
    return names


def _name(place: str, attempt: int) -> str:
    whole = f"{attempt}:{place}".encode("utf-8", "replace")
    return "n" + hashlib.blake2b(whole, digest_size=2 if attempt < 50 else 8).hexdigest()


def _line(element: Element) -> str:
    traits = "; ".join(", ".join(part) for part in (element.actions, element.states) if part)
    left, top, right, bottom = element.box
    parts = [f"[{element.id}]", element.kind, f"({traits})" if traits else "", *map(quoted, element.texts)]
    place = f"[{left},{top}][{right},{bottom}]"
    return "    " * min(element.depth, MOST_INDENTED) + " ".join(part for part in (*parts, place) if part)


def _visible(character: str) -> str:
    """A character as it is, or escaped where it shows nothing or turns the line around."""
    if character == " " or character in _JOINERS or character.isprintable():
        return character
    if unicodedata.category(character) == "Zs":
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
