"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
from typing import Any

import typer
from rich.console import Console
from rich.text import Text


def say(text: str, style: str = "", prefix: str = "") -> None:
    """Print to stderr. ``text`` is no markup: it may hold a path with brackets or a model's words."""
    Console(stderr=True).print(Text(prefix, style).append(text, ""), soft_wrap=True, highlight=False)


def print_json(data: Any, indent: int | None = 2) -> None:
    """Print data as JSON. What JSON does not know, such as a path, is written as a text."""
    typer.echo(json.dumps(data, indent=indent, ensure_ascii=False, default=str))


def figure(value: Any, digits: str = ".4g") -> Text:
    """Return a cell of a table; a figure that does not exist is a dash."""
    return Text("–" if value is None else format(value, digits) if isinstance(value, float) else str(value))
