"""The commands ``selfverify methods``, ``tasks`` and ``recipes``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from selfverify.cli.printing import print_table
from selfverify.core.errors import ConfigError

if TYPE_CHECKING:
    from selfverify.methods.base import Method
    from selfverify.tasks.base import Task


def methods(
    name: Annotated[str | None, typer.Argument(help="The method whose options to show.")] = None,
) -> None:
    """List the training methods, or one method's options.

    Examples:

    - `selfverify methods`

    - `selfverify methods adpo`
    """
    from selfverify.experiments.registry import METHODS

    _list("method", METHODS, name)


def tasks(
    name: Annotated[str | None, typer.Argument(help="The task whose options to show.")] = None,
) -> None:
    """List the tasks, those of installed distributions included, or one task's options.

    Examples:

    - `selfverify tasks`

    - `selfverify tasks maths`
    """
    from selfverify.experiments.registry import TASKS

    _list("task", TASKS, name)


def _list(kind: str, known: Mapping[str, type[Method] | type[Task]], name: str | None) -> None:
    if name is None:
        print_table((kind, "what it does"), [(key, entry.summary) for key, entry in known.items()])
        return
    if name not in known:
        raise ConfigError(f"there is no {kind} {name!r}; {kind}s: {', '.join(known)}")
    options = []
    for key, field in known[name].config_class.model_fields.items():
        default = "(required)" if field.is_required() else field.get_default(call_default_factory=True)
        options.append((f"{kind}.{key}", str(default), field.description or ""))
    print_table(("option", "default", "meaning"), options, f"{name}: {known[name].summary}")


def recipes() -> None:
    """List the recipes that ship with the package.

    Example: `selfverify recipes`, then `selfverify train NAME --dry-run` to read one.
    """
    from selfverify.experiments.recipe import builtin_recipes, recipe_summary

    rows = [(name, recipe_summary(path)) for name, path in builtin_recipes().items()]
    print_table(("recipe", "what it is for"), rows)
