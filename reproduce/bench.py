"""A benchmark with and without looking: the same questions, the same model, rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfverify.core.config import CommandConfig
from selfverify.core.errors import DataError
from selfverify.core.files import write_json
from selfverify.experiments.recipe import Recipe, build_recipe
from selfverify.experiments.recipe_yaml import Document, parse_override
from selfverify.experiments.run import evaluate_recipe, recipe_task
from selfverify.visual.config import VisualConfig
from selfverify.visual.episode import STEPS
from selfverify.visual.task import INSTRUCTION
from selfverify.visual.tools.gallery import CROP_HIT

WITHOUT, MARKED, WITH = "without looking", "set of mark", "looking"
"""Ways of answering: at first sight, with numbers on the images, with tools."""
COLUMNS = ("sub_task", "category")
"""Columns by which results are divided, the first that a file has: BLINK's, then the others'."""
LEFT_OUT = ("IQ_Test", "IQ-Test")
"""BLINK's task that VTS-V leaves out of its 13 and of their mean."""


Row = dict[str, Any]
"""How one way of answering has done.

- ``name``: `WITHOUT`, `MARKED` or `WITH`;
- ``accuracy``: over all questions, with the tasks that are left out of the mean;
- ``mean``: over the tasks (macro-average), without `LEFT_OUT`;
- ``tasks``: accuracy by task;
- ``problems``: how many questions there were;
- ``steps``: mean steps of a conversation; None where nobody looks;
- ``crop_hit``: the share of the boxes that were shown whole; None where the file has no boxes;
- ``lost``: conversations that broke off, which count as wrong.
"""
BENCH = "bench.json"


class BenchSettings(CommandConfig):
    """By whom a benchmark is answered, and how."""

    model: str = "builtin:digits"
    """The model: a folder, `builtin:NAME` or a hub id; with --server its name there."""

    server: str | None = None
    """An OpenAI-compatible server behind which the model is."""

    output: Path = Path("runs/bench")
    """The folder for samples and figures."""

    format: str | None = None
    """The file's format, if it is not recognised (`vstar`, ...)."""

    split: str | None = None
    """The split to read, where there are several (BLINK: val)."""

    marks: bool = False
    """Answer also with numbers on the parts of images (Set-of-Mark), without looking."""

    look: VisualConfig


def run_bench(data: Path, settings: BenchSettings, overrides: Sequence[str] = ()) -> list[Row]:
    """Answer a benchmark's questions without and with looking.

    Called again, it goes on where it was stopped. ``OUTPUT/without``, ``OUTPUT/marked`` and
    ``OUTPUT/looking`` are folders of evaluations, and ``OUTPUT/bench.json`` has the rows, for `look_tables`.

    Args:
        data: The benchmark's file or folder.
        settings: By whom it is answered, and how.
        overrides: Settings of the evaluations' recipe, as ``section.key=value``.

    Raises:
        ConfigError: The file or the model is not there, or the output holds something else.
        DataError: No question can be used, or one has no image.
    """
    test = {"path": str(data), "format": settings.format, "split": settings.split}
    look = settings.look.model_dump(mode="json")
    asked: list[tuple[str, str, dict[str, Any]]] = [
        (WITHOUT, "without", {"name": "math", "test": test, "instruction": INSTRUCTION}),
        *([(MARKED, "marked", {"name": "marked", "test": test})] if settings.marks else []),
        (WITH, "looking", {"name": "look", "test": test, "look": look}),
    ]
    recipes = [(name, folder, _recipe(settings, task, overrides)) for name, folder, task in asked]
    _refuse_without_images(recipes[-1][2], data)
    output = settings.output
    rows = [row_of(name, evaluate_recipe(recipe, output=output / folder)) for name, folder, recipe in recipes]
    write_json(output / BENCH, {"data": str(data), "model": settings.model, "rows": rows})
    return rows


def _refuse_without_images(recipe: Recipe, data: Path) -> None:
    """A question that has lost its image would be answered from its words, and count as looked at."""
    task = recipe_task(recipe)
    count = task.count("test")
    known = [n for n in (recipe.evaluation.problems, count) if n is not None]
    blind = []
    for index in range(min(known, default=0)):
        try:
            problem = task.problem("test", recipe.seed, index)
        except DataError:
            continue  # the evaluation says what is wrong with it
        blind += [] if problem.images else [problem.id]
    if blind:
        raise DataError(
            f"{data}: {len(blind)} of its questions have no image, such as "
            f"{', '.join(blind[:3])}; give them their images, or take them out of the file"
        )


def _recipe(settings: BenchSettings, task: dict[str, Any], overrides: Sequence[str]) -> Recipe:
    model = settings.model if settings.server is None else f"{settings.server}#{settings.model}"
    plain = {
        "name": "bench",
        "policy": {"path": model},
        "task": task,
        "method": {"name": "grpo"},
        "sampling": {"max_new_tokens": 512},
        "learner": {"steps": 1},
        "evaluation": {"samples": 1, "temperature": 0.0},
    }
    document = Document("bench", plain)
    for override in overrides:
        parse_override(override, document)
    return build_recipe(document)


def row_of(name: str, summary: Mapping[str, Any]) -> Row:
    """A row of an evaluation's summary.

    Raises:
        DataError: It has no problems, or no conversation about them came to an end.
    """
    if not summary.get("problems"):
        raise DataError("no question of the benchmark could be used")
    talks = summary.get("conversations") or {}
    lost = round(float(talks.get("lost") or 0.0) * int(summary["samples"]))
    if lost == summary["samples"]:
        raise DataError(
            "no question of the benchmark was answered: all conversations broke off, and the log says why; "
            "delete the folder to begin anew"
        )
    categories = summary.get("categories") or {}
    column = next((column for column in COLUMNS if column in categories), None)
    found = categories.get(column, {}) if column else {}
    tasks = {value: _first(figures, "accuracy") for value, figures in sorted(found.items())}
    counted = [accuracy for task, accuracy in tasks.items() if task not in LEFT_OUT and accuracy is not None]
    accuracy = float(summary["pass@1"])
    figures = summary.get("metrics") or {}
    return {
        "name": name,
        "accuracy": accuracy,
        "mean": math.fsum(counted) / len(counted) if counted else accuracy,
        "tasks": {task: value for task, value in tasks.items() if value is not None},
        "problems": int(summary["problems"]),
        "steps": _first(figures, STEPS),
        "crop_hit": _first(figures, CROP_HIT),
        "lost": lost,
    }


def _first(figures: Mapping[str, Any], name: str) -> float | None:
    """A figure of one sample."""
    curve = (figures.get(name) or {}).get("curves", {}).get("pass@1") or [None]
    return None if curve[0] is None else float(curve[0])
