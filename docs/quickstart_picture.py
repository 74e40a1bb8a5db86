"""The README's picture: accuracy against N, and score histograms, before and after a run.

python docs/quickstart_picture.py runs/quickstart docs/quickstart.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from selfverify.reports.charts import PALETTE, STYLE, accuracy_limits, draw_accuracy, draw_histogram
from selfverify.reports.run_data import STAGES, RunData


def main(folder: Path, path: Path) -> None:
    """Write a PNG of 1600 x 700 pixels."""
    run = RunData(folder)
    curves = {stage: run.summaries[stage]["curves"] for stage in STAGES}
    limits = accuracy_limits([*curves.values()])
    with matplotlib.rc_context(STYLE | {"figure.facecolor": PALETTE["panel"], "font.size": 10.5}):
        figure = Figure(figsize=(12.8, 5.6), layout="constrained", dpi=125)
        left, right = figure.subfigures(1, 2, width_ratios=[2, 1])
        for axes, (stage, values) in zip(left.subplots(1, len(STAGES)), curves.items(), strict=True):
            draw_accuracy(axes, values, f"Accuracy {stage} training", limits)
        for axes, stage in zip(right.subplots(len(STAGES), 1, sharex=True), STAGES, strict=True):
            draw_histogram(axes, *run.scores(stage), f"Scores {stage} training")
            axes.label_outer()
        figure.savefig(path, facecolor=PALETTE["panel"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
