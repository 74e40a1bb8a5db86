"""The commands ``selfverify methods`` and ``selfverify recipes``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from selfverify.core.errors import ConfigError


def methods(
    name: Annotated[str | None, typer.Argument(help="The method whose options to show.")] = None,
) -> None:
    """List the training methods, or one method's options.

    Examples:

    - `selfverify methods`

    - `selfverify methods adpo`
    """
    from selfverify.experiments.registry import METHODS

    if name is None:
        table = Table("method", "what it does")
        for key, entry in METHODS.items():
            table.add_row(Text(key), Text(entry.summary))
    elif name in METHODS:
        table = Table("option", "default", "meaning", title=Text(f"{name}: {METHODS[name].summary}"))
        for key, field in METHODS[name].config_class.model_fields.items():
            default = (
                "(required)" if field.is_required() else str(field.get_default(call_default_factory=True))
            )
            table.add_row(Text(f"method.{key}"), Text(default), Text(field.description or ""))
    else:
        raise ConfigError(f"there is no method {name!r}; methods: {', '.join(METHODS)}")
    Console().print(table)


def recipes() -> None:
    """List the recipes that ship with the package.

    Example: `selfverify recipes`, then `selfverify train NAME --dry-run` to read one.
    """
    from selfverify.experiments.recipe import builtin_recipes, recipe_summary

    table = Table("recipe", "what it is for")
    for name, path in builtin_recipes().items():
        table.add_row(Text(name), Text(recipe_summary(path)))
    Console().print(table)
