"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from selfverify.evaluation.headline import Headline


def say(text: str, style: str = "", prefix: str = "") -> None:
    """Print to stderr. ``text`` is no markup: it may hold a path with brackets or a model's words."""
    Console(stderr=True).print(Text(prefix, style).append(text, ""), soft_wrap=True, highlight=False)


def harmless(text: str) -> str:
    """A text of a model or a screen without what a terminal would obey, such as escape sequences."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


@contextmanager
def bar(name: str, hidden: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show how much is done while a block runs, and clear it away then.

    Args:
        name: What is counted.
        hidden: Whether to show nothing.

    Yields:
        A function to be called with the number of what is done and that of all.
    """
    from rich.progress import Progress  # most commands show none

    from selfverify.trainer.logging import no_bars_of_transformers

    with no_bars_of_transformers(), Progress(transient=True, disable=hidden) as shown:
        task = shown.add_task(name, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def print_json(data: Any, indent: int | None = 2) -> None:
    """Print data as JSON. What JSON does not know, such as a path, is written as a text."""
    typer.echo(json.dumps(data, indent=indent, ensure_ascii=False, default=str))


def figure(value: Any, digits: str = ".4g") -> Text:
    """Return a cell of a table; a figure that does not exist is a dash."""
    if value is None:
        return Text("–")
    return Text(format(value, digits) if isinstance(value, float) else str(value))


def print_headline(found: Headline, title: str) -> None:
    """Print the first figures of an evaluation, and what has to be known of them."""
    console = Console()
    console.print(found.as_table(title))
    for note in found.notes:
        console.print(Text(note), highlight=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", no_wrap: Sequence[str] = ()
) -> None:
    """Print a table. Its texts are no markup; the columns in ``no_wrap`` are not broken into lines."""
    table = Table(title=Text(title) if title else None)
    for name in columns:
        table.add_column(name, no_wrap=name in no_wrap)
    for row in rows:
        table.add_row(*(figure(value) for value in row))
    Console().print(table)
