"""A benchmark with and without looking: the same questions, the same model, rows of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from selfverify.core.config import CommandConfig
from selfverify.core.errors import DataError
from selfverify.core.files import write_json
from selfverify.experiments.recipe import Recipe
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


BENCH = "bench.json"


class BenchSettings(CommandConfig):
    """By whom a benchmark is answered, and how."""

    model: str = "builtin:digits"
    """The model: a folder, `builtin:NAME` or a hub id; with --server its name there."""

    server: str | None = None
    """An OpenAI-compatible server behind which the model is."""

    timeout: float = Field(300.0, ge=0.1)
    """With --server: seconds that one answer may take."""

    output: Path = Path("runs/bench")
    """The folder for samples and figures."""

    format: str | None = None
    """The file's format, if it is not recognised (`vstar`, ...)."""

    split: str | None = None
    """The split to read, where there are several (BLINK: val)."""

    problems: int | None = Field(None, ge=1)
    """The first questions only."""

    samples: int = Field(1, ge=1)
    """Answers to each question."""

    temperature: float = Field(0.0, ge=0.0)
    """The sampling temperature; 0 is greedy."""

    max_tokens: int = Field(512, ge=1)
    """The most tokens of a turn."""

    device: str = "auto"
    """Where the model runs."""

    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """The precision of its weights."""

    marks: bool = False
    """Answer also with numbers on the parts of images (Set-of-Mark), without looking."""

    look: VisualConfig


def run_bench(data: Path, settings: BenchSettings, output: Path) -> list[BenchRow]:
    """Answer a benchmark's questions without and with looking.

    Called again, it goes on where it was stopped. ``OUTPUT/without``, ``OUTPUT/marked`` and
    ``OUTPUT/looking`` are folders of evaluations, and ``OUTPUT/bench.json`` has the rows, for `look_tables`.

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
    recipes = [(name, folder, _recipe(settings, task)) for name, folder, task in asked]
    _refuse_without_images(recipes[-1][2], data)
    rows = [row_of(name, evaluate_recipe(recipe, output=output / folder)) for name, folder, recipe in recipes]
    about = {"data": str(data), "model": settings.model}
    write_json(output / BENCH, about | {"rows": [asdict(row) for row in rows]})
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


def _recipe(settings: BenchSettings, task: dict[str, Any]) -> Recipe:
    model = settings.model if settings.server is None else f"{settings.server}#{settings.model}"
    return Recipe.model_validate(
        {
            "name": "bench",
            "policy": {
                "path": model,
                "server": {"timeout_s": settings.timeout},
                "device": settings.device,
                "dtype": settings.dtype,
            },
            "task": task,
            "method": {"name": "grpo"},
            "sampling": {"max_new_tokens": settings.max_tokens},
            "learner": {"steps": 1},
            "evaluation": {
                "problems": settings.problems,
                "samples": settings.samples,
                "temperature": settings.temperature,
            },
        }
    )


def row_of(name: str, summary: Mapping[str, Any]) -> BenchRow:
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
    return BenchRow(
        name,
        accuracy,
        math.fsum(counted) / len(counted) if counted else accuracy,
        {task: value for task, value in tasks.items() if value is not None},
        int(summary["problems"]),
        _first(figures, STEPS),
        _first(figures, CROP_HIT),
        lost,
    )


def _first(figures: Mapping[str, Any], name: str) -> float | None:
    """A figure of one sample."""
    curve = (figures.get(name) or {}).get("curves", {}).get("pass@1") or [None]
    return None if curve[0] is None else float(curve[0])
