"""AdaPO's Table 1 and Fig. 5 of our own runs, and its published tables: `python -m reproduce.adapo`.

    python -m reproduce.grid adapo-digits-check
    python -m reproduce.adapo runs/adapo-digits-check --against adapo

The same at T = 0, where every run of the study was evaluated anew:

    selfverify eval adapo-digits-check --output greedy/before evaluation.samples=1 evaluation.temperature=0
    selfverify eval runs/adapo-digits-check/pick/adapo/seed-0 --output greedy/adapo-0 \\
        evaluation.samples=1 evaluation.temperature=0      # and so on for every run that the study has
    python -m reproduce.adapo before:pick=greedy/before adapo:pick=greedy/adapo-0 grpo:pick=greedy/grpo-0
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reproduce.paper_tables import Asked, Rows, show_tables
from reproduce.scripts import Paper, script


def tables(
    rows: Rows = None,
    against: Annotated[str | None, typer.Option(help="The method that the others are compared with.")] = None,
    paper: Paper = False,
    output: Annotated[Path | None, typer.Option(help="A file for the tables, in Markdown.")] = None,
) -> None:
    """Print first and second answers of methods on benchmarks, in the layout of AdaPO's Table 1.

    These are acc@t1, acc@t2, their difference and what was corrected and spoiled; of several benchmarks the
    mean, too (AdaPO's Fig. 5). Nothing is sampled. A method that comes several times for one benchmark has
    several training seeds.
    """
    show_tables(rows, Asked(against=against), output, "adapo" if paper else None)


app = script(tables)


if __name__ == "__main__":
    app()
