"""The images of a conversation that looks, with the places that were looked at drawn on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from selfverify.reports.film_strip import Shown
from selfverify.tasks.tool_calls import is_number
from selfverify.visual.tools.gallery import ImagePart


class SeenImages:
    """The images of a conversation by number, and which part of the question's images each shows."""

    def __init__(self, first: Mapping[int, Shown]) -> None:
        self.shown = dict(first)
        self.sizes: dict[int, tuple[int, int]] = {}
        """Of each image as tools saw it."""
        self.parts: dict[int, tuple[int, ImagePart]] = {}
        """By image that of the question which it shows, and what part of it."""
        self.looks: dict[int, list[tuple[int, ImagePart]]] = {}
        """By image of the question the steps that looked at a part of it."""

    def take(self, number: int, shown: Shown, source: Mapping[str, Any], step: int) -> None:
        """Take an image that step ``step`` has made."""
        self.shown[number] = shown
        size, of = size_of(source.get("size")), source.get("source")
        if size is None:
            return
        self.sizes[number] = size
        region = source.get("region")
        if not isinstance(of, int) or not numbers(region, 4):
            return
        if of not in self.parts and of in self.shown and (full := self.size(of, source)) is not None:
            self.sizes[of] = full
            self.parts[of] = (of, ImagePart((0, 0, *full), full))
        if of in self.parts:
            root, whole = self.parts[of]
            self.parts[number] = (root, whole.part(region, size))
            self.looks.setdefault(root, []).append((step, self.parts[number][1]))

    def size(self, number: int, source: Mapping[str, Any]) -> tuple[int, int] | None:
        """Width and height of the image that another was made of, as tools saw it."""
        shown = self.shown.get(number, {})
        own = (shown.get("width"), shown.get("height"))
        return size_of(source.get("of")) or self.sizes.get(number) or size_of(own)

    def view(self, number: int, boxes: Sequence[tuple[Sequence[float], str]], of: Sequence[float]) -> Shown:
        """An image with boxes, whose places refer to a size ``of``."""
        image = self.shown.get(number, {"note": "it was not kept", "data": None})
        if image.get("note"):
            return {"number": number, "image": image, "boxes": [], "unit": 1}
        wide, high = image["width"] / of[0], image["height"] / of[1]
        unit = max(image["width"], image["height"]) / 100
        drawn = []
        for place, ((x1, y1, x2, y2), title) in enumerate(boxes):
            left, right = max(min(x1, x2), 0.0) * wide, min(max(x1, x2), of[0]) * wide
            top, bottom = max(min(y1, y2), 0.0) * high, min(max(y1, y2), of[1]) * high
            sides = max(right - left, 0.0), max(bottom - top, 0.0)
            # Boxes of later steps lie in those of earlier ones: their numbers stand at different corners.
            at_end, below = place % 4 in (1, 2), place % 2 == 1
            tag = {"x": right if at_end else left, "anchor": "end" if at_end else "start",
                   "y": bottom + 6 * unit if below else max(top - 1.5 * unit, 5 * unit)}  # fmt: skip
            drawn.append(
                {"x": left, "y": top, "width": sides[0], "height": sides[1], "title": title, "tag": tag}
            )
        return {"number": number, "image": image, "boxes": drawn, "unit": unit}

    def overview(self, numbers: Sequence[int]) -> list[Shown]:
        """The question's images, each with everything that was looked at in it."""
        found = []
        for number in numbers:
            size = self.sizes.get(number) or size_of((self.shown[number].get("width"),
                                                    self.shown[number].get("height"))) or (1, 1)  # fmt: skip
            boxes = [(part.box, str(step)) for step, part in self.looks.get(number, ())]
            found.append(self.view(number, boxes, size))
        # An image's data stand where it is shown first, which is here.
        return found


def size_of(value: Any) -> tuple[int, int] | None:
    """Width and height, where a record holds them."""
    if numbers(value, 2) and min(value) >= 1:
        return (int(value[0]), int(value[1]))
    return None


def numbers(value: Any, count: int) -> TypeGuard[Sequence[float]]:
    """Whether a record's value is so many finite numbers."""
    return isinstance(value, (list, tuple)) and len(value) == count and all(map(is_finite, value))


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a record's value is a finite number."""
    return is_number(value) and math.isfinite(value)
