"""The canvas of `digits-far`: cells with near digits, and far ones in frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfverify.tasks.digits import Scans, paste

CELLS = 3
"""Rows and columns; cells are numbered from 1 in reading order."""
CLOSER = 2
"""How many times a quarter is cropped for a far digit, behind the crop of its cell."""
FRAME, FRAME_INK = 4, 0.6
"""Width in pixels and grey of the frame around a far digit, which is as large as the last of these."""
SIXTHS = 6
"""Places are written in sixths of an image's sides, so that each is one digit."""
Sixths = tuple[int, int, int, int]
"""A box in sixths."""
QUARTERS: Sequence[Sixths] = [(x, y, x + 3, y + 3) for y in (0, 3) for x in (0, 3)]
"""Those of an image."""
SQUARES: Sequence[Sixths] = [(x, y, x + 3, y + 3) for y in range(4) for x in range(4)]
"""All that are as large as a quarter."""


@dataclass(frozen=True, slots=True)
class FarDigit:
    """A digit on the canvas.

    Args:
        digit: Which.
        left: Its left edge, in pixels of its cell.
        top: Its upper edge.
        size: Its side.
        far: Whether it is too small to be read in a crop of its cell.
    """

    digit: int
    left: int
    top: int
    size: int
    far: bool


def far_digit(digit: int, far: bool, sizes: tuple[int, int], cell: int, rng: np.random.Generator) -> FarDigit:
    """A digit at a place of its own: a near one within a quarter of its cell, a far one of its frame."""
    size = int(rng.integers(sizes[0], sizes[1] + 1))
    parts, frame = (2 ** (CLOSER + 1), FRAME) if far else (2, 0)
    left, top = (_within(cell // parts, size, frame, rng) for _ in range(2))
    return FarDigit(digit, left, top, size, far)


def draw(digits: Sequence[FarDigit], cell: int, bank: Scans, rng: np.random.Generator) -> np.ndarray:
    """The canvas without noise, ``[CELLS * cell, CELLS * cell]`` grey levels in [0, 1]."""
    pixels = np.zeros((CELLS * cell, CELLS * cell), dtype=np.float32)
    for number, one in enumerate(digits, 1):
        left, top, _, _ = place(number, one, cell)
        if one.far:
            side = cell // 2**CLOSER
            x, y = left // side * side, top // side * side
            pixels[y : y + side, x : x + side] = FRAME_INK
            pixels[y + FRAME : y + side - FRAME, x + FRAME : x + side - FRAME] = 0
        paste(pixels, rng.choice(bank[one.digit]), left, top, one.size, ink=float(rng.uniform(0.7, 1.0)))
    return pixels


def place(number: int, one: FarDigit, cell: int) -> tuple[int, int, int, int]:
    """Where the digit of a cell, numbered from 1, is on the canvas, in pixels."""
    left = (number - 1) % CELLS * cell + one.left
    top = (number - 1) // CELLS * cell + one.top
    return left, top, left + one.size, top + one.size


def closer(one: FarDigit, cell: int) -> list[Sixths]:
    """The quarters in which a far digit stands, in sixths: of its cell, of that quarter, and so on."""
    boxes = []
    for level in range(1, CLOSER + 1):
        x, y = (place // (cell // 2**level) % 2 for place in (one.left, one.top))
        boxes.append(QUARTERS[2 * y + x])
    return boxes


def cell_box(cell: int) -> Sixths:
    """A cell's box in sixths of the canvas."""
    side = SIXTHS // CELLS
    column, row = (cell - 1) % CELLS * side, (cell - 1) // CELLS * side
    return column, row, column + side, row + side


def corners(side: int) -> list[tuple[float, float]]:
    """Where the numbers of cells stand in an image of so many pixels a side: in their left upper corners."""
    cell, half = side / CELLS, (2.5 * (side // 32), 3.5 * (side // 32))
    places = [divmod(number, CELLS) for number in range(CELLS**2)]
    return [(column * cell + half[0], row * cell + half[1]) for row, column in places]


def _within(part: int, size: int, frame: int, rng: np.random.Generator) -> int:
    """Where on one axis a digit of ``size`` stands: within a part of its cell, and clear of its frame.

    Parts are in pairs: with a frame, which is around a pair, they begin or end with it.
    """
    number, room = int(rng.integers(2 if not frame else 2 ** (CLOSER + 1))), part - size - frame
    return number * part + (frame if number % 2 == 0 else 0) + int(rng.integers(room + 1))
