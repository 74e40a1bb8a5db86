"""What second turns do to first answers, of several evaluations: figures, and a picture of one bar each.

    selfverify eval adapo-digits --output redraws evaluation.samples=1 evaluation.temperature=0
    selfverify eval adapo-digits-check --output checks evaluation.samples=1 evaluation.temperature=0
    python -m reproduce.second_turns redraws=redraws checks=checks --output turns.json --picture turns.png

The file has, for each evaluation, AdaPO's figures (its Sec. 4.1) with 95 % bootstrap intervals over problems.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from reproduce.scripts import show
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.files import write_json
from selfverify.evaluation.metrics import SampleTable
from selfverify.evaluation.samples import CORRECT_1, find_store, read_samples
from selfverify.evaluation.statistics import bootstrap_interval, on_all, turn_statistics
from selfverify.reports.plots import PALETTE, STYLE

PARTS = (
    ("1->1", "right, kept", "best"),
    ("0->1", "wrong, corrected", "right"),
    ("1->0", "right, spoiled", "wrong"),
    ("0->0", "wrong, still wrong", "grid"),
)
"""Shares of all trajectories in the order of a bar: name, what people read, colour."""

LEAST_LABELLED = 0.04
"""A smaller part of a bar is too narrow for its number."""


def figures_of(folder: str) -> dict[str, Any]:
    """The figures of an evaluation's second turns.

    Raises:
        DataError: There are no samples, or they have one turn.
    """
    samples = read_samples(find_store(Path(folder)))[1]
    try:
        table = SampleTable.from_samples(samples)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from None
    first = table.rewards.get(CORRECT_1)
    if first is None:
        raise DataError(f"{folder}: these samples have no second turns; evaluate with evaluation.second_turn")
    if np.isnan(first).any():
        raise DataError(f"{folder}: some samples have no second turns; evaluate anew, all with a second turn")
    problems = len(table.correct)
    return {
        name.partition(".")[2]: {
            "value": on_all(statistic, problems),
            "interval": bootstrap_interval(statistic, problems),
        }
        for name, statistic in turn_statistics(first, table.correct).items()
    }


def draw(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write a bar for each evaluation, of 100 answers each."""
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(8.6, 1.35 + 0.62 * len(found)), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        for row, figures in enumerate(found.values()):
            left = 0.0
            for name, label, colour in PARTS:
                share = figures[name]["value"]
                axes.barh(
                    row, share, left=left, color=PALETTE[colour], label=None if row else label, height=0.62
                )
                if share >= LEAST_LABELLED:
                    ink = PALETTE["ink"] if colour == "grid" else "white"
                    axes.text(left + share / 2, row, f"{share:.0%}", ha="center", va="center", color=ink)
                left += share
        axes.set_yticks(range(len(found)), list(found), color=PALETTE["ink"])
        axes.set_xticks([])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_title("What the second turn does to the first answer")
        figure.legend(loc="outside lower center", ncols=len(PARTS), frameon=False)
        figure.savefig(path, dpi=160)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the evaluations, write the file and the picture, and print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evaluations", nargs="+", metavar="NAME=FOLDER", help="its name and samples")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--picture", type=Path, help="where the picture goes, as PNG")
    options = parser.parse_args(argv)
    found: dict[str, dict[str, Any]] = {}
    for pair in options.evaluations:
        name, equals, folder = pair.rpartition("=")
        if not equals or not name or name in found:
            parser.error(f"{pair}: give each evaluation once, as NAME=FOLDER")
        try:
            found[name] = figures_of(folder)
        except SelfVerifyError as error:
            parser.error(str(error))
    names = ["acc@t1", "acc@t2", *[name for name, _, _ in PARTS]]
    rows = [[name, *[f"{100 * figures[n]['value']:.1f}" for n in names]] for name, figures in found.items()]
    show("Second turns, in percent of all", ["", *names], rows)
    if options.output:
        write_json(options.output, found)
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
