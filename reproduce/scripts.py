"""What the scripts of this folder share: how they become programs, and how they print.

Their failures end like those of `selfverify`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

from selfverify.cli.main import readable_failures
from selfverify.core.errors import ConfigError


class _Command(TyperCommand):
    def invoke(self, ctx: Any) -> Any:
        with readable_failures(lambda: "; the same command goes on where it was stopped"):
            return super().invoke(ctx)


def named_folders(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return what ``NAME=FOLDER ...`` says, in order.

    Raises:
        ConfigError: A word has another form.
    """
    if odd := [word for word in words if "=" not in word]:
        raise ConfigError(f"{odd[0]}: say NAME=FOLDER")
    return [(name, folder) for name, _, folder in (word.partition("=") for word in words)]


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


def ask_methods(parser: argparse.ArgumentParser) -> None:
    """Let a program take methods and their evaluations, one of each seed: ``--of NAME FOLDER...``."""
    parser.add_argument(
        "--of",
        nargs="+",
        action="append",
        required=True,
        metavar="NAME",
        help="a name, then its folders by seed",
    )


def asked_methods(
    parser: argparse.ArgumentParser, options: argparse.Namespace, taken: str | None = None
) -> dict[str, list[Path]]:
    """The folders of each method that `ask_methods` took; none may be called ``taken``."""
    methods = {name: [Path(folder) for folder in folders] for name, *folders in options.of}
    if len(methods) < len(options.of) or not all(methods.values()) or taken in methods:
        parser.error("--of takes a name that no other has, and one folder at least")
    return methods


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table; numbers with three digits."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row])
    Console().print(table)


def with_interval(value: float, interval: Sequence[float] | None, sign: str = "") -> str:
    """A figure with three decimals and its interval, where it has one; ``sign`` is ``+`` for differences."""
    if interval is None:
        return f"{value:{sign}.3f}"
    return f"{value:{sign}.3f} ({interval[0]:{sign}.3f} to {interval[1]:{sign}.3f})"
