"""Writing down the problems that a report shows: their images, questions and targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfverify.core.config import EvaluationConfig
from selfverify.core.files import make_folder, naming, write_json
from selfverify.core.images import to_rgb
from selfverify.core.problem import Problem
from selfverify.evaluation.held_out import HeldOut
from selfverify.tasks.base import Task


def write_gallery(task: Task, config: EvaluationConfig, folder: Path, count: int) -> None:
    """Write the first ``count`` problems of a split into ``folder``, for the report."""
    make_folder(folder)
    entries = []
    made = HeldOut(task, config)
    for index, problem in made.make(range(min(count, made.total))).items():
        name = f"{index:05d}.png"
        if problem.images:
            with naming(folder / name):
                to_rgb(problem.images[0]).save(folder / name)  # PNG knows no CMYK
        entries.append(shown_entry(task, problem, name))
    write_json(folder / "problems.json", entries)


def shown_entry(task: Task, problem: Problem, image: str) -> dict[str, Any]:
    """Return what is shown of a problem, whose image, where it has one, is called ``image``."""
    entry = {
        "id": problem.id,
        "question": problem.meta.get("question", ""),
        "target": problem.target,
        "image": image if problem.images else None,
    }
    if problem.images and (task.kind == "continuous" or "screen" in problem.meta):
        # Answers are places: the size that their coordinates refer to, and outlines of what is meant.
        entry["frame"] = problem.meta.get("screen") or problem.images[0].size
        entry["regions"] = [
            *problem.meta.get("polygons", ()),
            *map(_corners, problem.meta.get("ui_boxes", ())),
        ]
    return entry


def _corners(box: Sequence[float]) -> list[list[float]]:
    x1, y1, x2, y2 = box
    return [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
