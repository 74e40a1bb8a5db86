"""docs/serving.md explains every setting, with the default that it really has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import typer

from selfverify.cli.serve_command import serve
from selfverify.serving.best_of import BestOf

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
ROWS = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| `")]
TOLD = {
    name: default
    for names, defaults in ROWS
    for name, default in zip(
        re.findall(r"`([^`]+)`", names), [*re.findall(r"`([^`]+)`", defaults), *[""] * 99], strict=False
    )
}


def test_best_of() -> None:
    for name, field in BestOf.model_fields.items():
        expected = {None: "null", True: "true", False: "false"}.get(field.default, str(field.default))
        assert TOLD.get(name) == expected, name


def test_options() -> None:
    for name, parameter in inspect.signature(serve).parameters.items():
        if parameter.annotation is typer.Context:
            continue
        negative = "no-" if parameter.default is True else ""
        flag = "-n" if name == "n" else f"--{negative}{name.replace('_', '-')}"
        assert flag in TOLD, flag
        if TOLD[flag] not in ("", "best_of") and parameter.default is not None:
            default = parameter.default
            assert TOLD[flag] == (default if isinstance(default, str) else f"{default:g}"), flag
