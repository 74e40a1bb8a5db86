"""The command ``selfverify``: its commands in the order of its help, and how their failures end.

A command only reads arguments and prints; the work is done by what it imports. Heavy imports (torch,
transformers) stand inside the commands, so that ``--help`` answers at once. A failure that is foreseen ends
in one readable message, not in a traceback.

The short commands ``methods``, ``tasks`` and ``recipes`` are here, too. Before any command, `spin_briefly`
decides how long OpenMP's threads spin while they wait for work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from selfverify.cli import agent, data, visual
from selfverify.cli.data import export
from selfverify.cli.evaluate import evaluate, report
from selfverify.cli.options import print_table, say
from selfverify.cli.solve import serve, solve
from selfverify.cli.train import merge, quickstart, train
from selfverify.core.errors import SelfVerifyError, __version__
from selfverify.core.files import reason_of

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
    _list("method", name)


def tasks(
    name: Annotated[str | None, typer.Argument(help="The task whose options to show.")] = None,
) -> None:
    """List the tasks, those of installed distributions included, or one task's options.

    Examples:

    - `selfverify tasks`

    - `selfverify tasks maths`
    """
    _list("task", name)


def _list(kind: Literal["task", "method"], name: str | None) -> None:
    from selfverify.experiments.registry import METHODS, TASKS, look_up

    if name is None:
        known: Mapping[str, type[Method] | type[Task]] = TASKS if kind == "task" else METHODS
        print_table((kind, "what it does"), [(key, entry.summary) for key, entry in known.items()])
        return
    chosen = look_up(kind, name)
    options = []
    for key, field in chosen.config_class.model_fields.items():
        default = "(required)" if field.is_required() else field.get_default(call_default_factory=True)
        said = " ".join((field.description or "").split())
        options.append((f"{kind}.{key}", str(default), said))
    print_table(("option", "default", "meaning"), options, f"{name}: {chosen.summary}")


def recipes() -> None:
    """List the recipes that ship with the package.

    Example: `selfverify recipes`, then `selfverify train NAME --dry-run` to read one.
    """
    from selfverify.experiments.recipe import builtin_recipes, recipe_summary

    rows = [(name, recipe_summary(path)) for name, path in builtin_recipes().items()]
    print_table(("recipe", "what it is for"), rows)


OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS", "KMP_BLOCKTIME")
"""Variables by which people and launchers decide about OpenMP's threads themselves."""

SPINS = "2000"
"""Turns of GNU OpenMP's waiting loop before a thread sleeps; its own default takes milliseconds."""


def spin_briefly(environment: MutableMapping[str, str]) -> None:
    """Let OpenMP's threads sleep soon while they wait, unless one of `OPENMP` is set already.

    Torch's threads spin between operations. Beside other busy programs they take the cores from the very
    thread that they wait for. The OpenMP library reads the variable when it is loaded, so this has to be
    called before torch is imported.
    """
    if not any(name in environment for name in OPENMP):
        environment["GOMP_SPINCOUNT"] = SPINS


@contextmanager
def readable_failures(goes_on: Callable[[], str] = str) -> Iterator[None]:
    """End with a message and an exit status where a command fails in a way that is foreseen, or by Ctrl-C.

    Args:
        goes_on: Returns what people can do after Ctrl-C, to stand behind "interrupted".
    """
    try:
        yield
    except SelfVerifyError as error:
        say(str(error), "bold red", "error: ")
        raise typer.Exit(2) from None
    except OSError as error:
        reason = reason_of(error)
        if error.filename is None and reason is None:
            raise
        named = error.filename2 or error.filename
        said = reason or error.strerror
        say(f"{named}: {said}" if named else f"{said}", "bold red", "error: ")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        say(f"interrupted{goes_on()}", "yellow")
        raise typer.Exit(130) from None


_GOES_ON = {
    "train": "; `--resume` goes on from the last checkpoint",
    **dict.fromkeys(("quickstart", "eval"), "; the same command goes on where it was stopped"),
}
"""Advice after Ctrl-C, by command."""


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
app.add_typer(data.app, name="data")
app.add_typer(agent.app, name="agent")
app.add_typer(visual.app, name="visual")


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
