"""Places in images: from the space in which a model writes them to pixels, and back.

Which space that is says the model's family (`Policy.coordinate_space`): Qwen2.5-VL writes pixels of the image
as it was resized for it, most others thousandths of its sides.
"""

from __future__ import annotations

from collections.abc import Sequence

Size = tuple[int, int]
"""Width and height."""


def convert(values: Sequence[float], source: Size, target: Size) -> list[float]:
    """The places ``x, y, x, y, ...`` of an image of size ``source`` in the same image of size ``target``."""
    return [value * target[i % 2] / source[i % 2] for i, value in enumerate(values)]


def clip_box(box: Sequence[float], size: Size) -> list[float] | None:
    """The part of a box (x1, y1, x2, y2) within an image; None where that has no area.

    So it is with swapped corners, which are not put right: they are no box.
    """
    x1, y1, x2, y2 = (min(max(float(v), 0.0), float(size[i % 2])) for i, v in enumerate(box))
    return [x1, y1, x2, y2] if x2 > x1 and y2 > y1 else None
