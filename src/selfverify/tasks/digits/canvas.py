"""Drawing real handwritten digits onto canvases, with the evaluation digits kept apart.

The digits are the 1,797 UCI scans (8x8, 17 grey levels) that scikit-learn carries. They are split by
source image, so no scan that an evaluation shows was ever trained on.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from PIL import Image

from selfverify.core.problem import Split

# These must never change: published numbers depend on which scans are in which set.
_SPLIT_SEED = 20260101
_VALIDATION, _TEST = 200, 450


Scans = tuple[np.ndarray, ...]
"""The scans of each digit from 0 to 9, ``[N, 8, 8]`` grey levels in [0, 1]."""


@cache
def digit_bank(split: Split) -> Scans:
    """Return the scans of a split. No scan belongs to two splits."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(data.target))
    parts = {
        "test": order[:_TEST],
        "validation": order[_TEST : _TEST + _VALIDATION],
        "train": order[_TEST + _VALIDATION :],
    }
    chosen = np.sort(parts[split])
    images, labels = (data.images[chosen] / 16.0).astype(np.float32), data.target[chosen]
    return tuple(images[labels == digit] for digit in range(10))


def paste(canvas: np.ndarray, scan: np.ndarray, left: int, top: int, size: int, ink: float) -> None:
    """Put ``scan`` at (left, top), ``size`` pixels wide, onto ``canvas`` [H, W] in place."""
    pixels = Image.fromarray((scan * 255).astype(np.uint8)).resize((size, size), Image.Resampling.BILINEAR)
    region = canvas[top : top + size, left : left + size]
    np.maximum(region, np.asarray(pixels, dtype=np.float32) / 255 * ink, out=region)


def finish(canvas: np.ndarray, noise: float, rng: np.random.Generator) -> Image.Image:
    """Add Gaussian noise of standard deviation ``noise`` and return an RGB image."""
    noisy = canvas + rng.normal(0.0, noise, canvas.shape).astype(np.float32) if noise else canvas
    grey = (np.clip(noisy, 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")


def draw_grid(
    labels: list[int], columns: int, cell: int, noise: float, bank: Scans, rng: np.random.Generator
) -> Image.Image:
    """Return an image of digits in reading order on a grid; size, place and ink vary inside each cell."""
    rows = -(-len(labels) // columns)
    canvas = np.zeros((rows * cell, columns * cell), dtype=np.float32)
    for index, label in enumerate(labels):
        size = int(rng.integers(int(cell * 0.7), cell + 1))
        left = (index % columns) * cell + int(rng.integers(0, cell - size + 1))
        top = (index // columns) * cell + int(rng.integers(0, cell - size + 1))
        paste(canvas, rng.choice(bank[label]), left, top, size, ink=float(rng.uniform(0.7, 1.0)))
    return finish(canvas, noise, rng)
