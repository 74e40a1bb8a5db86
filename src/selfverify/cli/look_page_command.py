"""The command `selfverify visual page`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from selfverify.core.errors import ConfigError


def page(
    folder: Annotated[Path, typer.Argument(help="The folder in which `visual collect` keeps conversations.")],
    output: Annotated[Path, typer.Option(help="The HTML file that is written.")] = Path("looks.html"),
    trace: Annotated[
        list[str] | None,
        typer.Option(help="The id of a conversation to show, or of its problem; repeat the option."),
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="The most conversations on the page.")] = 12,
) -> None:
    """Show conversations in which a model has looked again as one HTML page, step by step.

    Every step has the image that was looked at, with the place in it, what the tool made of it, and the
    verifier's Δr where one has listened. `selfverify report` shows those of an evaluation.

    Example: `selfverify visual page looks --output looks.html`
    """
    from selfverify.evaluation.samples import IMAGES
    from selfverify.experiments.visual_data import all_traces
    from selfverify.reports.report import write_look_page

    wanted = set(trace or ())
    found = (one for one in all_traces(folder) if not wanted or wanted & {one.id, one.problem})
    shown = [*islice(found, most)]
    if not shown:
        if not wanted:
            raise ConfigError(f"{folder} has no conversation; `selfverify visual collect` holds some")
        missing = ", ".join(sorted(wanted))
        raise ConfigError(
            f"{folder} has no conversation {missing}; its ids stand in sft.jsonl, or leave --trace out"
        )
    about = f"From {folder.name}: {len(shown)} conversation{'s' if len(shown) > 1 else ''}."
    path = write_look_page(shown, about, folder / IMAGES, output, sum(1 for _ in found))
    typer.echo(f"{len(shown)} conversations: {path}")
