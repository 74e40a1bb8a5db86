"""ADPO's Tables 2 to 4 of our own runs, and its published tables: `python -m reproduce.adpo`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from reproduce.by_size import sizes_of
from reproduce.paper_tables import Asked, Rows, show_tables
from reproduce.scripts import Paper, script
from selfverify.cli.options import settings_as_options
from selfverify.core.config import Config
from selfverify.core.errors import ConfigError


class TablesSettings(Config):
    """The content of the tables."""

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

    output: Path | None = None
    """A file for the tables, in Markdown."""


@settings_as_options
def tables(settings: TablesSettings, rows: Rows = None, paper: Paper = False) -> None:
    """Print methods x benchmarks from stored samples, in the layout of ADPO's Tables 2 to 4.

    Nothing is sampled. A method that comes several times for one benchmark has several training seeds.

    Examples:

    - `python -m reproduce.adpo base:mathvista=evals/base grpo:mathvista=runs/grpo
      adpo:mathvista=runs/adpo`

    - `python -m reproduce.adpo grpo:mathvista=runs/grpo adpo:mathvista=runs/adpo --against grpo:majority`

    - `python -m reproduce.adpo runs/adpo-digits --output tables.md --against before`

    - `python -m reproduce.adpo adpo:mathvista=runs/adpo --paper 2 11`
    """
    strategies = [name.strip() for name in settings.by.split(",") if name.strip()]
    if not strategies:
        raise ConfigError("--by names no strategy")
    sizes = sizes_of(settings.sizes)
    asked = Asked(sizes, strategies, settings.score, settings.category, settings.against)
    show_tables(rows, asked, settings.output, "adpo" if paper else None)


app = script(tables)


if __name__ == "__main__":
    app()
