"""The charts of a report: which figures of its runs are drawn, with matplotlib, under which titles.

A chart is inline SVG. Colours are named in `PALETTE`; the SVG refers to each as a CSS variable of the page
(``var(--best, #0f8b6d)``), so that a figure follows the page into dark mode.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from selfverify.reports.run_data import STAGES, WORDING, Line, RunData, words
from selfverify.selection.strategies import STRATEGIES

PALETTE = {
    "ink": "#1c2430", "muted": "#5f6b7a", "grid": "#e3e7ec", "panel": "#ffffff", "right": "#2563c9",
    "wrong": "#d9651f", "best": "#0f8b6d", "best2": "#72bfa8", "majority": "#7a5cc4", "pass": "#8b95a3",
    "oracle": "#b8901c", "extra": "#c2417f", "sky": "#37a6c8", "earth": "#7a4f32", "lime": "#8aa82b",
}  # fmt: skip
RUN_COLOURS = (
    "best", "majority", "wrong", "right", "oracle", "extra", "sky", "earth", "lime", "ink", "pass", "best2",
)  # fmt: skip

STYLE: Any = {
    "font.family": "sans-serif", "font.size": 10.5, "text.parse_math": False, "svg.fonttype": "none",
    "text.color": PALETTE["ink"], "axes.edgecolor": PALETTE["grid"], "axes.labelcolor": PALETTE["muted"],
    "xtick.color": PALETTE["muted"], "ytick.color": PALETTE["muted"], "grid.color": PALETTE["grid"],
    "axes.spines.top": False, "axes.spines.right": False, "axes.spines.left": False, "axes.grid": True,
    "axes.grid.axis": "y", "axes.axisbelow": True, "xtick.major.size": 0, "ytick.major.size": 0,
    "axes.titlesize": 11, "axes.titlelocation": "left", "axes.titlecolor": PALETTE["ink"],
    "axes.titleweight": "bold", "lines.linewidth": 2, "figure.facecolor": "none", "axes.facecolor": "none",
    "savefig.facecolor": "none",
}  # fmt: skip


def svg(draw: Callable[[Axes], None], label: str, size: tuple[float, float] = (4.8, 3.0)) -> Markup:
    """Return one chart as an inline SVG element.

    Args:
        draw: Draws on the axes that it is given.
        label: The words for a screen reader. It is unique in its page, since the ids of elements derive from
            it.
        size: Width and height in inches of 72 px; the page scales the chart to its column.
    """
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": label}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(
        r' id="(?:figure|axes|patch|line2d|text|matplotlib|xtick|ytick|PolyC|FillB)[^"]*"', "", text
    )
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', rf'\1 role="img" aria-label="{escape(label)}"', text)
    for name, colour in PALETTE.items():
        text = text.replace(colour, f"var(--{name}, {colour})")
    return Markup(text)


def draw_accuracy(
    axes: Axes, curves: Mapping[str, Sequence[float] | None], title: str, limits: tuple[float, float]
) -> None:
    """Draw accuracy against the number of samples N, one labelled line per strategy.

    Args:
        axes: Where to draw.
        curves: `selfverify.evaluation.metrics.curves`: a value for each N = 1, 2, ... by strategy.
        title: The chart's title.
        limits: The ends of the accuracy axis, the same for charts that are to be compared.
    """
    ends = []
    for name, (colour, style) in WORDING["strategies"].items():
        values = curves.get(STRATEGIES[name].figure)
        if values is None:
            continue
        front = 3 if name == "weighted" else 2
        counts = np.arange(1, len(values) + 1)
        axes.plot(counts, values, style, color=PALETTE[colour], zorder=front, lw=2.6 if front == 3 else 1.7)
        ends.append((values[-1], f"{STRATEGIES[name].label} {values[-1]:.0%}", PALETTE[colour]))
    _finish(axes, title, "samples per problem", percent=True)
    axes.set_ylim(*limits)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    _label_ends(axes, ends)


def draw_histogram(axes: Axes, right: np.ndarray, wrong: np.ndarray, title: str) -> None:
    """Draw the distributions of the scores of right and of wrong answers; each adds up to 100 %."""
    edges = np.linspace(0, 1, 21)
    top = 0.0
    for values, colour in ((wrong, PALETTE["wrong"]), (right, PALETTE["right"])):
        if len(values):
            shares = np.histogram(np.clip(values, 0, 1), edges)[0] / len(values)
            axes.stairs(shares, edges, fill=True, color=colour, alpha=0.28)
            axes.stairs(shares, edges, color=colour, lw=1.8)
            axes.axvline(float(values.mean()), ymax=0.85, color=colour, lw=1.2, ls=":")
            top = max(top, float(shares.max()))
    _finish(axes, title, "score the model gave its answer", percent=True)
    axes.set_ylim(0, top * 1.22 or 1)
    axes.set_xlim(0, 1)
    key: dict[str, Any] = {"transform": axes.transAxes, "va": "top", "fontsize": 9.5}
    axes.text(0.02, 0.99, f"■ wrong ({len(wrong):,})", color=PALETTE["wrong"], **key)
    axes.text(0.98, 0.99, f"■ right ({len(right):,})", color=PALETTE["right"], ha="right", **key)


def draw_lines(
    axes: Axes,
    lines: Sequence[Line],
    title: str,
    percent: bool = False,
    smoothed: bool = True,
    limits: tuple[float, float] | None = None,
) -> None:
    """Draw values over training steps: the values themselves pale, their running mean strong.

    Args:
        axes: Where to draw.
        lines: The curves; those with a name are labelled at their end.
        title: The chart's title.
        percent: Whether the values are shares.
        smoothed: Whether there is a running mean; without it the values themselves are strong and marked.
        limits: The ends of the axis of values; by default they fit the values.
    """
    ends = []
    for name, colour, steps, values in lines:
        smooth = running_mean(values, max(1, len(values) // 15)) if smoothed else values
        if smoothed:
            axes.plot(steps, values, color=PALETTE[colour], lw=1, alpha=0.28)
        axes.plot(steps, smooth, color=PALETTE[colour], lw=2, marker=None if smoothed else "o", ms=3.5)
        finite = smooth[~np.isnan(smooth)]
        if name and len(finite):
            ends.append((float(finite[-1]), name, PALETTE[colour]))
    _finish(axes, title, "training step", percent=percent)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    _label_ends(axes, ends)
    if limits:
        axes.set_ylim(*limits)


def draw_bubbles(axes: Axes, points: Sequence[tuple[str, str, float, float]], title: str) -> None:
    """Draw AdaPO's Fig. 4: corrected against spoiled answers.

    A bubble's area is |delta|; a hollow bubble loses by its second turn. On the dotted line as many answers
    are corrected as are spoiled.

    Args:
        axes: Where to draw.
        points: Of each model its name in the legend, a value of `PALETTE`, M_1->0 (the share of all answers
            that were right first and wrong then) and M_0->1 (the same the other way round).
        title: The chart's title.
    """
    places = np.array([point[2:] for point in points])
    low, high = (places.min(0), places.max(0)) if len(places) else (np.zeros(2), np.ones(2))
    margin = 0.15 * (high - low) + 0.01
    (left, bottom), (right, top) = np.maximum(low - margin, 0.0), high + margin
    axes.plot([0, 1], [0, 1], ":", color=PALETTE["muted"], lw=1, zorder=1)
    handles = []
    for name, colour, spoiled, corrected in points:
        delta = corrected - spoiled
        face = colour if delta >= 0 else "none"
        area = 30 + 6000 * abs(delta)
        axes.scatter([spoiled], [corrected], s=area, c=face, edgecolors=colour, alpha=0.6, zorder=2)
        axes.scatter([spoiled], [corrected], s=9, color=colour, zorder=3)
        change = f"{delta * 100:+.1f}".replace("-", "\u2212")
        shown: Any = {"markerfacecolor": face, "markeredgecolor": colour}
        handles.append(Line2D([], [], marker="o", ls="", label=f"{name} {change}", **shown))
    _finish(axes, title, "spoiled: right first, wrong then", percent=True)
    axes.set_ylabel("corrected: wrong first, right then")
    axes.xaxis.set_major_formatter(FuncFormatter(_percent))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    # Names beside the bubbles would cover each other where bubbles lie close.
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=9)


def draw_stops(
    axes: Axes,
    fixed: Sequence[tuple[float, float]],
    points: Sequence[tuple[str, str, float, float]],
    title: str,
) -> None:
    """Draw accuracy against looks.

    Args:
        axes: Where to draw.
        fixed: Looks and accuracy for each fixed number of looks.
        points: Label, colour, looks and accuracy of each rule.
        title: The chart's title.
    """
    axes.plot(*zip(*sorted(fixed), strict=True), "-", color=PALETTE["pass"], lw=1.7, zorder=1)
    for label, colour, looks, accuracy in points:
        shown: Any = {"color": PALETTE[colour], "label": f"{label} {accuracy:.0%}"}
        axes.scatter([looks], [accuracy], s=60, zorder=3, **shown)
    _finish(axes, title, "looks, on average", percent=True)
    axes.legend(loc="lower right", frameon=False, fontsize=9)


def running_mean(values: np.ndarray, reach: int) -> np.ndarray:
    """Return the mean ``[T]`` of ``reach`` neighbours on either side, fewer at the ends; NaN is left out."""
    known = ~np.isnan(values)
    window = np.ones(2 * reach + 1)
    sums = np.convolve(np.where(known, values, 0.0), window)[reach : reach + len(values)]
    counts = np.convolve(known.astype(float), window)[reach : reach + len(values)]
    return np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)


def accuracy_limits(all_curves: Sequence[Mapping[str, Sequence[float] | None]]) -> tuple[float, float]:
    """Return common limits of accuracy charts, at steps of 10 %."""
    drawn = [STRATEGIES[name].figure for name in WORDING["strategies"]]
    values = [value for curves in all_curves for figure in drawn for value in curves.get(figure) or ()]
    low, high = (
        np.floor(min(values, default=0) * 10 - 0.2) / 10,
        np.ceil(max(values, default=1) * 10 + 0.2) / 10,
    )
    return max(0.0, float(low)), min(1.02, float(high))


def _percent(value: float, _: int | None = None) -> str:
    """Return a tick's label with as many digits as it needs: 12.5 % is neither 12 nor 13."""
    return f"{round(100 * value, 2) + 0.0:g}%"


def _finish(axes: Axes, title: str, x_label: str, percent: bool) -> None:
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(_percent))


def _label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write each line's name at its right end, moved apart where lines end close together."""
    low, high = axes.get_ylim()
    apart = 0.075 * (high - low)
    ends = sorted(ends)
    places: list[float] = []
    for value, _, _ in ends:
        places.append(max(value, places[-1] + apart) if places else value)
    ceiling = high
    for index in reversed(range(len(places))):  # push back down what left the top
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - apart
    for place, (_, text, colour) in zip(places, ends, strict=True):
        axes.annotate(
            text, (1, place), xycoords=("axes fraction", "data"), xytext=(5, 0), textcoords="offset points",
            color=colour, va="center", fontsize=9.5, annotation_clip=False,
        )  # fmt: skip


MANY_POINTS = 40
"""A curve of more points than this is drawn with its running mean."""

Chart = dict[str, Any]
"""A chart as ``svg``, and ``note``, a sentence below it."""


def _chart(
    draw: Callable[..., None],
    label: str,
    note: str = "",
    size: tuple[float, float] = (4.8, 3.0),
    **drawn: Any,
) -> Chart:
    """Return one chart; ``drawn`` is passed on to ``draw``."""
    return {"svg": svg(partial(draw, **drawn), label, size), "note": note}


def accuracy(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw accuracy against N, one chart per run and stage, all with the same limits."""
    found = [
        (run, stage, run.summaries[stage]["curves"])
        for run in runs
        for stage in STAGES
        # A single sample is a point, and the table has it.
        if any(len(curve or ()) > 1 for curve in (run.summaries.get(stage, {}).get("curves") or {}).values())
    ]
    limits = accuracy_limits([curves for _, _, curves in found])
    for run, stage, curves in found:
        yield _chart(
            draw_accuracy,
            f"Accuracy by samples per problem, {run.name}, {stage} training",
            curves=curves,
            title=_title(runs, run, run.stage_title(stage)),
            limits=limits,
        )


def turns(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw AdaPO's Fig. 4, all runs in one chart, and its Fig. 2, a chart per run."""
    points = []
    for run in runs:
        for stage in STAGES:
            if found := run.summaries.get(stage, {}).get("turns"):
                last = stage == "after" or "turns" not in run.summaries.get("after", {})
                name = stage if len(runs) == 1 else f"{run.name}, {stage}"
                shade = PALETTE[run.colour if last else "pass"]
                points.append((name, shade, found["1->0"], found["0->1"]))
    if points:
        yield _chart(
            draw_bubbles,
            "Shares of answers that second turns corrected and spoiled",
            "As many are corrected as are spoiled on the dotted line. A bubble is as large as the change in "
            "accuracy, and hollow where it is a loss (AdaPO's Fig. 4).",
            size=(4.8, 4.2),
            points=points,
            title="Corrected and spoiled",
        )
    for run in runs:
        found = ((f"turn {t}", colour, *run.turn_accuracy(t)) for t, colour in (("1", "pass"), ("2", "best")))
        if lines := [line for line in found if len(line[2])]:
            yield _chart(
                draw_lines,
                f"Accuracy of both turns over training, {run.name}",
                "Of validation problems where measured often, else of training's (AdaPO's Fig. 2).",
                lines=lines,
                title=_title(runs, run, "Both turns over training"),
                percent=True,
                smoothed=len(lines[0][2]) > MANY_POINTS,
            )


def stopping(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw how often answers are right against the number of looks, by what ends looking."""
    for run in runs:
        rules = (run.stopping or {}).get("rules", {})
        for rule in (run.stopping or {}).get("verifier", {}):
            named = {name.format(rule=rule): how for name, how in WORDING["stops"].items()}
            yield _chart(
                draw_stops,
                f"Right answers by the number of looks, {run.name}, {rule}",
                "The line: after a fixed number of looks.",
                size=(6.4, 3.6),
                fixed=[(r["steps"], r["accuracy"]) for name, r in rules.items() if name.startswith("always")],
                points=[
                    (label, colour, rules[name]["steps"], rules[name]["accuracy"])
                    for name, (label, colour) in named.items()
                    if name in rules
                ],
                title=_title(runs, run, "What ends looking"),
            )


def training(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw a chart per logged metric, with one line per run."""
    for name, curve in words("curves").items():
        own = [run.lines({name: (run.name if len(runs) > 1 else "", run.colour)}) for run in runs]
        if any(own):
            yield _chart(
                draw_lines,
                f"{curve.title} over training steps",
                curve.meaning,
                size=(4.0, 2.5) if len(runs) == 1 else (4.8, 2.7),
                lines=[line for lines in own for line in lines],
                title=curve.title,
                percent=curve.percent,
            )


def conversations(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw how a step's conversations ended and what their time went into, two charts per run."""
    yield from _lines(runs, "conversations")


def signal(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw ADPO's Fig. 2 and 7: what a verification reward of 1 is paid for, and whether scores become 1."""
    yield from _lines(runs, "signal")


def _lines(runs: Sequence[RunData], section: str) -> Iterator[Chart]:
    """Draw a section's charts of logged metrics for each run."""
    for chart in WORDING["lines"][section]:
        title, shares = chart["title"], chart.get("shares", True)
        for run in runs:
            if lines := run.lines(chart["curves"]):
                yield _chart(
                    draw_lines,
                    f"{title} over training, {run.name}",
                    chart.get("note", ""),
                    lines=lines,
                    title=_title(runs, run, title),
                    percent=shares,
                    limits=(0, 1.02) if shares else None,
                )


def scores(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw ADPO's Fig. 8: distributions of scores, a chart per run and stage."""
    for run in runs:
        for stage in STAGES:
            right, wrong = run.scores(stage)
            if len(right) + len(wrong):
                yield _chart(
                    draw_histogram,
                    f"Scores of right and wrong answers, {run.name}, {stage} training",
                    right=right,
                    wrong=wrong,
                    title=_title(runs, run, run.stage_title(stage)),
                )
            elif run.samples.get(stage):
                run.leave_out("scores", f"The samples {stage} training carry no soft scores.")


SECTIONS = (accuracy, stopping, turns, training, conversations, signal, scores)
"""What a page draws, by the functions' names."""


def _title(runs: Sequence[RunData], run: RunData, text: str) -> str:
    """Return a chart's title; with several runs it begins with the run's name."""
    return text if len(runs) == 1 else f"{run.name}: {text[0].lower()}{text[1:]}"
