"""What the judge of a study's runs said over their steps, and what was so.

python -m reproduce.grid smartsnap-phone-judges --jobs 2
python -m reproduce.smartsnap curves runs/smartsnap-phone-judges curves.json --figure curves.png
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from reproduce.tables import Column, figure_table
from selfverify.core.errors import ConfigError
from selfverify.core.jsonl_store import read_rows
from selfverify.reports.charts import PALETTE, STYLE

SHOWN = {
    "agent/judged-SR": "judged a success",
    "agent/SR": "done",
    "agent/judge-recall": "believed of what is done",
    "agent/judge-false-positives": "believed of what is not",
    "agent/completeness": "completeness",
    "agent/evidence": "exhibits",
}
"""Logged metrics of a step, and what they are called."""
BIN = 20
"""Steps that a point of a curve is the mean of."""
DRAWN = {"agent/judged-SR": "wrong", "agent/SR": "right"}
"""The metrics of the figure, and their colours."""

BySeed = Mapping[str, Sequence[float | None]]


def curves(study: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Return each variant's metrics over its steps, in parts of `BIN`, by seed; say the first and last parts.

    Raises:
        ConfigError: The study has no runs with steps, or those of a variant differ in their number.
        DataError: A file of a run is corrupt.
    """
    found: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for folder in sorted(study.glob("phone/*")):
        runs = {run.name.removeprefix("seed-"): _binned(run) for run in sorted(folder.glob("seed-*"))}
        runs = {seed: run for seed, run in runs.items() if run}
        if len({len(values) for run in runs.values() for values in run.values()}) > 1:
            raise ConfigError(
                f"{folder}: its runs have different numbers of steps; wait until all have ended"
            )
        if runs:
            found[folder.name] = {name: {seed: run[name] for seed, run in runs.items()} for name in SHOWN}
    if not found:
        raise ConfigError(f"{study}: no runs with steps are in it")
    columns = [Column(n, title, percent=n != "agent/evidence", better=False) for n, title in SHOWN.items()]
    for when, place in (("first", 0), ("last", -1)):
        rows = {
            (variant,): {name: {"mean": _mean([of[place] for of in row[name].values()])} for name in SHOWN}
            for variant, row in found.items()
        }
        say(f"## The {when} {BIN} steps\n\n{figure_table(['variant'], rows, columns)}\n")
    return found


def draw(found: Mapping[str, Mapping[str, BySeed]], path: Path) -> None:
    """Draw each variant's judged and true success over its steps, a thin line for each seed, as a PNG.

    Variants that begin alike (``one-10``, ``one-30``) share a row, and a single word joins the one above it.
    """
    kinds: dict[str, list[str]] = {}
    kind = ""
    for variant in found:
        kind = variant.partition("-")[0] if "-" in variant else kind
        kinds.setdefault(kind, []).append(variant)
    across = max(map(len, kinds.values()))
    with matplotlib.rc_context(STYLE | {"figure.facecolor": PALETTE["panel"], "savefig.facecolor": "auto"}):
        figure = Figure(figsize=(2.3 * across, 1.8 * len(kinds) + 0.4), layout="constrained")
        panels = figure.subplots(len(kinds), across, sharex=True, sharey=True, squeeze=False)
        placed = [
            (axes, variant)
            for row_of, variants in zip(panels, kinds.values(), strict=True)
            for axes, variant in zip(row_of, variants, strict=False)
        ]
        for axes in panels.flat:
            axes.set_axis_off()
        for axes, variant in placed:
            row = found[variant]
            axes.set_axis_on()
            axes.set_title(variant)
            axes.set_ylim(0, 1)
            axes.yaxis.set_major_formatter(PercentFormatter(1))
            for name, colour in DRAWN.items():
                seeds = np.array([*row[name].values()], dtype=np.float64)
                steps = BIN * (np.arange(seeds.shape[1]) + 0.5)
                axes.plot(steps, seeds.T, color=PALETTE[colour], lw=0.8, alpha=0.4)
                axes.plot(steps, seeds.mean(axis=0), color=PALETTE[colour], label=SHOWN[name])
        placed[0][0].legend(fontsize=8, frameon=False)
        figure.supxlabel("training steps", fontsize=10)
        figure.savefig(path, dpi=110)


def _binned(run: Path) -> dict[str, list[float | None]]:
    """The means of each `BIN` steps, by metric."""
    rows = read_rows(run / "metrics.jsonl")
    parts = [rows[first : first + BIN] for first in range(0, len(rows), BIN)]
    return (
        {name: [_mean([row.get(name) for row in part]) for part in parts] for name in SHOWN} if rows else {}
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
