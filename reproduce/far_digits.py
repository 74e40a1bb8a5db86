"""How readable a digit of `digits-far` is in the thumbnail, in a crop of its cell, and enlarged.

A support vector machine reads one digit in a window that is a little larger than the digit, at the scale at
which the task shows it. It knows the window's place, which a model has to find.

    python -m reproduce.far_digits
"""

from __future__ import annotations

import argparse

import numpy as np
from PIL import Image
from sklearn.svm import SVC

from selfverify.core.problem import Split
from selfverify.tasks.digits import digit_bank, paste
from selfverify.visual.digits_far import CELLS, DigitsFarConfig

MARGIN = 2
"""Pixels by which the window is larger than the largest digit."""


def windows(
    split: Split, count: int, sizes: tuple[int, int], scale: float, noise: tuple[float, float], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Windows ``[count, pixels]`` as they are shown, and their digits; the second noise is added last."""
    rng, bank = np.random.default_rng(seed), digit_bank(split)
    side = sizes[1] + MARGIN
    shown, digits = [], rng.integers(0, 10, count)
    for digit in digits:
        canvas = np.zeros((side, side), np.float32)
        size = int(rng.integers(sizes[0], sizes[1] + 1))
        left, top = (int(v) for v in rng.integers(0, side - size + 1, 2))
        paste(canvas, rng.choice(bank[digit]), left, top, size, ink=float(rng.uniform(0.7, 1.0)))
        noisy = np.clip(canvas + rng.normal(0, noise[0], canvas.shape), 0, 1)
        seen = max(round(side * scale), 1)
        image = Image.fromarray((255 * noisy).astype(np.uint8)).resize((seen, seen), Image.Resampling.LANCZOS)
        pixels = np.asarray(image, np.float32) / 255
        shown.append(np.clip(pixels + rng.normal(0, noise[1], pixels.shape), 0, 1).ravel())
    return np.stack(shown), digits


def readable(
    sizes: tuple[int, int], scale: float, noise: tuple[float, float], train: int, test: int
) -> float:
    """The share of test digits that are read."""
    known, labels = windows("train", train, sizes, scale, noise, 0)
    asked, truth = windows("test", test, sizes, scale, noise, 1)
    return float((SVC(C=10, gamma="scale").fit(known, labels).predict(asked) == truth).mean())


def main() -> None:
    """Print a row for each size and scale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=3000)
    parser.add_argument("--test", type=int, default=2000)
    options, c = parser.parse_args(), DigitsFarConfig()
    scales = {
        "thumbnail": (c.thumbnail / (CELLS * c.cell), c.noise),
        "crop of the cell": (c.shown / c.cell, 0.0),
        "of its quarter": (2 * c.shown / c.cell, 0.0),
        "of that quarter's": (4 * c.shown / c.cell, 0.0),
    }
    for kind, sizes in (("near", c.near), ("far", c.far)):
        for name, (scale, more) in scales.items():
            share = readable(sizes, scale, (c.noise, more), options.train, options.test)
            print(f"{kind:4} {sizes[0]}-{sizes[1]} px  {name:17} 1:{1 / scale:.2f}  {share:.3f}", flush=True)


if __name__ == "__main__":
    main()
