"""The commands ``selfverify methods`` and ``selfverify recipes``."""

from __future__ import annotations

from typing import Annotated

import typer

from selfverify.cli.options import settings_as_options
from selfverify.cli.printing import print_table
from selfverify.core.errors import ConfigError
from selfverify.looking.look_settings import ToolModels


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


@settings_as_options
def looking(models: ToolModels) -> None:
    """List the tools with which a model can look at images again, and whether they are available here.

    Examples:

    - `selfverify looking`

    - `selfverify looking --depth-model FOLDER`
    """
    from selfverify.looking.make_toolbox import all_tools

    tools = all_tools(models)
    rows = [(tool.name, tool.missing() or "yes", tool.schema["function"]["description"]) for tool in tools]
    print_table(("tool", "available here", "what it does"), rows)
