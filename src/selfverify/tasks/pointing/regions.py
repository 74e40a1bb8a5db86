"""Intersections and unions of boxes with target boxes, and of boxes with target masks.

Referring segmentation reports gIoU, the mean of the problems' IoU (not the "generalized IoU"), and cIoU, the
sum of all intersections over that of all unions. Both are LISA's, without the 1e-5 that LISA adds to a union.
`box_overlap` compares boxes with boxes, `MaskOverlap` the pixels that boxes cover with the pixels of a mask.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfverify.data.grounding import IGNORED
from selfverify.tasks.base import Floats


def box_overlap(boxes: ArrayLike, targets: ArrayLike) -> Floats:
    """Return the areas of intersection and union ``[P, 2]`` of P boxes (x1, y1, x2, y2) with their targets.

    A box that is NaN (unreadable) or has no area intersects nothing; the union is the target's area then.
    """
    boxes, targets = np.asarray(boxes, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    boxes = np.where(np.isnan(boxes).any(-1, keepdims=True), 0.0, boxes)
    sides = np.minimum(boxes[..., 2:], targets[..., 2:]) - np.maximum(boxes[..., :2], targets[..., :2])
    area, wanted = (np.clip(b[..., 2:] - b[..., :2], 0, None).prod(-1) for b in (boxes, targets))
    shared = np.where(area > 0, np.clip(sides, 0, None).prod(-1), 0.0)
    return np.stack([shared, area + wanted - shared], axis=-1)


class MaskOverlap:
    """Intersections and unions ``[M, 2]`` of what boxes ``[M, 4]`` cover with one target ``[H, W]``.

    A box covers the pixels whose middle lies in it; pixels where the target is 255 are left out. Each box
    costs four look-ups in running sums of the target.
    """

    def __init__(self, target: ArrayLike) -> None:
        target = np.asarray(target)
        counted = target != IGNORED
        self._counted = None if counted.all() else _running(counted)
        self._wanted = _running((target != 0) & (target != IGNORED))

    def __call__(self, boxes: ArrayLike) -> Floats:
        boxes = np.asarray(boxes, dtype=np.float64)
        boxes = np.where(np.isnan(boxes).any(-1, keepdims=True), 0.0, boxes)
        height, width = (side - 1 for side in self._wanted.shape)
        # A pixel belongs to a box that its middle lies in.
        sides = np.clip(np.ceil(boxes - 0.5), 0, [width, height, width, height]).astype(np.int64)
        shared = _inside(self._wanted, sides)
        if self._counted is None:
            covered = np.clip(sides[:, 2:] - sides[:, :2], 0, None).prod(-1).astype(np.float64)
        else:
            covered = _inside(self._counted, sides)
        return np.stack([shared, covered + float(self._wanted[-1, -1]) - shared], axis=-1)


def _running(flags: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return ``[H + 1, W + 1]``: the number of flags above and to the left of each corner of a pixel."""
    sums = np.zeros((flags.shape[0] + 1, flags.shape[1] + 1), dtype=np.int32)
    flags.cumsum(1, dtype=np.int32).cumsum(0, out=sums[1:, 1:])
    return sums


def _inside(sums: NDArray[np.int32], sides: NDArray[np.int64]) -> Floats:
    x1, y1, x2, y2 = sides.T
    x2, y2 = np.maximum(x1, x2), np.maximum(y1, y2)
    found = sums[y2, x2] - sums[y1, x2] - sums[y2, x1] + sums[y1, x1]
    return found.astype(np.float64)
