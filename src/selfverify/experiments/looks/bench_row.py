"""How one way of answering a benchmark has done."""

from __future__ import annotations

from dataclasses import dataclass, field

WITHOUT, MARKED, WITH = "without looking", "set of mark", "looking"
"""Ways of answering: at first sight, with numbers on the images, with tools."""
COLUMNS = ("sub_task", "category")
"""Columns by which results are divided, the first that a file has: BLINK's, then the others'."""
LEFT_OUT = ("IQ_Test", "IQ-Test")
"""BLINK's task that VTS-V leaves out of its 13 and of their mean."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """How one way of answering has done.

    Args:
        name: `WITHOUT`, `MARKED` or `WITH`.
        accuracy: Over all questions, with the tasks that are left out of the mean.
        mean: Over the tasks (macro-average), without `LEFT_OUT`.
        tasks: Accuracy by task.
        problems: How many questions there were.
        steps: Mean steps of a conversation; None where nobody looks.
        crop_hit: See `crop_hit`; None where the file has no boxes.
        lost: Conversations that broke off, which count as wrong.
    """

    name: str
    accuracy: float
    mean: float
    tasks: dict[str, float] = field(default_factory=dict)
    problems: int = 0
    steps: float | None = None
    crop_hit: float | None = None
    lost: int = 0
