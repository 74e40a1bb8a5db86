"""gIoU and cIoU by hand."""

from __future__ import annotations

import numpy as np
import pytest

from selfverify.selection.rules import box_iou
from selfverify.tasks.regions import MaskOverlap, box_mask, box_overlap, ciou, giou, mask_overlap


def test_boxes() -> None:
    """IoU 50/150 on a small target, 1 on a large one, 0 for an unreadable answer and for swapped corners."""
    nan = float("nan")
    boxes = [[5, 0, 15, 10], [0, 0, 100, 10], [nan] * 4, [10, 10, 0, 0]]
    targets = [[0, 0, 10, 10], [0, 0, 100, 10], [0, 0, 10, 10], [0, 0, 10, 10]]
    found = box_overlap(boxes, targets)
    assert found.tolist() == [[50, 150], [1000, 1000], [0, 100], [0, 100]]
    assert giou(found) == pytest.approx((1 / 3 + 1) / 4)
    assert ciou(found) == pytest.approx(1050 / 1350)
    assert found[:, 0] / found[:, 1] == pytest.approx(box_iou(boxes, targets))


def test_masks_leave_ignored_pixels_out() -> None:
    """Of 4 x 2 pixels two are wanted and one is ignored; the box covers the upper row."""
    target = np.array([[1, 255, 0, 0], [1, 0, 0, 0]])
    mask = box_mask([0, 0, 3, 1], (4, 2))
    assert mask.tolist() == [[True, True, True, False], [False] * 4]
    assert mask_overlap(mask, target).tolist() == [1, 3]
    assert mask_overlap(None, target).tolist() == [0, 2]


def test_nothing_to_find_counts_as_found() -> None:
    empty = mask_overlap(None, np.zeros((2, 2)))
    assert giou([empty, [1, 4]]) == pytest.approx((1 + 0.25) / 2)
    assert ciou([empty, [1, 4]]) == 0.25 and ciou([empty]) == 1.0


def test_a_box_as_a_mask_has_its_area() -> None:
    assert box_mask([10, 5, 30, 15], (64, 48)).sum() == 200
    assert box_mask([-5, -5, 200, 200], (64, 48)).all()
    assert not box_mask([10, 5, 10, 15], (64, 48)).any()


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
