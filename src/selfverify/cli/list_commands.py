"""The commands ``selfverify methods`` and ``selfverify recipes``."""

from __future__ import annotations

from typing import Annotated

import typer

from selfverify.cli.printing import print_table
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
        rows = [(key, entry.summary) for key, entry in METHODS.items()]
        print_table(("method", "what it does"), rows)
        return
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}; methods: {', '.join(METHODS)}")
    method = METHODS[name]
    options = []
    for key, field in method.config_class.model_fields.items():
        default = "(required)" if field.is_required() else field.get_default(call_default_factory=True)
        options.append((f"method.{key}", str(default), field.description or ""))
    print_table(("option", "default", "meaning"), options, f"{name}: {method.summary}")


def recipes() -> None:
    """List the recipes that ship with the package.

    Example: `selfverify recipes`, then `selfverify train NAME --dry-run` to read one.
    """
    from selfverify.experiments.recipe import builtin_recipes, recipe_summary

    rows = [(name, recipe_summary(path)) for name, path in builtin_recipes().items()]
    print_table(("recipe", "what it is for"), rows)
