"""The command ``selfverify tables``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from selfverify.cli.options import Json, settings_as_options
from selfverify.cli.printing import print_json
from selfverify.core.errors import ConfigError
from selfverify.core.settings import Settings


class TablesSettings(Settings):
    """What the tables show."""

    sizes: str = "1,4,8,12"
    """The numbers of samples to choose from, with commas between them."""

    by: str = "majority,best"
    """The strategies that choose (majority, best, weighted, best-of-majority, oracle), in order."""

    score: Literal["soft", "sampled", "greedy"] = "soft"
    """The reading of a model's own score that strategies use."""

    category: list[str] = []
    """A category of problems whose values become columns, such as `discipline`; repeatable."""

    against: str | None = None
    """The row that the others are compared with, as METHOD or METHOD:STRATEGY: differences with intervals and
    p-values, paired over problems."""

    intervals: bool = True
    """Show 95 % intervals."""

    output: Path | None = None
    """A file for the tables, in Markdown."""


@settings_as_options
def tables(
    rows: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD:BENCHMARK=FOLDER...", help="Runs or evaluations, or studies' folders."
        ),
    ],
    settings: TablesSettings,
    as_json: Json = False,
) -> None:
    """Print methods x benchmarks from stored samples, in the layout of ADPO's Tables 2-4 and AdaPO's Table 1.

    Nothing is sampled. Samples of one turn give figures for each number of samples, samples of two turns give
    acc@t1, acc@t2 and their difference, and the mean over benchmarks (AdaPO's Fig. 5). A method that comes
    several times for one benchmark has several training seeds.

    Examples:

    - `selfverify tables base:mathvista=evals/base grpo:mathvista=runs/grpo adpo:mathvista=runs/adpo@after`

    - `selfverify tables grpo:mathvista=runs/grpo adpo:mathvista=runs/adpo --against grpo:majority`

    - `selfverify tables runs/adapo-digits --output table-1.md --against before`
    """
    counts = sizes_of(settings.sizes)
    strategies = [name.strip() for name in settings.by.split(",") if name.strip()]
    if not strategies:
        raise ConfigError("--by names no strategy")
    from selfverify.core.atomic_files import write_text
    from selfverify.experiments.study.paper_tables import paper_tables
    from selfverify.experiments.study.paper_tables_text import markdown
    from selfverify.experiments.study.run_sources import run_sources

    found = paper_tables(
        run_sources(rows),
        sizes=counts,
        strategies=strategies,
        score=settings.score,
        categories=settings.category,
        against=settings.against,
    )
    text = markdown(found, settings.intervals)
    if settings.output is not None:
        write_text(settings.output, text)
    if as_json:
        print_json(found.as_json(), indent=None)
    else:
        typer.echo(text, nl=False)


def sizes_of(text: str) -> list[int]:
    """Return the numbers of samples that ``--sizes`` names.

    Raises:
        ConfigError: One is no whole number above 0.
    """
    counts = [int(size) if size.strip().isdecimal() else 0 for size in text.split(",")]
    if min(counts) < 1:
        raise ConfigError(f"--sizes {text}: whole numbers above 0, with commas between them")
    return counts
