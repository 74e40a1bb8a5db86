"""Seeds of problems whose contents are drawn, which no two splits have in common."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from selfverify.core.splits import SPLITS, Split


def split_seeds(split: Split, seed: int, index: int) -> Iterator[int]:
    """Seeds of a problem without end, the first of which is taken unless there is a reason against it.

    A seed's remainder by the number of splits says whose it is.
    """
    rng = np.random.default_rng([seed, index])
    while True:
        yield int(rng.integers(2**29)) * len(SPLITS) + SPLITS.index(split)
