"""Stored sessions as pictures: screens, and what each call touches on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class Mark:
    """What a call touches, in pixels of the screen.

    Args:
        kind: How it touches.
        x: Where the finger comes down.
        y: The same, from above.
        box: What is touched; None where that is not known, as of a swipe.
        to: Where a swipe ends.
    """

    kind: Literal["tap", "long_press", "swipe"]
    x: int
    y: int
    box: tuple[int, int, int, int] | None = None
    to: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """A screen, and what the next call touches on it.

    Args:
        image: The screen, RGB.
        mark: None at the end, before calls that touch nothing, and where there was nothing to be touched.
    """

    image: Image
    mark: Mark | None
