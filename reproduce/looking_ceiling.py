"""How often the answer of `digits-far` can be told from its first image alone, without a look.

    python -m reproduce.vts_v ceiling ceiling.json

A small network reads single cells of that image; Bayes' rule over all ways from the first cell makes an
answer of what it reads. So this is about the most that a model without tools can reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neural_network import MLPClassifier

from selfverify.core.problem import Problem, Split
from selfverify.evaluation.statistics import interval, mean_statistic, measure
from selfverify.selection.rules import Floats
from selfverify.visual.digits_far import CELLS, DigitsFar, DigitsFarConfig

SIDES = (16, 80, 96)
"""Sides in pixels: the thumbnail of most arms, that of `larger`, and one whose patches hold digits whole."""


def cells_of(image: Floats) -> NDArray[np.float64]:
    """``[9, k]`` the pixels of a square image's cells, in reading order; cells overlap where they have to."""
    side = image.shape[0]
    size, corners = -(-side // CELLS), [number * side // CELLS for number in range(CELLS)]
    corners = [min(corner, side - size) for corner in corners]
    return np.array([image[y : y + size, x : x + size].ravel() for y in corners for x in corners])


def way_chances(start: int, likelihood: Floats, longest: int) -> Floats:
    """``[9]`` the chance of each cell, from 1, to be the answer, where all lengths of a way are alike.

    Args:
        start: The first cell, from 1.
        likelihood: ``[9, 10]`` of each cell's pixels, given the digit in it, up to a factor of each cell.
        longest: Cells on the longest way.
    """
    ratio = likelihood / likelihood.mean(1, keepdims=True)  # a cell off the way has any digit
    others = [cell for cell in range(1, CELLS**2 + 1) if cell != start]
    chances = np.zeros(CELLS**2)
    for more in range(longest):
        ways = [*permutations(others, more)]
        for way in ways:
            cells = (start, *way)
            named = [ratio[cell - 1, digit] for cell, digit in zip(cells, (*way, 0), strict=True)]
            chances[cells[-1] - 1] += np.prod(named) / len(ways)
    return np.asarray(chances / chances.sum())


def told_by_first_image(side: int, fitted: int, problems: int) -> dict[str, Any]:
    """Read first images of so many pixels a side, and return how often the answer is right.

    Args:
        side: Of the image, in pixels.
        fitted: Training problems, whose cells the network learns to read.
        problems: Test problems.

    Returns:
        ``right`` with its 95 % ``interval``; ``start``, where each answer is the first cell; ``near`` and
        ``far``, how often a digit of that kind is read.
    """
    task = DigitsFar(DigitsFarConfig(thumbnail=side))
    known = [*_read(task, "train", fitted)]
    reader = MLPClassifier((256,), early_stopping=True, random_state=0)
    labels = [digit for problem, _ in known for digit in problem.meta["digits"]]
    reader.fit(np.concatenate([pixels for _, pixels in known]), labels)
    counts = np.bincount(labels, minlength=10)
    right, start, read = [], [], dict[bool, list[bool]]({True: [], False: []})
    for problem, pixels in _read(task, "test", problems):
        way, digits = task.scene(*problem.meta["made_of"])
        posterior = reader.predict_proba(pixels)
        answer = way_chances(way[0], posterior / counts, task.config.longest).argmax() + 1
        right.append(bool(answer == problem.target))
        start.append(way[0] == problem.target)
        for one, guess in zip(digits, posterior.argmax(1), strict=True):
            read[one.far].append(bool(one.digit == guess))
    return {
        "right": float(np.mean(right)),
        "interval": interval([measure(mean_statistic(right))]),
        "start": float(np.mean(start)),
        "near": float(np.mean(read[False])),
        "far": float(np.mean(read[True])),
        "problems": problems,
        "fitted": fitted,
    }


def _read(task: DigitsFar, split: Split, number: int) -> Iterator[tuple[Problem, NDArray[np.float64]]]:
    for index in range(number):
        problem = task.problem(split, 0, index)
        yield problem, cells_of(np.asarray(problem.images[0], dtype=np.float64) / 255)
