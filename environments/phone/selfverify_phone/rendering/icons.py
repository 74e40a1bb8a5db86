"""Icons as shapes on a grid of 24 by 24, for pictures and for HTML."""

from __future__ import annotations

from typing import Literal, NamedTuple

Points = tuple[tuple[float, float], ...]


class Shape(NamedTuple):
    """A part of an icon.

    Args:
        sort: A ``line`` through the points, a filled ``area`` within them, or a ``ring`` or ``disc`` around
            the first point.
        points: Corners, or the centre.
        size: A ring's or a disc's radius.
    """

    sort: Literal["line", "area", "ring", "disc"]
    points: Points
    size: float = 0.0


STROKE = 2.0
"""The width of lines and rings."""


def _points(numbers: tuple[float, ...]) -> Points:
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def line(*numbers: float) -> Shape:
    """A line through points, x and y of one after the other."""
    return Shape("line", _points(numbers))


def area(*numbers: float) -> Shape:
    """A filled area."""
    return Shape("area", _points(numbers))


def ring(x: float, y: float, radius: float) -> Shape:
    return Shape("ring", ((x, y),), radius)


def disc(x: float, y: float, radius: float) -> Shape:
    return Shape("disc", ((x, y),), radius)


_STAR = (
    12, 2.5, 14.6, 9, 21.5, 9.3, 16.1, 13.6, 18, 20.3, 12, 16.4, 6, 20.3, 7.9, 13.6, 2.5, 9.3, 9.4, 9, 12, 2.5
)  # fmt: skip
_HEART = (12, 20.5, 3.5, 12, 3, 8, 5.5, 4.8, 9, 4.8, 12, 8, 15, 4.8, 18.5, 4.8, 21, 8, 20.5, 12)
_MARK = (6, 3, 18, 3, 18, 21, 12, 16, 6, 21)
_RAYS = ((1, 0), (0.707, 0.707), (0, 1), (-0.707, 0.707), (-1, 0), (-0.707, -0.707), (0, -1), (0.707, -0.707))

ICONS: dict[str, tuple[Shape, ...]] = {
    "search": (ring(10, 10, 6.5), line(15, 15, 21, 21)),
    "add": (line(12, 4, 12, 20), line(4, 12, 20, 12)),
    "menu": tuple(line(3, y, 21, y) for y in (6, 12, 18)),
    "edit": (area(4, 20, 5, 15.5, 15.5, 5, 19, 8.5, 8.5, 19), area(16.7, 3.8, 18, 2.6, 21.4, 6, 20.2, 7.3)),
    "star": (line(*_STAR),),
    "star on": (area(*_STAR),),
    "delete": (
        line(4, 6, 20, 6), line(9, 6, 9.5, 3, 14.5, 3, 15, 6), line(6, 6, 7, 21, 17, 21, 18, 6),
        line(10, 10, 10.4, 17), line(14, 10, 13.6, 17),
    ),
    "save": (line(4, 12.5, 9.5, 18, 20, 6),),
    "mark": (line(*_MARK, 6, 3),),
    "mark on": (area(*_MARK),),
    "like": (line(*_HEART, 12, 20.5),),
    "like on": (area(*_HEART),),
    "goto": (line(4, 12, 19, 12), line(13, 6, 19, 12, 13, 18)),
    "settings": (
        ring(12, 12, 5.5), *(line(12 + 7 * x, 12 + 7 * y, 12 + 10 * x, 12 + 10 * y) for x, y in _RAYS),
    ),
    "contacts": (disc(12, 8, 4.5), area(3.5, 21, 5, 16.5, 8.5, 14.4, 15.5, 14.4, 19, 16.5, 20.5, 21)),
    "clock": (ring(12, 12, 9), line(12, 6.5, 12, 12, 16, 14.5)),
    "calendar": (
        line(4, 5, 20, 5, 20, 20.5, 4, 20.5, 4, 5), line(4, 9.5, 20, 9.5), line(8, 2.5, 8, 6),
        line(16, 2.5, 16, 6), disc(9, 14.5, 1.5), disc(15, 14.5, 1.5),
    ),
    "money": (
        ring(12, 12, 9), line(15.2, 8.8, 9.4, 8.2, 9, 11.4, 14.8, 12.6, 14.6, 15.8, 8.8, 15.2),
        line(12, 5.8, 12, 18.2),
    ),
    "music": (disc(7.2, 17.8, 3.2), disc(17.2, 15.8, 3.2), line(9.4, 17.8, 9.4, 5.6, 19.4, 3.6, 19.4, 15.8)),
    "maps": (
        line(12, 22, 6.2, 13.6, 5.4, 9.4, 7.4, 5, 12, 3, 16.6, 5, 18.6, 9.4, 17.8, 13.6, 12, 22),
        disc(12, 9.4, 2.6),
    ),
    "reader": (
        line(12, 6.5, 9, 4.5, 3, 4.5, 3, 18.5, 9, 18.5, 12, 20.5,
             15, 18.5, 21, 18.5, 21, 4.5, 15, 4.5, 12, 6.5),
        line(12, 6.5, 12, 20.5),
    ),
}  # fmt: skip


def shapes(id: str, on: bool | None) -> tuple[Shape, ...]:
    """The shapes of an icon; of one that is on or off, those of its state."""
    return ICONS[f"{id} on"] if on and f"{id} on" in ICONS else ICONS[id]
