"""Places in images: from the space in which a model writes them to pixels, and back.

The model's family decides which space that is (`Policy.coordinate_space`): Qwen2.5-VL writes pixels of the
resized image that it sees, most others thousandths of the image's sides.
"""

from __future__ import annotations

from collections.abc import Sequence

Size = tuple[int, int]
"""Width and height."""


def convert(values: Sequence[float], source: Size, target: Size) -> list[float]:
    """Convert places ``x, y, x, y, ...`` in an image of size ``source`` to the same image of another size."""
    return [value * target[i % 2] / source[i % 2] for i, value in enumerate(values)]


def clip_box(box: Sequence[float], size: Size) -> list[float] | None:
    """Return the part of a box (x1, y1, x2, y2) that lies within an image; None where that has no area.

    A box with swapped corners has none: the corners are not put right.
    """
    x1, y1, x2, y2 = (min(max(float(v), 0.0), float(size[i % 2])) for i, v in enumerate(box))
    return [x1, y1, x2, y2] if x2 > x1 and y2 > y1 else None
