"""A two-turn study's figures, as PNG files: AdaPO's Fig. 2 and 4, and what changed between the turns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from selfverify.experiments.study.study_figures import (
    FEW,
    Drawings,
    Runs,
    colours,
    draw_panels,
    seed_mean,
    training_curves,
)
from selfverify.experiments.study.study_file import BEFORE
from selfverify.reports.figures import PALETTE, Bubble, draw_bubbles, draw_lines
from selfverify.reports.run_data import ENOUGH

CURVES = {
    "turns/acc@t1": ("First answers right", True),
    "turns/acc@t2": ("Second answers right", True),
    "turns/0->1": ("Corrected, of all", True),
    "turns/1->0": ("Spoiled, of all", True),
}
"""Figures measured or logged during training: the title, and whether it is a share."""


def draw_turn_figures(folder: Path, task: str, results: Mapping[str, Any], runs: Runs) -> list[Path]:
    """Write a task's three figures, ``<task>-training.png``, ``-turns.png`` and ``-bubbles.png``.

    Args:
        folder: The folder of the files.
        task: The task's label.
        results: What `selfverify.experiments.study.results.task_results` returned.
        runs: The runs that the results are about.
    """
    columns = min(4, len(runs))
    lines = -(-len(runs) // columns)
    measured = [_curve(of, "turns/acc@t1", True)[1] for of in runs.values()]
    counts = [int((~np.isnan(values)).sum()) for values in measured]
    validated = any(counts) and min(count for count in counts if count) >= ENOUGH
    curves = {_name(name, validated): shown for name, shown in CURVES.items()}
    training = partial(training_curves, curves=curves, narrow=True)
    drawings: Drawings = {
        "training": (training, (11.0, 6.6), (2, 2), runs),
        "turns": (
            partial(accuracy_curves, validated=validated),
            (3.2 * columns, 2.6 * lines),
            (lines, columns),
            runs,
        ),
        "bubbles": (bubbles, (7.5, 5.5), (1, 1), results),
    }
    return draw_panels(folder, task, drawings)


def accuracy_curves(panels: list[Axes], runs: Runs, validated: bool) -> None:
    """Draw AdaPO's Fig. 2: both turns' accuracy while training, a chart per variant with the same limits."""
    values = []
    for axes, (variant, of) in zip(panels, runs.items(), strict=False):
        lines = []
        for turn, colour in (("1", "pass"), ("2", "best")):
            steps, found = _curve(of, f"turns/acc@t{turn}", validated)
            if np.isnan(found).all():  # trained in one turn, and yet measured in two
                steps, found = _curve(of, f"turns/acc@t{turn}", True)
            if not np.isnan(found).all():
                lines.append((f"turn {turn}", colour, steps, found))
                values.append(found)
        draw_lines(axes, lines, variant, percent=True, smoothed=any(len(line[2]) > FEW for line in lines))
    known = np.concatenate(values) if values else np.zeros(1)
    low, high = float(np.nanmin(known)), float(np.nanmax(known))
    for axes in panels[: len(runs)]:
        axes.set_ylim(low - 0.05 * (high - low) - 0.005, high + 0.05 * (high - low) + 0.005)
    for axes in panels[len(runs) :]:
        axes.set_visible(False)


def bubbles(panels: list[Axes], results: Mapping[str, Any]) -> None:
    """Draw AdaPO's Fig. 4: every variant's mean over seeds, and its seeds as dots."""
    shades = {BEFORE: "muted", **colours(results["variants"])}
    rows = {BEFORE: results[BEFORE], **results["variants"]}
    points = []
    for label, row in rows.items():
        spoiled, corrected = (row["metrics"][f"turns.{kind}"] for kind in ("1->0", "0->1"))
        seeds = [
            (spoiled["per_seed"][seed], corrected["per_seed"][seed]) for seed in spoiled.get("per_seed", {})
        ]
        points.append(Bubble(label, PALETTE[shades[label]], spoiled["mean"], corrected["mean"], seeds))
    draw_bubbles(panels[0], points, "What second turns change")


def _name(name: str, validated: bool) -> str:
    return f"eval/{name}" if validated else name


def _curve(runs: Mapping[int, Any], name: str, validated: bool) -> tuple[np.ndarray, np.ndarray]:
    steps, values = seed_mean(runs, _name(name, validated))
    known = ~np.isnan(values)  # measured every so many steps: no gaps between
    return steps[known], values[known] if known.any() else np.full(1, np.nan)
