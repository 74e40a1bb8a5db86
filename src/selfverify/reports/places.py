"""Draws boxes, clicks and swipes on a problem's image: the truth, the choices and the other candidates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

TRUTH, BEST, VOTE, OTHER = "truth", "own", "vote", "other"
"""Classes of marks; earlier ones are drawn on top of later ones."""


def draw_places(
    frame: Sequence[float], target: Any, regions: Sequence[Any], answers: Sequence[tuple[Any, str]]
) -> Markup | None:
    """Return an SVG that lies upon an image; None where nothing has a place.

    Args:
        frame: The width and height that coordinates refer to.
        target: The truth: a box ``[x1, y1, x2, y2]``, or an action with coordinates.
        regions: Further outlines ``[[x, y], ...]`` of the truth.
        answers: Canonical answers with their class, the most important ones first.
    """
    if not (_numbers(frame, 2) and min(frame) > 0):
        return None
    unit = max(frame) / 100
    drawn = [mark for answer, name in reversed(answers) for mark in _marks(answer, name, unit)]
    drawn += [_polygon(region, TRUTH) for region in regions if _outline(region)]
    drawn += _marks(target, TRUTH, unit)
    if not drawn:
        return None
    width, height = frame
    # Every value below is a number or one of our own words: nothing is left to escape.
    box = f'viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none"'
    return Markup(f'<svg class="places" {box} aria-hidden="true">{"".join(drawn)}</svg>')


def _marks(value: Any, name: str, unit: float) -> Iterator[str]:
    if _numbers(value, 4):
        x1, y1, x2, y2 = value
        yield _polygon([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], name)
    elif isinstance(value, Mapping) and _numbers(value.get("coordinate"), 2):
        x, y = value["coordinate"]
        if _numbers(value.get("coordinate2"), 2):
            yield from _arrow((x, y), value["coordinate2"], name, unit)
        else:
            yield f'<circle class="{name}" cx="{x:g}" cy="{y:g}" r="{2 * unit:g}" />'
            yield f'<circle class="{name} dot" cx="{x:g}" cy="{y:g}" r="{unit / 2:g}" />'


def _arrow(start: Sequence[float], end: Sequence[float], name: str, unit: float) -> Iterator[str]:
    (x1, y1), (x2, y2) = start, end
    yield f'<line class="{name}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" />'
    angle = math.atan2(y2 - y1, x2 - x1)
    for turn in (2.6, -2.6):
        x, y = x2 + 3 * unit * math.cos(angle + turn), y2 + 3 * unit * math.sin(angle + turn)
        yield f'<line class="{name}" x1="{x2:g}" y1="{y2:g}" x2="{x:g}" y2="{y:g}" />'


def _polygon(points: Sequence[Sequence[float]], name: str) -> str:
    return f'<polygon class="{name}" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}" />'


def _numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == count
        and all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in value)
    )


def _outline(points: Any) -> bool:
    return isinstance(points, list) and len(points) > 2 and all(_numbers(point, 2) for point in points)
