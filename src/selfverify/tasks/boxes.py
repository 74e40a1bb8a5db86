"""Geometry of axis-aligned boxes ``[x1, y1, x2, y2]``."""

from __future__ import annotations

from collections.abc import Sequence


def box_iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes, in [0, 1]; 0 when either has no area."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    overlap = width * height
    area_a = (a[2] - a[0]) * (a[3] - a[1])
    area_b = (b[2] - b[0]) * (b[3] - b[1])
    return overlap / (area_a + area_b - overlap)
