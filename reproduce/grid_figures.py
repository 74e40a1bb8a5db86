"""A study's figures, as PNG files: curves of training, and what verification or second turns are worth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from reproduce.grid_file import BEFORE
from reproduce.grid_tables import two_turns
from selfverify.core.files import make_folder, naming
from selfverify.reports.plots import (
    PALETTE,
    RUN_COLOURS,
    STYLE,
    Bubble,
    draw_bubbles,
    draw_histogram,
    draw_lines,
)
from selfverify.reports.run_data import ENOUGH, RunData

CURVES = {
    "verification/score_is_1": ("Scores that are 1", True),
    "verification/correct_given_reward1": ("Right answers among scores with reward 1", True),
    "verification/score_mean": ("Mean score", False),
    "verification/auc": ("Within-problem AUC of sampled scores", False),
}
"""Logged metrics that are drawn (ADPO's Fig. 2 and 7, and others): the title, and whether it is a share."""

TURN_CURVES = {
    "turns/acc@t1": ("First answers right", True),
    "turns/acc@t2": ("Second answers right", True),
    "turns/0->1": ("Corrected, of all", True),
    "turns/1->0": ("Spoiled, of all", True),
}
"""Figures measured or logged during training: the title, and whether it is a share."""

FEW = 20
"""A curve of at most so many points is drawn without a running mean."""

Runs = Mapping[str, Mapping[int, RunData]]
"""Runs by variant and seed."""

Draw = Callable[[list[Axes]], None]
"""Draws on the panels of a figure."""


def draw_figures(folder: Path, task: str, results: Mapping[str, Any], runs: Runs) -> list[Path]:
    """Write a task's three figures as ``<task>-<name>.png``; return their paths.

    Their names are ``training``, ``verification`` and ``scores``, or, for a task in two turns, ``training``,
    ``turns`` and ``bubbles``.

    Args:
        folder: The folder of the files.
        task: The task's label.
        results: What `reproduce.grid_results.task_results` returned.
        runs: The runs that the results are about.
    """
    make_folder(folder)

    def save(name: str, draw: Draw, width: float, height: float, lines: int = 1, columns: int = 1) -> Path:
        """Draw on panels in lines and columns, each ``width`` x ``height`` inches."""
        path = folder / f"{task}-{name}.png"
        with matplotlib.rc_context(STYLE):
            layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1, wspace=0.04, hspace=0.04)
            figure = Figure(figsize=(width * columns, height * lines), layout=layout, dpi=150)
            draw(list(figure.subplots(lines, columns, squeeze=False).ravel()))
            with naming(path):
                figure.savefig(path, facecolor=PALETTE["panel"])
        return path

    if not two_turns(results):
        columns = min(3, len(runs))
        rows = len(results["variants"]) + 1
        return [
            save("training", partial(training_curves, runs=runs, curves=CURVES), 5.5, 3.3, 2, 2),
            save("verification", partial(verification_points, results=results), 4.0, 1.2 + 0.34 * rows, 1, 3),
            save("scores", partial(score_histograms, runs=runs), 3.9, 2.7, -(-len(runs) // columns), columns),
        ]
    columns = min(4, len(runs))
    counts = [len(known_mean(of, "eval/turns/acc@t1")[0]) for of in runs.values()]
    # Validation's figures, if there are enough of them in every run that has any.
    source = "eval/" if any(counts) and min(count for count in counts if count) >= ENOUGH else ""
    curves = {source + name: shown for name, shown in TURN_CURVES.items()}
    turns = partial(accuracy_curves, runs=runs, source=source)
    return [
        save("training", partial(training_curves, runs=runs, curves=curves, narrow=True), 5.5, 3.3, 2, 2),
        save("turns", turns, 3.2, 2.6, -(-len(runs) // columns), columns),
        save("bubbles", partial(bubbles, results=results), 7.5, 5.5),
    ]


def colours(variants: Mapping[str, Any]) -> dict[str, str]:
    """Return a colour's name for each variant, in their order."""
    return {label: RUN_COLOURS[index % len(RUN_COLOURS)] for index, label in enumerate(variants)}


def seed_mean(runs: Mapping[int, RunData], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and means ``[T]`` of a logged metric over the seeds that have a value at a step."""
    series = [run.series(name) for run in runs.values()]
    steps = np.unique(np.concatenate([steps for steps, _ in series]))
    values = np.full((len(series), len(steps)), np.nan)
    for row, (own, found) in zip(values, series, strict=True):
        row[np.searchsorted(steps, own)] = found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step without any value is a gap in the curve
        return steps, np.nanmean(values, axis=0)


def known_mean(runs: Mapping[int, RunData], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps and means of `seed_mean` without gaps, for what is measured every so many steps."""
    steps, values = seed_mean(runs, name)
    known = ~np.isnan(values)
    return steps[known], values[known]


def training_curves(
    panels: list[Axes], runs: Runs, curves: Mapping[str, tuple[str, bool]], narrow: bool = False
) -> None:
    """Draw a chart per metric with the mean over seeds of each variant.

    ``narrow`` fits the axes of shares to their values instead of 0 to 1.
    """
    for axes, (name, (title, percent)) in zip(panels, curves.items(), strict=True):
        lines = []
        for variant, colour in colours(runs).items():
            steps, values = seed_mean(runs[variant], name)
            known = ~np.isnan(values)
            if known.any():
                # What is measured now and then has no gaps in between.
                kept = known if known.sum() <= len(known) / 2 else np.ones_like(known)
                lines.append(("", colour, steps[kept], values[kept]))
        draw_lines(axes, lines, title, percent, smoothed=all(len(line[2]) > FEW for line in lines))
        if percent and not narrow:
            axes.set_ylim(0, 1.02)
    # One key for all charts: names at the lines' ends would stand far from lines that end close together.
    handles = [Line2D([], [], color=PALETTE[colour], label=label) for label, colour in colours(runs).items()]
    panels[0].get_figure(root=True).legend(  # type: ignore[union-attr]
        handles=handles, loc="outside lower center", ncols=6, frameon=False
    )


def verification_points(panels: list[Axes], results: Mapping[str, Any]) -> None:
    """Draw AUC, within-problem AUC and the gain of the own score over a vote: means, intervals, each seed."""
    n = results["samples_per_problem"]
    names = {
        "within_problem_auc": ("Within-problem AUC", 0.5, False),
        "auc": ("AUC", 0.5, False),
        f"best_over_majority@{n}": (f"best@{n} minus majority@{n}", 0.0, True),
    }
    rows, shades = _rows(results, "pass")
    for axes, (name, (title, chance, percent)) in zip(panels, names.items(), strict=True):
        axes.axvline(chance, color=PALETTE["muted"], lw=1, ls=":")
        for height, (label, row) in enumerate(rows.items()):
            figure, colour = row["metrics"].get(name), PALETTE[shades[label]]
            if figure is None or figure["mean"] is None:
                continue
            if figure["interval"]:
                axes.plot(figure["interval"], [height] * 2, color=colour, lw=3, alpha=0.4)
            own = [value for value in figure.get("per_seed", {}).values() if value is not None]
            axes.plot(own, [height] * len(own), "|", color=colour, ms=9, mew=1.4)
            axes.plot([figure["mean"]], [height], "o", color=colour, ms=7)
        axes.set_yticks(range(len(rows)), list(rows) if axes is panels[0] else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_title(title)
        if percent:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.0%}"))


def score_histograms(panels: list[Axes], runs: Runs) -> None:
    """Draw ADPO's Fig. 8: the scores of right and of wrong answers after training, all seeds together."""
    columns = panels[0].get_subplotspec().get_gridspec().ncols  # type: ignore[union-attr]
    for index, (axes, (variant, by_seed)) in enumerate(zip(panels, runs.items(), strict=False)):
        scores = [run.scores("after") for run in by_seed.values()]
        right, wrong = (np.concatenate(side) for side in zip(*scores, strict=True))
        draw_histogram(axes, right, wrong, variant)
        if index + columns < len(runs):
            axes.set_xlabel("")  # the chart below says it
    for axes in panels[len(runs) :]:
        axes.set_visible(False)


def accuracy_curves(panels: list[Axes], runs: Runs, source: str) -> None:
    """Draw AdaPO's Fig. 2: both turns' accuracy while training, a chart per variant with the same limits.

    ``source`` is the beginning of the figures' names: ``eval/`` for those of validation.
    """
    values = []
    for axes, (variant, of) in zip(panels, runs.items(), strict=False):
        lines = []
        for turn, colour in (("1", "pass"), ("2", "best")):
            steps, found = known_mean(of, f"{source}turns/acc@t{turn}")
            if not len(steps):  # trained in one turn, and yet measured in two
                steps, found = known_mean(of, f"eval/turns/acc@t{turn}")
            if len(steps):
                lines.append((f"turn {turn}", colour, steps, found))
                values.append(found)
        draw_lines(axes, lines, variant, percent=True, smoothed=any(len(line[2]) > FEW for line in lines))
    known = np.concatenate(values) if values else np.zeros(1)
    margin = 0.05 * (known.max() - known.min()) + 0.005
    for axes in panels[: len(runs)]:
        axes.set_ylim(known.min() - margin, known.max() + margin)
    for axes in panels[len(runs) :]:
        axes.set_visible(False)


def bubbles(panels: list[Axes], results: Mapping[str, Any]) -> None:
    """Draw AdaPO's Fig. 4: every variant's mean over seeds, and its seeds as dots."""
    rows, shades = _rows(results, "muted")
    points = []
    for label, row in rows.items():
        spoiled, corrected = (row["metrics"][f"turns.{kind}"] for kind in ("1->0", "0->1"))
        seeds = [
            (spoiled["per_seed"][seed], corrected["per_seed"][seed]) for seed in spoiled.get("per_seed", {})
        ]
        points.append(Bubble(label, PALETTE[shades[label]], spoiled["mean"], corrected["mean"], seeds))
    draw_bubbles(panels[0], points, "What second turns change")


def _rows(results: Mapping[str, Any], before: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what is drawn of each variant and of the policy before training, and their colours' names."""
    variants = results["variants"]
    return {BEFORE: results[BEFORE], **variants}, {BEFORE: before, **colours(variants)}
