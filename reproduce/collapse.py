"""Does it pay to err first (AdaPO, Fig. 2)? Both turns against what a correction earns beyond a kept answer.

    python -m reproduce.grid adapo-digits-collapse
    python -m reproduce.collapse runs/adapo-digits-collapse --breakeven 4.8 --output collapse.json \\
        --picture collapse.png

The study's variants with ``method.reward`` of ``fixed`` (a gap of 0) or ``fixed-correction`` are the points
of the curve, those with adaptive rewards stand beside it. Only runs that treat advantages like the baseline
(``method.scale_advantage``) are drawn. Figures are means over seeds, with the study's intervals;
``--breakeven`` is the gap that `reproduce/predicted_effects.py` predicts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from reproduce.grid_file import BEFORE
from reproduce.scripts import show
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.files import write_json
from selfverify.experiments.recipe import load_recipe
from selfverify.reports.plots import PALETTE, STYLE

TURNS = {"turns.acc@t1": ("first answers", "wrong"), "turns.acc@t2": ("second answers", "best")}
"""What is drawn: a metric, what people read, its colour."""


ADAPTIVE = "adaptive"


def gap_of(options: Mapping[str, Any]) -> float | None:
    """How much more a correction earns than a kept answer with these options; None if that varies."""
    return {"fixed": 0.0, "fixed-correction": options.get("fixed_gap")}.get(str(options.get("reward")))


def figures_of(study: Path, label: str) -> dict[str, Any]:
    """Both turns' accuracy before training, of adaptive rewards, and of fixed ones by their gap.

    Returns:
        ``before``, ``adaptive`` (None without such a variant) and ``fixed``: a list in the order of the gaps.
        Each has the metrics of `TURNS` as ``mean`` and ``interval``. ``rest`` has those of other variants.

    Raises:
        DataError: The study has no results, no such task, or no fixed rewards.
    """
    try:
        results = json.loads((study / "results.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{study} has no results.json; `python -m reproduce.grid` writes it") from None
    if label not in results["tasks"]:
        raise DataError(f"{study} has no task {label!r}, but {', '.join(results['tasks'])}; give --task")
    task = results["tasks"][label]
    recipes = {
        name: load_recipe(study / label / name / f"seed-{of['seeds'][0]}").method.options
        for name, of in task["variants"].items()
    }
    own = recipes.get(results["baseline"], {}).get("scale_advantage")
    found: dict[str, Any] = {"before": kept(task[BEFORE]), "adaptive": None, "fixed": [], "rest": {}}
    for name, of in task["variants"].items():
        options = recipes[name]
        gap = gap_of(options)
        if options.get("scale_advantage") != own or (gap is None and options.get("reward") != ADAPTIVE):
            found["rest"][name] = kept(of)
        elif gap is None:
            found["adaptive"] = kept(of)
        else:
            found["fixed"].append({"gap": gap, **kept(of)})
    if not found["fixed"]:
        raise DataError(f"{study}: no variant has method.reward of fixed or fixed-correction")
    found["fixed"].sort(key=lambda point: point["gap"])
    return found


def kept(row: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics that are drawn, and how many seeds they are of."""
    metrics = row["metrics"]
    seeds = {"seeds": row["seeds"]} if "seeds" in row else {}
    return {name: {key: metrics[name][key] for key in ("mean", "interval")} for name in TURNS} | seeds


def draw(found: Mapping[str, Any], breakeven: float | None, path: Path) -> None:
    """Write the curves over the gap, with AdaPO beside them and the start as a line."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 4.0), layout="constrained", facecolor="white")
        axes, beside = figure.subplots(1, 2, sharey=True, width_ratios=(6, 1))
        points = found["fixed"]
        gaps = [point["gap"] for point in points]
        for metric, (label, colour) in TURNS.items():
            whiskers(axes, gaps, [point[metric] for point in points], colour, "-")
            value = points[-1][metric]["mean"]
            axes.annotate(
                label, (gaps[-1], value), xytext=(0, 10), textcoords="offset points", ha="right",
                color=PALETTE[colour], fontweight="bold",
            )  # fmt: skip
            if found["adaptive"]:
                whiskers(beside, [0], [found["adaptive"][metric]], colour, "")
            for side in (axes, beside):
                side.axhline(found["before"][metric]["mean"], color=PALETTE[colour], ls=":", lw=1.2)
        if breakeven is not None:
            axes.axvline(breakeven, color=PALETTE["muted"], lw=1, ls="--")
            axes.annotate(
                "predicted: erring\npays from here on", (breakeven, 1), xycoords=("data", "axes fraction"),
                va="top", xytext=(6, 0), textcoords="offset points", color=PALETTE["muted"],
            )  # fmt: skip
        axes.set_xticks(gaps, [f"{gap:g}" for gap in gaps])
        axes.set_xlabel("what a correction earns beyond a kept answer (dotted: before training)")
        axes.set_title("Fixed rewards: right answers after training")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        beside.set_xticks([0], ["AdaPO"])
        beside.set_xlim(-1, 1)
        figure.savefig(path, dpi=160)


def whiskers(
    axes: Axes, at: Sequence[float], of: Sequence[Mapping[str, Any]], colour: str, line: str
) -> None:
    """Draw means with their intervals."""
    means = [value["mean"] for value in of]
    ends = [value["interval"] or (mean, mean) for value, mean in zip(of, means, strict=True)]
    reach = [[mean - low, high - mean] for mean, (low, high) in zip(means, ends, strict=True)]
    errors = [list(side) for side in zip(*reach, strict=True)]
    axes.errorbar(at, means, errors, color=PALETTE[colour], ls=line or "none", marker="o", capsize=3)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the study, print its figures, and write the file and the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="the study's folder")
    parser.add_argument("--task", default="pick", help="the task's label in the study")
    parser.add_argument("--breakeven", type=float, help="the gap above which erring is predicted to pay")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--picture", type=Path, help="where the picture goes, as PNG")
    options = parser.parse_args(argv)
    try:
        found = figures_of(options.study, options.task)
    except SelfVerifyError as error:
        parser.error(str(error))
    named = {f"gap {point['gap']:g}": point for point in found["fixed"]} | found["rest"]
    named = {"before": found["before"]} | ({"AdaPO": found["adaptive"]} if found["adaptive"] else {}) | named
    rows = [[name, *[written(of[metric]) for metric in TURNS]] for name, of in named.items()]
    show("Right answers after training, in percent", ["", "acc@t1", "acc@t2"], rows)
    if options.output:
        write_json(options.output, {"breakeven": options.breakeven} | found)
    if options.picture:
        draw(found, options.breakeven, options.picture)


def written(value: Mapping[str, Any]) -> str:
    """A mean with its interval, in percent."""
    low, high = value["interval"] or (value["mean"], value["mean"])
    return f"{100 * value['mean']:.1f} ({100 * low:.1f} to {100 * high:.1f})"


if __name__ == "__main__":
    main()
