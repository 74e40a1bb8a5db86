"""How the scripts of this folder become programs: their failures end like those of `selfverify`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from selfverify.cli.main import readable_failures
from selfverify.core.errors import ConfigError
from selfverify.core.files import write_text


class _Command(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        with readable_failures(lambda: "; the same command goes on where it was stopped"):
            return super().invoke(ctx)


Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the recipe to change; repeatable."),
]
"""The option of scripts that run a recipe."""
Paper = Annotated[bool, typer.Option("--paper", help="Print the paper's published figures, too.")]
"""The option of scripts that print a paper's tables."""


def script(*commands: Callable[..., Any], about: str | None = None) -> typer.Typer:
    """Return the program of a script: one command, or several by name.

    Args:
        commands: Functions as `typer` takes them, named as they are called.
        about: What ``--help`` says where there are several.
    """
    app = typer.Typer(
        help=about,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    for command in commands:
        app.command(cls=_Command)(command)
    return app


def show(text: str, output: Path | None) -> None:
    """Print a script's tables, and write them to the file that was asked for."""
    if output is not None:
        write_text(output, text)
    typer.echo(text, nl=False)


def named_folders(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return what ``NAME=FOLDER ...`` says, in order.

    Raises:
        ConfigError: A word has another form.
    """
    found = [(name, folder) for name, _, folder in (word.partition("=") for word in words)]
    if odd := [word for word, pair in zip(words, found, strict=True) if not all(pair)]:
        raise ConfigError(f"{odd[0]}: say NAME=FOLDER")
    return found
