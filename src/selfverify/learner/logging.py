"""The metrics file: one JSON object per line, and the same bytes for the same numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from selfverify.core.errors import CheckpointError
from selfverify.core.jsonl_store import JsonlStore, read_rows


class MetricsLog(JsonlStore):
    """A journal of metrics that a resumed run can cut back to its checkpoint.

    Floats are rounded to 6 significant digits, so that the file is short. NaN and infinity, which JSON lacks,
    become ``null``. Wall-clock times belong in another file, because equal runs shall have equal metrics.
    """

    def append(self, *rows: dict[str, Any]) -> None:
        """Write one line per row. When this returns, the lines survive the death of the process."""
        super().append(*map(_plain, rows))

    def last_step(self) -> int:
        """Return the ``step`` of the last line that has one, 0 if there is none.

        Lines that are no metrics are passed over with a warning: what stands behind a checkpoint's length is
        cut off anyway.
        """
        steps = [row.get("step") for row in read_rows(self.path, skip_corrupt=True)]
        return next((step for step in reversed(steps) if isinstance(step, int)), 0)

    def truncate(self, length: int) -> None:
        """Cut the file back to ``length`` bytes, which a checkpoint noted.

        Raises:
            CheckpointError: The file is shorter, so lines are gone that the checkpoint counts on.
        """
        present = self.path.stat().st_size
        if present < length:
            raise CheckpointError(
                f"{self.path} has {present} bytes, but the checkpoint was written when it had {length}: the "
                "file was cut or replaced. Put it back, or start the run anew without resuming"
            )
        super().truncate(length)


def _plain(value: Any) -> Any:
    """Return ``value`` as a JSON value whose floats have 6 significant digits."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
