"""The study file: which variants of which recipe run on which tasks, checked before anything starts.

    name: adpo-digits
    recipe: adpo-digits
    seeds: [0, 1, 2]
    baseline: adpo
    tasks:
      pick: [task.name=digits-pick]
      locate: [task.name=digits-locate, method.gamma=0.1]
    variants:
      grpo: {overrides: [method.name=grpo]}
      adpo: {overrides: [method.name=adpo]}
      wide: {overrides: [method.name=adpo, method.gamma=0.25], tasks: [locate]}

Overrides are applied in the order study, task, variant, and the later one wins. A variant that sets
``method.name`` *replaces* the recipe's method section, since options of one method mean nothing to another;
of the study's and the task's ``method.`` overrides it takes those that its method has an option for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from selfverify.core.config import Config, Seed
from selfverify.core.errors import ConfigError
from selfverify.core.files import differences
from selfverify.experiments.recipe import Recipe, load_recipe, overridden_name
from selfverify.experiments.recipe_yaml import Document, read_document

GRIDS = Path(__file__).parent / "grids"
BEFORE = "before"
"""The folder, beside those of the variants, of the evaluation that all variants of a task start from."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OWN_KEYS = {
    "name": "every run gets its own",
    "output": "every run gets its own folder",
    "seed": "it comes from `seeds`",
    "method": "write method.name=NAME and method.KEY=VALUE",
}


def _override_key(override: str) -> str:
    return ".".join(part.strip() for part in override.partition("=")[0].split("."))


def _checked_override(override: str) -> str:
    try:
        Document("study", {}).override(override)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    if (key := _override_key(override)) in _OWN_KEYS:
        raise ValueError(f"a study cannot override {key!r}: {_OWN_KEYS[key]}")
    return override


def _checked_labels(labelled: dict[str, Any]) -> dict[str, Any]:
    for label in labelled:
        if not _LABEL.fullmatch(label) or label == BEFORE:
            raise ValueError(
                f"{label!r} cannot name a folder of runs; use letters, digits, '.', '_' and '-', and not "
                f"{BEFORE!r}"
            )
    return labelled


Overrides = list[Annotated[str, AfterValidator(_checked_override)]]
Labels = AfterValidator(_checked_labels)


class Variant(Config):
    """One way of training that the study compares."""

    overrides: Overrides = []
    """The settings that this variant changes, as key=value."""

    tasks: list[str] | None = None
    """The labels of the tasks that the variant runs on; null means all."""

    seeds: int | None = Field(None, ge=1)
    """With how many of the study's seeds, the first ones; null means all."""


class Study(Config):
    """A study file; the module's docstring shows one."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the study and of its folder."""

    recipe: str
    """A built-in recipe's name, or a recipe file, relative to the study's folder."""

    overrides: Overrides = []
    """The settings that all runs change, as key=value."""

    seeds: list[Seed] = Field([0], min_length=1)
    """The seeds; every variant runs once per seed on each of its tasks."""

    baseline: str | None = None
    """The variant that all others are compared with, problem by problem."""

    tasks: Annotated[dict[str, Overrides], Labels] = Field(min_length=1)
    """By label, the settings that a task changes."""

    variants: Annotated[dict[str, Variant], Labels] = Field(min_length=1)
    """By label, the variants that are compared."""

    @model_validator(mode="after")
    def _check(self) -> Study:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds: a seed stands twice in {self.seeds}")
        if self.baseline is not None and self.baseline not in self.variants:
            raise ValueError(
                f"baseline: there is no variant {self.baseline!r}; variants: {', '.join(self.variants)}"
            )
        for label, variant in self.variants.items():
            unknown = [task for task in variant.tasks or () if task not in self.tasks]
            if unknown:
                raise ValueError(
                    f"variants.{label}.tasks: there is no task {unknown[0]!r}; tasks: {', '.join(self.tasks)}"
                )
        return self

    def pairs(self) -> list[tuple[str, str]]:
        """Return every task with each of its variants, as ``(task, variant)`` in the file's order."""
        return [
            (task, label)
            for task in self.tasks
            for label, variant in self.variants.items()
            if variant.tasks is None or task in variant.tasks
        ]


@dataclass(frozen=True, slots=True)
class Run:
    """One training run of a study."""

    task: str
    variant: str
    seed: int
    recipe: Recipe

    @property
    def label(self) -> str:
        """The run's folder within the study's."""
        return f"{self.task}/{self.variant}/seed-{self.seed}"


def built_in() -> dict[str, Path]:
    """Return the files of the grids that stand beside this module, by name."""
    return {path.stem: path for path in sorted(GRIDS.glob("*.yaml"))}


def load_study(path_or_name: str | Path, seeds: str | None = None) -> Study:
    """Return the study in a file, checked.

    Args:
        path_or_name: A YAML file, or the name of a built-in study.
        seeds: Seeds that replace those of the file, such as ``0,1,2``.

    Raises:
        ConfigError: The file cannot be read, or a key or value in it cannot be right; one line per fault.
    """
    shipped, path = built_in(), Path(path_or_name).expanduser()
    if not path.is_file():
        if str(path_or_name) not in shipped:
            names = ", ".join(shipped) or "none"
            raise ConfigError(f"{path_or_name}: there is no such file; grids: {names}")
        path = shipped[str(path_or_name)]
    document = read_document(path, "study")
    if seeds is not None:
        document.override(f"seeds=[{seeds}]")
    study = document.validated(Study)
    beside = path.parent / study.recipe
    return study.model_copy(update={"recipe": str(beside)}) if beside.is_file() else study


def overrides_of(study: Study, task: str, variant: str) -> list[str]:
    """Return the overrides that turn the study's recipe into that of a variant on a task.

    The module's docstring says which overrides count and in which order.
    """
    common, own = [*study.overrides, *study.tasks[task]], study.variants[variant].overrides
    name = overridden_name("method", own)
    if name is None:
        return [*common, *own]
    from selfverify.experiments.registry import METHODS  # late: imports torch

    # Of a method that is not there the recipe's own check says so, with the nearest name.
    known = {f"method.{key}" for key in METHODS[name].config_class.model_fields} if name in METHODS else None
    kept = [o for o in common if not _is_method(o) or known is None or _override_key(o) in known]
    # `method=` takes the place of the whole section, and stands before everything that belongs in it.
    return [f"method={{name: {name}}}", *kept, *own]


def plan(study: Study, output: Path) -> list[Run]:
    """Return all runs of a study with their checked recipes; those of the first seed come first.

    Raises:
        ConfigError: A run's recipe is wrong, or the variants of a task do not start from the same evaluation.
    """
    _refuse_unused(study)
    recipes = {}
    for task, variant in study.pairs():
        try:
            recipes[task, variant] = load_recipe(study.recipe, overrides_of(study, task, variant))
        except ConfigError as error:
            raise ConfigError(f"variants.{variant} on tasks.{task}: {error}") from None
        _refuse_incomparable(recipes, task, variant)
    runs = []
    for number, seed in enumerate(study.seeds):
        for (task, variant), recipe in recipes.items():
            if number < (study.variants[variant].seeds or len(study.seeds)):
                run = Run(task, variant, seed, recipe)
                name, folder = f"{study.name}-{task}-{variant}", str(output / run.label)
                own = recipe.model_copy(update={"name": name, "seed": seed, "output": folder})
                runs.append(replace(run, recipe=own))
    return runs


def measured_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that an evaluation before training depends on."""
    settings = recipe.model_dump(mode="json", include={"policy", "evaluation"})
    settings["task"] = recipe.measured_task.model_dump(mode="json")
    return settings | {"sampling": {"max_new_tokens": recipe.sampling.max_new_tokens}}


def _refuse_incomparable(recipes: dict[tuple[str, str], Recipe], task: str, variant: str) -> None:
    recipe = recipes[task, variant]
    first = next(label for of, label in recipes if of == task)
    changed = differences(measured_settings(recipes[task, first]), measured_settings(recipe))
    if changed:
        raise ConfigError(
            f"variants.{variant} on tasks.{task} cannot be compared with variants.{first}: {changed[0]}. "
            "Variants of a task share the policy they start from, the task that they are measured on, and "
            "the evaluation; put such an override under `tasks` or the study's `overrides`, or say by "
            "`evaluation_task` how all are measured"
        )


def _refuse_unused(study: Study) -> None:
    """Refuse a ``method.`` override that no variant's method knows: it would silently do nothing."""
    for task, common in study.tasks.items():
        used = [label for of, label in study.pairs() if of == task]
        if not used:
            raise ConfigError(f"tasks.{task}: no variant runs on this task")
        for override in (o for o in (*study.overrides, *common) if _is_method(o)):
            if not any(override in overrides_of(study, task, label) for label in used):
                raise ConfigError(f"tasks.{task}: {override!r} is an option of no variant's method")


def _is_method(override: str) -> bool:
    return _override_key(override).startswith("method.")
