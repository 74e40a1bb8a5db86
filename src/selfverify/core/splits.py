"""The three splits of a task's problems."""

from __future__ import annotations

from typing import Literal

Split = Literal["train", "validation", "test"]
