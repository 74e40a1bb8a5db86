"""A file of several matrices that make one table, as ADPO's Table 5: benchmarks, each with its own models.

name: table-5
sizes: [4, 8, 12]
benchmarks:
  MathVista:
    recipe: adpo-math
    overrides: [task.test=MathVista.parquet]
    models: {base: Qwen/Qwen2-VL-7B-Instruct, grpo: runs/grpo-math/model, adpo: runs/adpo-math/model}
  AndroidControl:
    recipe: adpo-mobile
    overrides: [task.test=AndroidControl]
    models: {base: Qwen/Qwen2.5-VL-7B-Instruct, grpo: runs/grpo-mobile/model, adpo: runs/adpo-mobile/model}
    figure: step_success
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from reproduce.by_size import ALL, LABELS, SIZES, metrics_of
from reproduce.matrix_runs import run_matrix
from reproduce.pairs import Cell
from reproduce.tables import grid, percent
from selfverify.core.config import Config
from selfverify.core.errors import ConfigError
from selfverify.core.files import make_output_folder, write_json, write_text
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.recipe_yaml import complaints, read_document
from selfverify.experiments.registry import make_task
from selfverify.selection.calibration import Fusion
from selfverify.selection.strategies import find_strategy

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_ROWS = ("majority", "none")
"""What the tables call choices without a verifier."""


def _labels(named: dict[str, Any]) -> dict[str, Any]:
    for label in named:
        if not _LABEL.fullmatch(label) or label in _ROWS:
            raise ValueError(
                f"{label!r} cannot be a name here: use letters, digits, '_' and '-', and not majority or none"
            )
    return named


class MatrixBenchmark(Config):
    """One block of columns."""

    recipe: str = Field(description="The recipe with the task, the evaluation and the answers' length.")
    overrides: list[str] = Field([], description="Settings of the recipe to change, as key=value.")
    models: Annotated[dict[str, str], AfterValidator(_labels)] = Field(
        min_length=1, description="By name, models that answer and judge: a folder, or URL#MODEL."
    )
    servers: Annotated[dict[str, str], AfterValidator(_labels)] = Field(
        {}, description="By name, models behind servers that judge only, as URL#MODEL."
    )
    reward_models: Annotated[dict[str, str], AfterValidator(_labels)] = Field(
        {}, description="By name, folders of reward models, which judge only."
    )
    figure: str | None = Field(
        None, description="The task's figure that is shown; needed where the task has several."
    )


class MatrixFile(Config):
    """A file of matrices; the module's docstring shows one."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="Name of the table.")
    sizes: list[Annotated[int, Field(ge=1)]] = Field(
        list(SIZES), min_length=1, description="From how many candidates an answer is chosen."
    )
    strategy: str = Field("best", description="The strategy that chooses an answer by the scores.")
    ask: bool = Field(False, description="Ask judges in a turn of its own, not at the answer's end.")
    benchmarks: Annotated[dict[str, MatrixBenchmark], AfterValidator(_labels)] = Field(
        min_length=1, description="By label, the blocks of columns."
    )


def load_matrix_file(path: Path) -> MatrixFile:
    """Return the content of a file, checked.

    Raises:
        ConfigError: The file cannot be read, or a key or value in it cannot be right; one line per fault.
    """
    document = read_document(path)
    try:
        found = MatrixFile.model_validate(document.data)
    except ValidationError as error:
        raise ConfigError("\n".join(complaints(error, MatrixFile, document))) from None
    find_strategy(found.strategy)
    for label, one in found.benchmarks.items():
        names = [*one.models, *one.servers, *one.reward_models]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"{document.source}: benchmarks.{label}: two verifiers are called {twice[0]}")
    return found


def run_matrix_file(
    file: MatrixFile, output: Path, *, fusion: Fusion | None = None, say: Callable[[str], None] = print
) -> str:
    """Make all matrices of a file, each in a folder of its own, and one table of them.

    Recipes and figures are checked before a model is loaded. Called again, it goes on where it was stopped.

    Args:
        file: Its content.
        output: Gets ``LABEL/`` as `run_matrix` writes it, ``table.md`` and ``table.json``.
        fusion: See `run_matrix`.
        say: Gets a line about each piece of work before it begins.

    Returns:
        The table, in Markdown.

    Raises:
        ConfigError: A recipe is wrong, a task has no such figure, or as `run_matrix`.
        ServerError: A server failed; what was finished is stored.
    """
    recipes: dict[str, Recipe] = {}
    figures: dict[str, str] = {}
    for label, one in file.benchmarks.items():
        try:
            recipes[label] = load_recipe(one.recipe, one.overrides)
        except ConfigError as error:
            raise ConfigError(f"benchmarks.{label}: {error}") from None
        task = recipes[label].task
        names = [metric.name for metric in metrics_of(make_task(task.name, **task.options))]
        if one.figure not in (names if one.figure or len(names) > 1 else [None]):
            raise ConfigError(f"benchmarks.{label}.figure: name one of {', '.join(names)}")
        figures[label] = one.figure or names[0]
    make_output_folder(output)
    cells: dict[str, list[Cell]] = {}
    for label, one in file.benchmarks.items():
        say(f"{label}:")
        cells[label] = run_matrix(
            one.models,
            recipes[label],
            output / label,
            sizes=file.sizes,
            strategy=file.strategy,
            form="ask" if file.ask else "continue",
            fusion=fusion,
            servers=one.servers,
            reward_models=one.reward_models,
            say=say,
        )
    shown = {
        label: [cell for cell in of if (cell.category, cell.figure) == (ALL, figures[label])]
        for label, of in cells.items()
    }
    text = f"# {file.name}\n\n{joint_table(shown, figures)}"
    plain = {label: [asdict(cell) for cell in of] for label, of in shown.items()}
    write_json(output / "table.json", {"name": file.name, "figures": figures, "cells": plain})
    write_text(output / "table.md", text)
    return text


def joint_table(cells: Mapping[str, Sequence[Cell]], figures: Mapping[str, str]) -> str:
    """ADPO's Table 5: for each N a row per generator, and per benchmark a column per verifier, in percent.

    The best figure of a benchmark and N is bold. A dash stands where a benchmark has no such pair.

    Args:
        cells: By benchmark, the cells of one figure over all problems.
        figures: By benchmark, the figure's name.
    """
    columns = [(label, verifier) for label, of in cells.items() for verifier in _verifiers(of)]
    generators = list(dict.fromkeys(cell.generator for of in cells.values() for cell in of))
    body = []
    for n in sorted({cell.n for of in cells.values() for cell in of}):
        here = {
            (label, cell.generator, cell.verifier): cell.value
            for label, of in cells.items() for cell in of if cell.n == n
        }  # fmt: skip
        best = {
            label: max((round(v, 3) for (of, _, _), v in here.items() if of == label), default=None)
            for label in cells
        }
        for generator in generators:
            row = [here.get((label, generator, verifier)) for label, verifier in columns]
            if any(value is not None for value in row):
                shown = [
                    f"**{percent(v)}**" if v is not None and round(v, 3) == best[label] else percent(v)
                    for v, (label, _) in zip(row, columns, strict=True)
                ]
                body.append([str(n), generator, *shown])
    head = [f"{label} {LABELS.get(figures[label], figures[label])}: {by}" for label, by in columns]
    intervals = "Each benchmark's folder has its matrix with 95 % intervals, AUC and AP."
    return f"{grid(['N', 'generator', *head], body, 2)}\n\n{intervals}\n"


def _verifiers(cells: Sequence[Cell]) -> list[str]:
    """The columns of a benchmark; a single sample comes first, then the vote."""
    found = dict.fromkeys(cell.verifier for cell in cells)
    return [*(name for name in reversed(_ROWS) if name in found), *(n for n in found if n not in _ROWS)]
