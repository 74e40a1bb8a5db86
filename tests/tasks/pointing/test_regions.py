"""Overlaps of boxes and masks by hand, and against counting pixels one by one."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from selfverify.data.grounding import IGNORED
from selfverify.selection.rules import box_iou
from selfverify.tasks.base import Floats
from selfverify.tasks.grounding import MaskOverlap, box_overlap


def mask_overlap(mask: ArrayLike | None, target: ArrayLike) -> Floats:
    """Pixels of intersection and union ``[2]`` of one problem's mask ``[H, W]`` with its target.

    Pixels where the target is 255 are left out. No mask (an unreadable answer) covers nothing.
    """
    target = np.asarray(target)
    counted, wanted = target != IGNORED, (target != 0) & (target != IGNORED)
    found = np.zeros_like(wanted) if mask is None else np.asarray(mask, dtype=bool) & counted
    return np.array([(found & wanted).sum(), (found | wanted).sum()], dtype=np.float64)


def box_mask(box: ArrayLike, size: tuple[int, int]) -> NDArray[np.bool_]:
    """The pixels ``[H, W]`` of an image of ``size`` (width, height) whose middle lies in a box."""
    x1, y1, x2, y2 = np.asarray(box, dtype=np.float64)
    x, y = np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5
    return ((y >= y1) & (y < y2))[:, None] & ((x >= x1) & (x < x2))[None]


def test_boxes() -> None:
    """IoU 50/150 on a small target, 1 on a large one, 0 for an unreadable answer and for swapped corners."""
    nan = float("nan")
    boxes = [[5, 0, 15, 10], [0, 0, 100, 10], [nan] * 4, [10, 10, 0, 0]]
    targets = [[0, 0, 10, 10], [0, 0, 100, 10], [0, 0, 10, 10], [0, 0, 10, 10]]
    found = box_overlap(boxes, targets)
    assert found.tolist() == [[50, 150], [1000, 1000], [0, 100], [0, 100]]
    assert found[:, 0] / found[:, 1] == pytest.approx(box_iou(boxes, targets))


def test_masks_leave_ignored_pixels_out() -> None:
    """Of 4 x 2 pixels two are wanted and one is ignored; the box covers the upper row, no box nothing."""
    target = np.array([[1, 255, 0, 0], [1, 0, 0, 0]])
    assert MaskOverlap(target)([[0, 0, 3, 1], [np.nan] * 4]).tolist() == [[1, 3], [0, 2]]


def test_running_sums_count_what_pixels_do() -> None:
    rng = np.random.default_rng(0)
    target = rng.choice([0, 1, 255], (37, 53), p=[0.5, 0.3, 0.2])
    whole = (target == 1).astype(np.int64)
    boxes = rng.uniform(-10, 70, (200, 4))
    boxes[:3] = [[0, 0, 53, 37], [5.5, 5.5, 6.5, 6.5], [np.nan] * 4]
    boxes[3:50, 2:] = boxes[3:50, :2] + rng.uniform(0, 40, (47, 2))
    for mask in (target, whole):
        slow = [mask_overlap(None if np.isnan(b).any() else box_mask(b, (53, 37)), mask) for b in boxes]
        assert MaskOverlap(mask)(boxes).tolist() == np.array(slow).tolist()
