"""The command ``selfverify``: its commands in the order of its help, and how their failures end.

A command only reads arguments and prints; the work is done by what it imports. Heavy imports (torch,
transformers) stand inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from selfverify.cli import agent_commands, data_commands, looking_commands
from selfverify.cli.eval_commands import evaluate, report
from selfverify.cli.export_command import export
from selfverify.cli.failures import readable_failures
from selfverify.cli.list_commands import methods, recipes, tasks
from selfverify.cli.serve_command import serve
from selfverify.cli.solve_command import solve
from selfverify.cli.spinning import spin_briefly
from selfverify.cli.train_commands import merge, quickstart, train
from selfverify.core.errors import __version__

_GOES_ON = {
    "train": "; `--resume` goes on from the last checkpoint",
    **dict.fromkeys(("quickstart", "eval"), "; the same command goes on where it was stopped"),
}
"""What people can do after Ctrl-C, by command."""


class _Commands(TyperGroup):
    """Commands whose failures end in one readable message, not in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        with readable_failures(lambda: _GOES_ON.get(ctx.invoked_subcommand or "", "")):
            return super().invoke(ctx)


app = typer.Typer(
    name="selfverify",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train and run vision-language models that answer **and** verify their own answers.\n\n"
    "Start with `selfverify quickstart`: it trains a small model on this machine and shows what it learnt. "
    "Then `selfverify recipes` lists experiments, `selfverify train RECIPE` runs one, `selfverify eval` "
    "measures a model and `selfverify report` compares runs.",
)
app.command()(quickstart)
app.command()(train)
app.command(name="eval")(evaluate)
for _command in (solve, serve, report, recipes, methods, tasks, merge, export):
    app.command()(_command)
app.add_typer(data_commands.app, name="data")
app.add_typer(agent_commands.app, name="agent")
app.add_typer(looking_commands.app, name="visual")


def main() -> None:
    """Entry point of the ``selfverify`` command."""
    spin_briefly(os.environ)
    app()


def _show_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
