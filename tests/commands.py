"""Command lines, run in this process."""

from __future__ import annotations

import typer
from click.testing import Result
from typer.testing import CliRunner

from selfverify.cli.main import app


def command(*words: object, code: int = 0, of: typer.Typer = app) -> Result:
    """What a command prints in wide lines, after a look at its exit status."""
    done = CliRunner().invoke(of, [*map(str, words)], env={"COLUMNS": "200"})
    assert done.exit_code == code, (done.output, done.exception)
    return done
