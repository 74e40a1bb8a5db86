"""Numbers on an image, by which a model can refer to its parts: Set-of-Mark prompting (Yang et al. 2023).

The paper takes its parts from SEEM or SAM. Here they are areas of like colour that hang together, which needs
no weights and finds things less well. As there each number stands where it is furthest from its part's edge.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from selfverify.core.images import to_rgb

MOST_MARKS = 12
"""Parts of an image that get a number."""
WORKING_SIDE = 96
"""Pixels of the longer side of the copy in which parts are looked for."""
COLOURS, SMALLEST = 6, 0.01
"""Colours that an image is divided into; the smallest part that gets a number, as a share of the image."""
GLYPHS = (
    "111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001",
    "111100111001111", "111100111101111", "111001001001001", "111101111101111", "111101111001111",
)  # fmt: skip
"""The digits 0 to 9 in five rows of three pixels, so that they can be read in the smallest images."""

Spot = tuple[float, float]
"""x and y in pixels."""


def marked(image: Image.Image) -> Image.Image:
    """A copy of an image with the numbers 1, 2, ... on its parts, in reading order.

    Args:
        image: Any; the copy is RGB. The same image always gets the same numbers.
    """
    shown = to_rgb(image)
    return with_numbers(shown, spots_of(shown), max(1, min(shown.size) // 100))


def with_numbers(image: Image.Image, spots: Sequence[Spot], scale: int = 1) -> Image.Image:
    """A copy of an image with the numbers 1, 2, ... around spots, white on black.

    Args:
        image: The image.
        spots: Where the middle of each number is; numbers are moved so far that they are whole.
        scale: Pixels of the image for one of a digit's 3 x 5.
    """
    made = image.copy()
    for number, (x, y) in enumerate(spots, start=1):
        plate = _plate(number, scale)
        left = min(max(round(x - plate.width / 2), 0), max(made.width - plate.width, 0))
        top = min(max(round(y - plate.height / 2), 0), max(made.height - plate.height, 0))
        made.paste(plate.convert(made.mode), (left, top))
    return made


def _plate(number: int, scale: int) -> Image.Image:
    digits = [np.array([*GLYPHS[int(digit)]], dtype=np.uint8).reshape(5, 3) for digit in str(number)]
    row = np.concatenate([np.pad(digit, ((0, 0), (0, 1))) for digit in digits], axis=1)
    plate = np.pad(row, ((1, 1), (1, 0))) * np.uint8(255)
    return Image.fromarray(np.kron(plate, np.ones((scale, scale), dtype=np.uint8)))


def spots_of(image: Image.Image) -> list[Spot]:
    """Where the numbers of an image's parts are to stand, in reading order; see the module."""
    from scipy import ndimage
    from sklearn.cluster import KMeans

    ratio = min(1.0, WORKING_SIDE / max(image.size))
    size = max(1, round(image.width * ratio)), max(1, round(image.height * ratio))
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BOX), dtype=np.float64)
    colours = min(COLOURS, len(np.unique(pixels.reshape(-1, 3), axis=0)))
    found = KMeans(colours, n_init=1, random_state=0).fit_predict(pixels.reshape(-1, 3))
    areas = found.reshape(pixels.shape[:2])
    parts: list[tuple[int, float, float]] = []
    for colour in range(colours):
        labels, count = ndimage.label(areas == colour)
        for part in range(1, count + 1):
            mask = labels == part
            if mask.sum() >= SMALLEST * mask.size:
                parts.append((int(mask.sum()), *_middle(mask)))
    largest = sorted(parts, reverse=True)[:MOST_MARKS]
    spots = [((x + 0.5) * image.width / size[0], (y + 0.5) * image.height / size[1]) for _, x, y in largest]
    return sorted(spots, key=lambda spot: (spot[1], spot[0]))


def _middle(mask: NDArray[np.bool_]) -> Spot:
    """The place that is furthest from the edges of a part and of the image."""
    from scipy.ndimage import distance_transform_edt

    distance = distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1]
    y, x = np.unravel_index(int(distance.argmax()), distance.shape)
    return float(x), float(y)
