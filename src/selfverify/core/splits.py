"""The three splits of a task's problems."""

from __future__ import annotations

from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
"""All of them. What is drawn for a problem depends on a split's place here."""
