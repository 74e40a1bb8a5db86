"""The metrics file: one JSON object per line, the same bytes for the same numbers."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from selfverify.errors import CheckpointError


class MetricsLog:
    """Appends metrics to a file that a resumed run can cut back to its checkpoint.

    Floats are rounded to 6 significant digits, so that the file is short and equal between runs that
    are equal; NaN and infinity become ``null``, which JSON has and they have not. Keep wall-clock times
    in another file than the one that is to be compared.

    Args:
        path: The file. A last line without its end, as a killed process leaves it, is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._remove_torn_line()

    def append(self, row: dict[str, Any]) -> None:
        """Write one line; when this returns, it survives the death of the process."""
        line = json.dumps(_plain(row), separators=(", ", ": "), ensure_ascii=False, allow_nan=False) + "\n"
        # Opened for each line: the file may have been cut back meanwhile, and one line a step is cheap.
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(line)

    def length(self) -> int:
        """Bytes in the file, all of them on the disk: a checkpoint may count on them."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        return self.path.stat().st_size

    def last_step(self) -> int:
        """The ``step`` of the last line, 0 if there is none."""
        lines = self.path.read_bytes().splitlines()
        return int(json.loads(lines[-1])["step"]) if lines else 0

    def truncate(self, length: int) -> None:
        """Cut the file back to the ``length`` that a checkpoint noted.

        Raises:
            CheckpointError: The file is shorter than that: lines that the checkpoint knows are gone.
        """
        present = self.path.stat().st_size
        if present < length:
            raise CheckpointError(
                f"{self.path} has {present} bytes, but the checkpoint was written when it had {length}: the "
                "file was cut or replaced. Put it back, or start the run anew without resuming"
            )
        with self.path.open("r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())

    def _remove_torn_line(self) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self.truncate(whole)


def _plain(value: Any) -> Any:
    """A JSON value with floats of 6 significant digits."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
